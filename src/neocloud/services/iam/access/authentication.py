"""Authentication: from an access token to a Subject.

A token's signature is checked once. Whether its account, and the key or session behind it, still exist is
read again when the last check is more than a second old, so a deleted key or a revoked session stops working
within a second, on every server. `find_subject` reads one consistent snapshot and nothing else.
"""

import json
from dataclasses import dataclass
from datetime import datetime

from cachetools import LRUCache, TTLCache
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.nebius.iam.v1 import AuthPublicKeySpec, FederatedCredentialsSpec
from neocloud.messages.neocloud.iam.v1 import SessionStatus
from neocloud.services.iam.access.account_keys import StaticKeys, is_static_token, key_id_in
from neocloud.services.iam.access.authorization import refused
from neocloud.services.iam.access.tokens import AccessClaims, Actor, find_signing_key, read_access_token
from neocloud.services.iam.access.users import is_usable, name_of
from neocloud.services.iam.types import (
    AUTH_PUBLIC_KEY,
    FEDERATED_CREDENTIALS,
    SERVICE_ACCOUNT,
    SESSION,
    TENANT_USER_ACCOUNT,
    State,
    tenant_of,
)

RECHECK_SECONDS = 1.0
MAX_CACHED = 10_000


class StoreAuthenticator:
    """The Authenticator of core, over the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._static_keys = StaticKeys(store, clock)
        self._key: Ed25519PrivateKey | None = None
        self._claims: LRUCache[str, AccessClaims] = LRUCache(MAX_CACHED)
        self._proven: TTLCache[AccessClaims, CheckedCredential] = TTLCache(
            MAX_CACHED, ttl=RECHECK_SECONDS, timer=clock.monotonic
        )

    async def authenticate(self, token: str) -> Subject:
        if is_static_token(token):
            return await self._static_keys.authenticate(token)
        claims = await self.claims_of(token)
        proven = self._proven.get(claims)
        if proven is None:
            proven = await self._store.read(lambda tx: find_subject(tx, claims))
            if proven is not None:
                self._proven[claims] = proven
        if proven is None or (proven.ends_at and self._clock.now() >= proven.ends_at):
            raise contract.unauthenticated(
                "The account behind this access token, or the key or session it was got with, was deleted,"
                " deactivated, revoked or has expired. Sign in again."
            )
        return proven.subject

    async def proof_of(self, token: str) -> str:
        """What a token stands on: the id of its static key, or its claims. Of use without the token."""
        if is_static_token(token):
            return json.dumps({"static": key_id_in(token)})
        claims = await self.claims_of(token)
        actor = [claims.actor.id, claims.actor.proof_id] if claims.actor else None
        issued_at = claims.issued_at.isoformat()
        return json.dumps({"of": claims.subject_id, "by": claims.proof_id, "at": issued_at, "actor": actor})

    async def authenticate_proof(self, proof: str) -> Subject:
        """Return the subject that a proof stands for. Raises ApiError once it was revoked.

        Work that was started with a token may outlive the token and a session that expired. The text must
        come from `proof_of`.
        """
        said = json.loads(proof)
        if "static" in said:
            return await self._static_keys.authenticate_key(said["static"])
        issued_at = datetime.fromisoformat(said["at"])
        actor = Actor(*said["actor"]) if said["actor"] else None
        claims = AccessClaims(said["of"], said["by"], issued_at, issued_at, actor)
        proven = await self._store.read(lambda tx: find_subject(tx, claims))
        is_over = proven is not None and proven.ends_at is not None and self._clock.now() >= proven.ends_at
        if proven is None or (is_over and proven.subject.kind != "user"):
            raise contract.unauthenticated(
                "The account, or the key or session that this was started with, was deleted, deactivated or"
                " revoked."
            )
        return proven.subject

    async def claims_of(self, token: str) -> AccessClaims:
        """What a token of this cloud says, as long as it has not expired."""
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
"""Secret of a service account: tokens that were issued until then are dead."""


@dataclass(frozen=True)
class CheckedCredential:
    """A subject, and when what proves it ends by itself."""

    subject: Subject
    ends_at: datetime | None = None


def find_subject(tx: Transaction, claims: AccessClaims) -> CheckedCredential | None:
    """Whom the claims stand for now, or None when they stand for nobody any more."""
    if claims.actor is None:
        return _checked_subject(tx, claims.subject_id, claims.proof_id, claims.issued_at)
    actor = _checked_subject(tx, claims.actor.id, claims.actor.proof_id, claims.issued_at)
    if actor is None or not may_impersonate(tx, actor.subject, claims.subject_id):
        return None
    account = _checked_subject(tx, claims.subject_id, claims.subject_id, claims.issued_at)
    if account is None:
        return None
    seen = account.subject
    subject = Subject(seen.id, seen.kind, seen.name, seen.tenant_id, impersonator_id=actor.subject.id)
    return CheckedCredential(subject, actor.ends_at)


def may_impersonate(tx: Transaction, actor: Subject, account_id: str) -> bool:
    """Only service accounts of the actor's own tenant that hold no more than the actor, and only with the
    permission on them."""
    row = tx.get(account_id)
    return (
        row is not None
        and row.kind == SERVICE_ACCOUNT
        and refused(tx, actor, IMPERSONATE, account_id) is None
    )


def _checked_subject(
    tx: Transaction, subject_id: str, proof_id: str, issued_at: datetime
) -> CheckedCredential | None:
    account, proof = tx.get(subject_id), tx.get(proof_id)
    if account is None or proof is None or account.deleted_at or proof.deleted_at:
        return None
    if account.kind == SERVICE_ACCOUNT:
        holds, ends_at = _proves_service_account(account, proof)
        revoked = tx.secret(account.id, REVOKED_BEFORE)
        holds = holds and not (revoked and issued_at <= datetime.fromisoformat(revoked.decode()))
        kind, name = "service_account", account.name
    elif account.kind == TENANT_USER_ACCOUNT and is_usable(tx, account):
        holds, ends_at = _proves_user(account, proof)
        kind, name = "user", name_of(tx, account)
    else:
        return None
    tenant_id = tenant_of(account.id, tx.get)
    if not holds or tenant_id is None:
        return None
    return CheckedCredential(Subject(account.id, kind, name, tenant_id), ends_at)


def _proves_service_account(account: Resource, proof: Resource) -> tuple[bool, datetime | None]:
    if proof.kind == AUTH_PUBLIC_KEY:
        spec = AuthPublicKeySpec.FromString(proof.spec)
        ends_at = contract.to_datetime(spec.expires_at) if spec.HasField("expires_at") else None
        return proof.owner_id == account.id and proof.state == State.ACTIVE, ends_at
    if proof.kind == FEDERATED_CREDENTIALS:
        return FederatedCredentialsSpec.FromString(proof.spec).subject_id == account.id, None
    return proof.id == account.id, None


def _proves_user(account: Resource, proof: Resource) -> tuple[bool, datetime | None]:
    if proof.kind != SESSION or proof.parent_id != account.id:
        return False, None
    return True, contract.to_datetime(SessionStatus.FromString(proof.status).expires_at)
