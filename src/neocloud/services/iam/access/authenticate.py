"""Who calls: from an access token to a Subject.

A token's signature is checked once. That its service account and key are still there is read again when the
last look is more than a second old, so a deleted key stops working within a second, on every server.
"""

from dataclasses import dataclass
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.service import Subject
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.access.recent import Recent
from neocloud.services.iam.access.tokens import AccessClaims, find_signing_key, read_access_token
from neocloud.services.iam.resources import (
    AUTH_PUBLIC_KEY,
    SERVICE_ACCOUNT,
    AuthPublicKeySpec,
    State,
    tenant_of,
)

LOOK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Account:
    """A service account as one of its keys proves it."""

    subject: Subject
    key_expires_at: datetime | None


class StoreAuthenticator:
    """The Authenticator of core, over the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._key: Ed25519PrivateKey | None = None
        self._claims: Recent[str, AccessClaims] = Recent(clock)
        self._accounts: Recent[AccessClaims, Account] = Recent(clock, max_age_seconds=LOOK_AGAIN_SECONDS)

    async def authenticate(self, token: str) -> Subject:
        claims = self._claims.get(token)
        if claims is None:
            claims = read_access_token(token, await self._signing_key())
            self._claims.put(token, claims)
        now = self._clock.now()
        if now >= claims.expires_at:
            raise contract.unauthenticated(
                f"The access token expired at {claims.expires_at:%Y-%m-%d %H:%M:%S} UTC. "
                "Exchange your service account key for a new one."
            )
        account = self._accounts.get(claims)
        if account is None:
            account = await self._store.read(lambda tx: find_account(tx, claims))
            if account is not None:
                self._accounts.put(claims, account)
        if account is None or (account.key_expires_at and now >= account.key_expires_at):
            raise contract.unauthenticated(
                "The service account behind this access token, or its key, was deleted, deactivated or has"
                " expired. Sign in with another key."
            )
        return account.subject

    async def _signing_key(self) -> Ed25519PrivateKey:
        if self._key is None:
            self._key = await self._store.read(find_signing_key)
        if self._key is None:
            raise contract.unauthenticated("This cloud has not issued any access token yet. Run `neo up`.")
        return self._key


def find_account(tx: Transaction, claims: AccessClaims) -> Account | None:
    """The live service account with this active key, or None."""
    account, key = tx.get(claims.service_account_id), tx.get(claims.public_key_id)
    if account is None or account.kind != SERVICE_ACCOUNT or account.deleted_at:
        return None
    if key is None or key.kind != AUTH_PUBLIC_KEY or key.owner_id != account.id:
        return None
    if key.deleted_at or key.state != State.ACTIVE:
        return None
    tenant_id = tenant_of(account.id, tx.get)
    if tenant_id is None:
        return None
    spec = AuthPublicKeySpec.FromString(key.spec)
    expires_at = contract.to_datetime(spec.expires_at) if spec.HasField("expires_at") else None
    return Account(Subject(account.id, "service_account", account.name, tenant_id), expires_at)
