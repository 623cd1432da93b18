"""Static keys: long-lived tokens of a service account for one kind of client that cannot renew a token.

A key's token is shown once, when it is issued; the store has only its hash. The token names its key, so it is
found without a search. Who holds it may do what the account may, within the service that it was issued for.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.nebius.iam.v1 import StaticKeySpec
from neocloud.services.iam.access.recent import Recent
from neocloud.services.iam.resources import (
    SERVICE_ACCOUNT,
    STATIC_KEY,
    STATIC_KEY_ID_PREFIX,
    State,
    tenant_of,
)

TOKEN_PREFIX = "ncsk_"
LOOK_AGAIN_SECONDS = 1.0
_HASH = "token-hash"
_SECRET_BYTES = 32

ClientService = StaticKeySpec.ClientService
SCOPES: Mapping[int, tuple[str, ...]] = {
    ClientService.Value("OBSERVABILITY"): ("monitoring.*", "logging.*"),
    ClientService.Value("CONTAINER_REGISTRY"): ("registry.*",),
    ClientService.Value("AI_STUDIO"): ("ai.*", "inference.*", "tuning.*"),
    ClientService.Value("TRACTO"): ("tracto.*",),
    ClientService.Value("LINUX_IDENTITY"): ("linux.*",),
}
"""Which permissions a key of each client service can use at all."""


@dataclass(frozen=True)
class Found:
    subject: Subject
    expires_at: datetime | None


class StaticKeys:
    """Authenticates the tokens of static keys. A yes is believed for a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._found: Recent[str, Found] = Recent(clock, max_age_seconds=LOOK_AGAIN_SECONDS)

    async def authenticate(self, token: str) -> Subject:
        name = _hash(token).hex()
        found = self._found.get(name)
        if found is None:
            found = await self._store.read(lambda tx: _find_subject(tx, token))
            if found is not None:
                self._found.put(name, found)
        if found is None or (found.expires_at and found.expires_at <= self._clock.now()):
            raise contract.unauthenticated(
                "This static key was not issued by this cloud, was revoked or deleted, or has expired."
                " Issue another one."
            )
        return found.subject

    async def authenticate_key(self, key_id: str) -> Subject:
        """Return the subject of a key, by the key's id."""
        found = await self._store.read(lambda tx: _subject_of(tx, _key(tx, key_id)))
        if found is None or (found.expires_at and found.expires_at <= self._clock.now()):
            raise contract.unauthenticated("The static key was revoked or deleted, or has expired.")
        return found.subject


def is_static_token(token: str) -> bool:
    return token.startswith(TOKEN_PREFIX)


def new_token(tx: Transaction, key_id: str) -> str:
    """A token for the key; only its hash stays."""
    token = f"{TOKEN_PREFIX}{key_id}_{secrets.token_hex(_SECRET_BYTES)}"
    tx.put_secret(key_id, _HASH, _hash(token))
    return token


def key_id_in(token: str) -> str:
    """The id of the key that the token says it is of, true or not; "" when it says nothing of the kind."""
    key_id = token.removeprefix(TOKEN_PREFIX).partition("_")[0] if is_static_token(token) else ""
    return key_id if contract.is_id(key_id) and contract.id_prefix(key_id) == STATIC_KEY_ID_PREFIX else ""


def find_static_key(tx: Transaction, token: str) -> Resource | None:
    """The key that the token really is of."""
    row = tx.get(key_id_in(token))
    known = tx.secret(row.id, _HASH) if row is not None and row.kind == STATIC_KEY else None
    return row if known is not None and hmac.compare_digest(known, _hash(token)) else None


def _key(tx: Transaction, key_id: str) -> Resource | None:
    row = tx.get(key_id)
    return row if row is not None and row.kind == STATIC_KEY else None


def _find_subject(tx: Transaction, token: str) -> Found | None:
    return _subject_of(tx, find_static_key(tx, token))


def _subject_of(tx: Transaction, key: Resource | None) -> Found | None:
    if key is None or key.deleted_at or key.state != State.ACTIVE:
        return None
    account, tenant_id = tx.get(key.owner_id), tenant_of(key.owner_id, tx.get)
    if account is None or account.kind != SERVICE_ACCOUNT or account.deleted_at or tenant_id is None:
        return None
    spec = StaticKeySpec.FromString(key.spec)
    expires_at = contract.to_datetime(spec.expiresAt) if spec.HasField("expiresAt") else None
    subject = Subject(
        account.id, "service_account", account.name, tenant_id, scopes=SCOPES.get(spec.service, ())
    )
    return Found(subject, expires_at)


def _hash(token: str) -> bytes:
    """The token is random and long: a plain hash is as hard to turn round as a slow one."""
    return sha256(token.encode()).digest()
