"""Authentication: from an access token to a Subject.

The signature of a token is checked once. Its account, and the credential behind it (a key or a session), are
read again when the last check is more than a second old, so a deleted key or a revoked session stops working
within a second, on every server. `find_subject` reads one consistent snapshot and nothing else. A proof is a
text that names the account and the credential of a token, for work that outlives the token.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cachetools import LRUCache, TTLCache
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.nebius.iam.v1 import AuthPublicKeySpec, FederatedCredentialsSpec
from neocloud.messages.nebius.iam.v2 import AccessKeySpec
from neocloud.messages.neocloud.iam.v1 import SessionStatus
from neocloud.services.iam.access.account_keys import (
    ACCESS_KEY_SCOPES,
    DATA_PLANE_SCOPES,
    StaticKeys,
    is_static_token,
    key_id_in,
)
from neocloud.services.iam.access.authorization import refused
from neocloud.services.iam.access.tokens import AccessClaims, Actor, find_signing_key, read_access_token
from neocloud.services.iam.access.users import is_usable, name_of
from neocloud.services.iam.types import (
    ACCESS_KEY,
    AUTH_PUBLIC_KEY,
    FEDERATED_CREDENTIALS,
    SERVICE_ACCOUNT,
    SESSION,
    TENANT_USER_ACCOUNT,
    IamState,
    tenant_of,
)

RECHECK_SECONDS = 1.0
MAX_CACHED = 10_000
LONGEST_RENEWAL = timedelta(hours=1)
"""After it, a caller shows its token again."""


class StoreAuthenticator:
    """The Authenticator of core, over the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._static_keys = StaticKeys(store, clock)
        self._key: Ed25519PrivateKey | None = None
        self._claims: LRUCache[str, AccessClaims] = LRUCache(MAX_CACHED)
        self._checked: TTLCache[AccessClaims, CheckedCredential] = TTLCache(
            MAX_CACHED, ttl=RECHECK_SECONDS, timer=clock.monotonic
        )

    async def authenticate(self, token: str) -> Subject:
        if is_static_token(token):
            return await self._static_keys.authenticate(token)
        claims = await self.claims_of(token)
        checked = self._checked.get(claims)
        if checked is None:
            checked = await self._store.read(lambda tx: find_subject(tx, claims))
            if checked is not None:
                self._checked[claims] = checked
        if checked is None or (checked.ends_at and self._clock.now() >= checked.ends_at):
            raise contract.unauthenticated(
                "The account of this access token, or the key or session behind it, was deleted, deactivated"
                " or revoked, or has expired. Sign in again."
            )
        return checked.subject

    async def proof_of(self, token: str) -> str:
        """Return the proof of a token: the id of its static key, or its claims."""
        if is_static_token(token):
            return json.dumps({"static": key_id_in(token)})
        claims = await self.claims_of(token)
        actor = [claims.actor.id, claims.actor.credential_id] if claims.actor else None
        issued_at = claims.issued_at.isoformat()
        return json.dumps(
            {
                **{"of": claims.subject_id, "by": claims.credential_id, "at": issued_at, "actor": actor},
                "scopes": claims.scopes,
            }
        )

    async def proof_holds_until(self, token: str) -> datetime:
        """Return until when the proof of a valid token is valid only while the token is: its end, at most an
        hour from now. The proof of a static key ends with the key."""
        longest = self._clock.now() + LONGEST_RENEWAL
        if is_static_token(token):
            return longest
        claims = await self.claims_of(token)
        checked = await self._store.read(lambda tx: find_subject(tx, claims))
        return min(longest, claims.expires_at, (checked and checked.ends_at) or longest)

    async def authenticate_proof(self, proof: str) -> Subject:
        """Return the subject of a proof. Raises ApiError once its credential was revoked.

        Work that was started with a token may outlive the token and a session that expired. The text must
        come from `proof_of`.
        """
        stated = json.loads(proof)
        if "static" in stated:
            return await self._static_keys.authenticate_key(stated["static"])
        issued_at = datetime.fromisoformat(stated["at"])
        actor = Actor(*stated["actor"]) if stated["actor"] else None
        scopes = tuple(stated.get("scopes", ()))
        claims = AccessClaims(stated["of"], stated["by"], issued_at, issued_at, actor, scopes)
        checked = await self._store.read(lambda tx: find_subject(tx, claims))
        is_over = checked is not None and checked.ends_at is not None and self._clock.now() >= checked.ends_at
        if checked is None or (is_over and checked.subject.kind != "user"):
            raise contract.unauthenticated(
                "The account that started this, or its key or session, was deleted, deactivated or revoked."
            )
        return checked.subject

    async def claims_of(self, token: str) -> AccessClaims:
        """Return the claims of a token of this cloud. Raises ApiError when it has expired."""
        claims = self._claims.get(token)
        if claims is None:
            claims = read_access_token(token, await self._signing_key())
            self._claims[token] = claims
        if self._clock.now() >= claims.expires_at:
            raise contract.unauthenticated(
                f"The access token expired at {claims.expires_at:%Y-%m-%d %H:%M:%S} UTC. "
                "Sign in again, or exchange your service account key for a new one."
            )
        return claims

    async def _signing_key(self) -> Ed25519PrivateKey:
        if self._key is None:
            self._key = await self._store.read(find_signing_key)
        if self._key is None:
            raise contract.unauthenticated("This cloud has not issued any access token yet. Run `neo up`.")
        return self._key


IMPERSONATE = "iam.serviceAccounts.impersonate"
REVOKED_BEFORE = "tokens-revoked-before"
"""Secret of a service account: a time. Tokens issued until then are invalid."""


@dataclass(frozen=True)
class CheckedCredential:
    """A subject, and when its credential expires."""

    subject: Subject
    ends_at: datetime | None = None


def find_subject(tx: Transaction, claims: AccessClaims) -> CheckedCredential | None:
    """Return the subject of the claims; None when they are no longer valid."""
    found = _find_whole_subject(tx, claims)
    if found is None or not claims.scopes:
        return found
    return replace(found, subject=replace(found.subject, scopes=claims.scopes))


def _find_whole_subject(tx: Transaction, claims: AccessClaims) -> CheckedCredential | None:
    if claims.actor is None:
        return _checked_subject(tx, claims.subject_id, claims.credential_id, claims.issued_at)
    actor = _checked_subject(tx, claims.actor.id, claims.actor.credential_id, claims.issued_at)
    if actor is None or not may_impersonate(tx, actor.subject, claims.subject_id):
        return None
    account = _checked_subject(tx, claims.subject_id, claims.subject_id, claims.issued_at)
    if account is None:
        return None
    return CheckedCredential(replace(account.subject, impersonator_id=actor.subject.id), actor.ends_at)


def may_impersonate(tx: Transaction, actor: Subject, account_id: str) -> bool:
    """Return whether the actor may act as the account: a service account of the actor's own tenant that holds
    no more than the actor, and on which the actor has the permission."""
    row = tx.get(account_id)
    return (
        row is not None
        and row.kind == SERVICE_ACCOUNT
        and refused(tx, actor, IMPERSONATE, account_id) is None
    )


def _checked_subject(
    tx: Transaction, subject_id: str, credential_id: str, issued_at: datetime
) -> CheckedCredential | None:
    account, credential = tx.get(subject_id), tx.get(credential_id)
    if account is None or credential is None or account.deleted_at or credential.deleted_at:
        return None
    if account.kind == SERVICE_ACCOUNT:
        holds, ends_at = _check_service_account(account, credential)
        revoked = tx.secret(account.id, REVOKED_BEFORE)
        holds = holds and not (revoked and issued_at <= datetime.fromisoformat(revoked.decode()))
        kind, name = "service_account", account.name
    elif account.kind == TENANT_USER_ACCOUNT and is_usable(tx, account):
        holds, ends_at = _check_user(account, credential)
        kind, name = "user", name_of(tx, account)
    else:
        return None
    tenant_id = tenant_of(account.id, tx.get)
    if not holds or tenant_id is None:
        return None
    scopes = ACCESS_KEY_SCOPES if credential.kind == ACCESS_KEY else None
    return CheckedCredential(Subject(account.id, kind, name, tenant_id, scopes=scopes), ends_at)


def find_account(tx: Transaction, account_id: str) -> Subject | None:
    """Return an account that may act now, whatever its credentials, for the storage of objects and images."""
    account, tenant_id = tx.get(account_id), tenant_of(account_id, tx.get)
    if account is None or account.deleted_at or not tenant_id:
        return None
    is_service_account = account.kind == SERVICE_ACCOUNT
    if not is_service_account and not is_usable(tx, account):
        return None
    kind = "service_account" if is_service_account else "user"
    return Subject(account.id, kind, account.name, tenant_id, scopes=DATA_PLANE_SCOPES)


def _check_service_account(account: Resource, credential: Resource) -> tuple[bool, datetime | None]:
    """Return whether it is a valid credential of the account, and when it expires."""
    if credential.kind == AUTH_PUBLIC_KEY:
        spec = AuthPublicKeySpec.FromString(credential.spec)
        ends_at = contract.to_datetime(spec.expires_at) if spec.HasField("expires_at") else None
        return credential.owner_id == account.id and credential.state == IamState.ACTIVE, ends_at
    if credential.kind == ACCESS_KEY:
        access_key = AccessKeySpec.FromString(credential.spec)
        ends_at = contract.to_datetime(access_key.expires_at) if access_key.HasField("expires_at") else None
        return credential.owner_id == account.id and credential.state == IamState.ACTIVE, ends_at
    if credential.kind == FEDERATED_CREDENTIALS:
        return FederatedCredentialsSpec.FromString(credential.spec).subject_id == account.id, None
    return credential.id == account.id, None


def _check_user(account: Resource, credential: Resource) -> tuple[bool, datetime | None]:
    if credential.kind != SESSION or credential.parent_id != account.id:
        return False, None
    return True, contract.to_datetime(SessionStatus.FromString(credential.status).expires_at)
