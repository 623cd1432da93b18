"""Token exchange (RFC 8693): from a token signed with a service account's key to an access token.

The subject token names its signer: `kid` is the id of the public key, `iss` and `sub` are the service
account. It must be short-lived, and works once. Its algorithm is a property of the key, never of the token.
When the subject token is only the id of an account, an actor token is required: the access token of a caller
who may impersonate the account, or the JWT of a workload of another issuer that the account's federated
credentials allow.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt
from jwt.types import Options

from neocloud.core import contract
from neocloud.core.json_values import as_list
from neocloud.core.readers import Subject
from neocloud.core.service import Call
from neocloud.core.store.protocol import Mark, Resource, Transaction
from neocloud.messages.nebius.iam.v1 import (
    AuthPublicKeySpec,
    CreateTokenResponse,
    ExchangeTokenRequest,
    FederatedCredentialsSpec,
)
from neocloud.services.iam.access.authentication import find_subject, may_impersonate
from neocloud.services.iam.access.federation import (
    Claims,
    ExternalTokenError,
    issuers_of,
    read_claimed,
    time_claim,
    verify,
)
from neocloud.services.iam.access.sessions import write_event
from neocloud.services.iam.access.tokens import (
    UNCHECKED_TIMES,
    AccessClaims,
    AccessToken,
    Actor,
    find_signing_key,
    issue,
    read_access_token,
)
from neocloud.services.iam.rules.keys import read_public_key
from neocloud.services.iam.types import AUTH_PUBLIC_KEY, FEDERATED_CREDENTIALS, SERVICE_ACCOUNT

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_TYPE = "urn:ietf:params:oauth:token-type:jwt"
ACCESS_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:access_token"
AUDIENCES = frozenset({"token-service.iam.new.nebiuscloud.net", "neocloud"})
"""The audiences of a subject token; the published SDKs send the first."""
REPEAT_WITHIN = timedelta(seconds=60)
"""A subject token may be sent again for this long after its first use: answers get lost, and the published
SDKs sign the same token twice within one second."""
_USED = "iam.subject-tokens"

CLOCK_LEEWAY = timedelta(seconds=30)
MAX_SUBJECT_TOKEN_LIFETIME = timedelta(hours=1)
MAX_SUBJECT_TOKEN_CHARS = 8192


@dataclass(frozen=True)
class SubjectClaims:
    """The unchecked claims of a subject token."""

    key_id: str
    account_id: str


async def exchange(call: Call, request: ExchangeTokenRequest) -> CreateTokenResponse:
    _check_fields(request)
    if request.subject_token_type == SUBJECT_IDENTIFIER_TYPE:
        token = await _exchange_by_actor(call, request)
    else:
        token = await _by_key(call, request)
    return CreateTokenResponse(
        access_token=token.value,
        issued_token_type=ACCESS_TOKEN_TYPE,
        token_type="Bearer",
        expires_in=int(token.lifetime.total_seconds()),
    )


async def _by_key(call: Call, request: ExchangeTokenRequest) -> AccessToken:
    now, store = call.dependencies.clock.now(), call.dependencies.store
    claimed = _read_unverified(request.subject_token)
    key_row = await store.read(lambda tx: tx.get(claimed.key_id))
    if key_row is None or key_row.kind != AUTH_PUBLIC_KEY:
        raise _not_signed(claimed)
    public_pem = AuthPublicKeySpec.FromString(key_row.spec).data
    ends_at = _verify(request.subject_token, public_pem, claimed, now)
    claims = AccessClaims(claimed.account_id, claimed.key_id, now, now)
    checked = await store.read(lambda tx: find_subject(tx, claims))
    if checked is None or (checked.ends_at and checked.ends_at <= now):
        raise _not_signed(claimed)
    if not await store.write(lambda tx: _use(tx, request.subject_token, ends_at, now)):
        raise contract.unauthenticated("The subject token was used before. Sign a new one for each exchange.")
    return await issue(store, now, claimed.account_id, claimed.key_id)


def _use(tx: Transaction, token: str, ends_at: datetime, now: datetime) -> bool:
    """Return whether the token may be used now: once, and again for a short while. Its signed part is
    remembered, since a signature can be encoded in several ways."""
    name = hashlib.sha256(token.rpartition(".")[0].encode()).hexdigest()
    known = tx.mark(_USED, name, now)
    if known is None:
        tx.put_mark(_USED, name, Mark(int(now.timestamp()), ends_at + CLOCK_LEEWAY))
        return True
    return now.timestamp() < known.amount + REPEAT_WITHIN.total_seconds()


def _check_fields(request: ExchangeTokenRequest) -> None:
    expected = {
        "grant_type": (GRANT_TYPE,),
        "subject_token_type": (SUBJECT_IDENTIFIER_TYPE, JWT_TYPE),
        "requested_token_type": ("", ACCESS_TOKEN_TYPE),
    }
    for field, allowed in expected.items():
        if getattr(request, field) not in allowed:
            raise contract.bad_field(field, f'must be "{allowed[-1]}"')
    if request.actor_token and request.subject_token_type == JWT_TYPE:
        raise contract.bad_field(
            "actor_token", "is only for a subject_token that is an id (see subject_token_type); leave it out"
        )
    if not request.subject_token or len(request.subject_token) > MAX_SUBJECT_TOKEN_CHARS:
        raise contract.bad_field("subject_token", "must be a JWT signed with a service account's key")


def _read_unverified(token: str) -> SubjectClaims:
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError as error:
        raise contract.bad_field(
            "subject_token", "is not a JWT: three parts of base64 with dots between them"
        ) from error
    account_id = claims.get("sub")
    if not isinstance(key_id, str) or not isinstance(account_id, str) or claims.get("iss") != account_id:
        raise contract.bad_field(
            "subject_token",
            'needs the public key id as header "kid" and the service account id as both "iss" and "sub"',
        )
    return SubjectClaims(key_id, account_id)


def _verify(token: str, pem: str, claimed: SubjectClaims, now: datetime) -> datetime:
    """Return when the token expires. Raises ApiError unless it is valid."""
    key = read_public_key(pem)
    options: Options = {"require": ["exp"], **UNCHECKED_TIMES}
    try:
        claims = jwt.decode(token, key.key, algorithms=[key.algorithm], options=options)
    except jwt.InvalidTokenError as error:
        raise _not_signed(claimed) from error
    audience = claims.get("aud")
    named = as_list(audience) or [audience]
    if not AUDIENCES & {each for each in named if isinstance(each, str)}:
        wanted = " or ".join(sorted(AUDIENCES))
        raise contract.unauthenticated(
            f"The subject token is for another audience: its `aud` must be {wanted}."
        )
    _check_times(claims, now)
    return datetime.fromtimestamp(time_claim(claims, "exp"), UTC)


def _check_times(claims: Claims, now: datetime) -> None:
    moment = now.timestamp()
    try:
        expires = time_claim(claims, "exp") - moment
        issued_ago = moment - time_claim(claims, "iat", moment)
        valid_in = time_claim(claims, "nbf", moment) - moment
    except ValueError as error:
        raise contract.bad_field("subject_token", "has times that are not numbers") from error
    leeway = CLOCK_LEEWAY.total_seconds()
    if not expires > -leeway:
        raise contract.unauthenticated(
            "The subject token has expired. Sign a new one; one minute is enough."
            + (_behind(issued_ago, now) if issued_ago > leeway else "")
        )
    if issued_ago < -leeway or valid_in > leeway:
        raise contract.unauthenticated(
            f"The times of the subject token are {_minutes(max(-issued_ago, valid_in))} in the future."
            f" Set the clock of the machine that signed it: at the cloud it is {now:%Y-%m-%d %H:%M:%S} UTC."
        )
    if expires > MAX_SUBJECT_TOKEN_LIFETIME.total_seconds() + leeway:
        raise contract.unauthenticated(
            "The subject token is valid for more than an hour. Sign a shorter one."
        )


def _behind(seconds: float, now: datetime) -> str:
    """Return what to do if the token was signed right before the call."""
    return (
        f" If it is new, the clock of the machine that signed it is {_minutes(seconds)} behind the cloud's:"
        f" set it to {now:%Y-%m-%d %H:%M:%S} UTC."
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _not_signed(claimed: SubjectClaims) -> contract.ApiError:
    """Return the error. It has one text for every reason, so that no caller learns which keys and accounts
    exist."""
    return contract.unauthenticated(
        f"The subject token is not signed by an active key {claimed.key_id!r} of service account"
        f" {claimed.account_id!r}. Check the credentials file; the key may have been deleted."
    )


SUBJECT_IDENTIFIER_TYPE = "urn:nebius:params:oauth:token-type:subject_identifier"
JWT_TYPES = ("urn:ietf:params:oauth:token-type:id_token", "urn:ietf:params:oauth:token-type:jwt")
IMPERSONATION_LIFETIME = timedelta(minutes=15)
MAX_ACTOR_TOKEN_CHARS = 16384
METHOD = "nebius.iam.v1.TokenExchangeService/Exchange"


async def _exchange_by_actor(call: Call, request: ExchangeTokenRequest) -> AccessToken:
    if not request.actor_token or len(request.actor_token) > MAX_ACTOR_TOKEN_CHARS:
        raise contract.bad_field(
            "actor_token",
            "is required: the access token of the account that impersonates, or a workload's JWT",
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
    checked = await store.read(lambda tx: find_subject(tx, claims))
    if claims.expires_at <= now or checked is None or (checked.ends_at and checked.ends_at <= now):
        raise contract.unauthenticated("The actor token has expired or is no longer valid. Sign in again.")
    actor = checked.subject
    if claims.actor is not None:
        raise contract.permission_denied(
            "iam.serviceAccounts.impersonate",
            account_id,
            "An impersonated account cannot impersonate another. Use a token of your own.",
        )
    refusal = await store.write(lambda tx: _decide(tx, call, actor, account_id))
    if refusal is not None:
        raise refusal
    acting = Actor(actor.id, claims.credential_id)
    return await issue(store, now, account_id, "", lifetime=IMPERSONATION_LIFETIME, actor=acting)


def _decide(tx: Transaction, call: Call, actor: Subject, account_id: str) -> contract.ApiError | None:
    """Return why the actor may not impersonate the account, and record the decision. The refusal is the same
    as for an account that does not exist."""
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
    checked = await store.read(
        lambda tx: find_subject(tx, AccessClaims(account_id, credentials.id, now, now))
    )
    if checked is None:
        raise contract.unauthenticated(f"The workload token is not accepted for {account_id!r}.")
    await store.write(lambda tx: write_event(tx, call, METHOD, checked.subject, credentials.id))
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
