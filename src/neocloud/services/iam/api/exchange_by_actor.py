"""Token exchange where the subject token is only the id of a service account, and an actor speaks for it.

Two kinds of actors: somebody signed in here who may impersonate the account (an access token), and a workload
elsewhere that an issuer vouches for, as the account's federated credentials allow (a JWT).
"""

from datetime import timedelta
from typing import Any

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.service import Call
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import FederatedCredentialsSpec
from neocloud.services.iam.access.external_tokens import ExternalTokenError, read_claimed, verify
from neocloud.services.iam.access.issuers import issuers_of
from neocloud.services.iam.access.issuing import AccessToken, issue
from neocloud.services.iam.access.proof import find_subject, may_impersonate
from neocloud.services.iam.access.sign_in_log import write_event
from neocloud.services.iam.access.tokens import AccessClaims, Actor, find_signing_key, read_access_token
from neocloud.services.iam.resources import FEDERATED_CREDENTIALS, SERVICE_ACCOUNT

SUBJECT_IDENTIFIER_TYPE = "urn:nebius:params:oauth:token-type:subject_identifier"
ACCESS_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:access_token"
JWT_TYPES = ("urn:ietf:params:oauth:token-type:id_token", "urn:ietf:params:oauth:token-type:jwt")
AUDIENCES = frozenset({"token-service.iam.new.nebiuscloud.net", "neocloud"})
IMPERSONATION_LIFETIME = timedelta(minutes=15)
MAX_ACTOR_TOKEN_CHARS = 16384
METHOD = "nebius.iam.v1.TokenExchangeService/Exchange"


async def exchange(call: Call, request: Any) -> AccessToken:
    if not request.actor_token or len(request.actor_token) > MAX_ACTOR_TOKEN_CHARS:
        raise contract.bad_field(
            "actor_token", "is required: an access token of who impersonates, or a workload's JWT"
        )
    if request.actor_token_type == ACCESS_TOKEN_TYPE:
        return await _impersonate(call, request.subject_token, request.actor_token)
    if request.actor_token_type in JWT_TYPES:
        return await _federated(call, request.subject_token, request.actor_token)
    raise contract.bad_field(
        "actor_token_type",
        f'must be "{ACCESS_TOKEN_TYPE}" to impersonate or "{JWT_TYPES[-1]}" for a workload',
    )


async def _impersonate(call: Call, account_id: str, actor_token: str) -> AccessToken:
    now, store = call.dependencies.clock.now(), call.dependencies.store
    key = await store.read(find_signing_key)
    if key is None:
        raise contract.unauthenticated("This cloud has not issued any access token yet.")
    claims = read_access_token(actor_token, key)
    proven = await store.read(lambda tx: find_subject(tx, claims))
    if claims.expires_at <= now or proven is None or (proven.ends_at and proven.ends_at <= now):
        raise contract.unauthenticated("The actor token has expired or stands for nobody. Sign in again.")
    actor = proven.subject
    if claims.actor is not None:
        raise contract.permission_denied(
            "iam.serviceAccounts.impersonate",
            account_id,
            "Who is impersonated cannot impersonate. Use a token of your own.",
        )
    refusal = await store.write(lambda tx: _decide(tx, call, actor, account_id))
    if refusal is not None:
        raise refusal
    acting = Actor(actor.id, claims.proof_id)
    return await issue(store, now, account_id, "", lifetime=IMPERSONATION_LIFETIME, actor=acting)


def _decide(tx: Transaction, call: Call, actor: Subject, account_id: str) -> contract.ApiError | None:
    """Both a yes and a no are written down. An account that may not be impersonated looks like no account."""
    refusal = None
    if not may_impersonate(tx, actor, account_id):
        refusal = contract.not_found("service account that you may impersonate", account_id)
    write_event(tx, call, METHOD, actor, account_id, error=refusal)
    return refusal


async def _federated(call: Call, account_id: str, actor_token: str) -> AccessToken:
    now, store = call.dependencies.clock.now(), call.dependencies.store
    try:
        claimed = read_claimed(actor_token)
        credentials = await store.read(
            lambda tx: _credentials(tx, account_id, claimed.issuer, claimed.subject)
        )
        if credentials is None:
            raise ExternalTokenError("no federated credentials of the account name its issuer and subject")
        provider = FederatedCredentialsSpec.FromString(credentials.spec).oidc_provider
        keys = await issuers_of(call.dependencies).keys(
            provider.issuer_url, claimed.key_id, given=provider.jwk_set_json
        )
        verify(actor_token, keys, issuer=provider.issuer_url, audiences=AUDIENCES, now=now)
    except ExternalTokenError as error:
        raise contract.unauthenticated(
            f"The workload token is not accepted for service account {account_id!r}: {error}."
        ) from error
    proven = await store.read(lambda tx: find_subject(tx, AccessClaims(account_id, credentials.id, now, now)))
    if proven is None:
        raise contract.unauthenticated(f"The workload token is not accepted for {account_id!r}.")
    await store.write(lambda tx: write_event(tx, call, METHOD, proven.subject, credentials.id))
    return await issue(store, now, account_id, credentials.id)


def _credentials(tx: Transaction, account_id: str, issuer: str, subject: str) -> Resource | None:
    account = tx.get(account_id)
    if account is None or account.kind != SERVICE_ACCOUNT:
        return None
    for row in tx.owned(account_id):
        if row.kind == FEDERATED_CREDENTIALS:
            spec = FederatedCredentialsSpec.FromString(row.spec)
            if spec.oidc_provider.issuer_url == issuer and spec.federated_subject_id == subject:
                return row
    return None
