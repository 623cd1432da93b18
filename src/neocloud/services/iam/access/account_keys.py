"""Secrets of service account keys: tokens of static keys, and secrets of access keys.

A static key's token is long-lived, named by its key and stored as a hash. It starts with the id of its key,
so the key is found without a search. Its holder may do what the account may, within the service that it was
issued for. The secret of an access key is created when it is first requested and stored encrypted, not as a
hash: an S3 signature is checked by computing it again.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from cachetools import TTLCache

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.nebius.iam.v1 import StaticKeySpec
from neocloud.messages.nebius.iam.v2 import AccessKeySpec
from neocloud.services.iam.rules.keys import is_expired, key_id_of
from neocloud.services.iam.types import (
    ACCESS_KEY,
    SERVICE_ACCOUNT,
    STATIC_KEY,
    STATIC_KEY_ID_PREFIX,
    IamState,
    tenant_of,
)

TOKEN_PREFIX = "ncsk_"
RECHECK_SECONDS = 1.0
MAX_CACHED = 10_000
_TOKEN_HASH = "token-hash"
_TOKEN_BYTES = 32

ClientService = StaticKeySpec.ClientService
SCOPES: Mapping[int, tuple[str, ...]] = {
    ClientService.Value("OBSERVABILITY"): ("monitoring.*", "logging.*"),
    ClientService.Value("CONTAINER_REGISTRY"): ("registry.*",),
    ClientService.Value("AI_STUDIO"): ("ai.*", "inference.*", "tuning.*"),
    ClientService.Value("TRACTO"): ("tracto.*",),
    ClientService.Value("LINUX_IDENTITY"): ("linux.*",),
}
"""The permissions that a key for each client service can use."""


ACCESS_KEY_SCOPES = ("storage.*",)
"""The permissions that tokens of access keys can use."""
DATA_PLANE_SCOPES = (*ACCESS_KEY_SCOPES, "registry.images.*")
"""The scopes that access keys have at the object gateway."""


@dataclass(frozen=True)
class StaticKeySubject:
    subject: Subject
    expires_at: datetime | None


class StaticKeys:
    """Authenticates the tokens of static keys. A positive answer is cached for a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._found: TTLCache[str, StaticKeySubject] = TTLCache(
            MAX_CACHED, ttl=RECHECK_SECONDS, timer=clock.monotonic
        )

    async def authenticate(self, token: str) -> Subject:
        name = _hash(token).hex()
        found = self._found.get(name)
        if found is None:
            found = await self._store.read(lambda tx: _find_subject(tx, token))
            if found is not None:
                self._found[name] = found
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
    """Return a new token for the key. Only its hash is stored."""
    token = f"{TOKEN_PREFIX}{key_id}_{secrets.token_hex(_TOKEN_BYTES)}"
    tx.put_secret(key_id, _TOKEN_HASH, _hash(token))
    return token


def key_id_in(token: str) -> str:
    """Return the id of the key that the token names, checked or not; "" when it names none."""
    key_id = token.removeprefix(TOKEN_PREFIX).partition("_")[0] if is_static_token(token) else ""
    return key_id if contract.is_id(key_id) and contract.id_prefix(key_id) == STATIC_KEY_ID_PREFIX else ""


def find_static_key(tx: Transaction, token: str) -> Resource | None:
    """Return the key of the token, whose hash is checked; None when there is none."""
    row = tx.get(key_id_in(token))
    known = tx.secret(row.id, _TOKEN_HASH) if row is not None and row.kind == STATIC_KEY else None
    return row if known is not None and hmac.compare_digest(known, _hash(token)) else None


def _key(tx: Transaction, key_id: str) -> Resource | None:
    row = tx.get(key_id)
    return row if row is not None and row.kind == STATIC_KEY else None


def _find_subject(tx: Transaction, token: str) -> StaticKeySubject | None:
    return _subject_of(tx, find_static_key(tx, token))


def _subject_of(tx: Transaction, key: Resource | None) -> StaticKeySubject | None:
    if key is None or key.deleted_at or key.state != IamState.ACTIVE:
        return None
    account, tenant_id = tx.get(key.owner_id), tenant_of(key.owner_id, tx.get)
    if account is None or account.kind != SERVICE_ACCOUNT or account.deleted_at or tenant_id is None:
        return None
    spec = StaticKeySpec.FromString(key.spec)
    expires_at = contract.to_datetime(spec.expiresAt) if spec.HasField("expiresAt") else None
    subject = Subject(
        account.id, "service_account", account.name, tenant_id, scopes=SCOPES.get(spec.service, ())
    )
    return StaticKeySubject(subject, expires_at)


def _hash(token: str) -> bytes:
    """Hash a token. It is random and long, so a fast hash is as hard to reverse as a slow one."""
    return sha256(token.encode()).digest()


_SECRET = "secret"
_SECRET_SHOWN = "secret-shown"
_ACCESS_KEY_SECRET_BYTES = 30


@dataclass(frozen=True)
class SigningKey:
    """The key that a signed request is checked with. Its secret is never printed."""

    subject: Subject
    secret: str
    key: Resource
    project_id: str

    def __repr__(self) -> str:
        return f"SigningKey({self.subject.id})"


def ensure_secret(tx: Transaction, key_id: str) -> str:
    found = tx.secret(key_id, _SECRET)
    if found is None:
        found = secrets.token_urlsafe(_ACCESS_KEY_SECRET_BYTES).encode()
        tx.put_secret(key_id, _SECRET, found)
    return found.decode()


def show_secret_once(tx: Transaction, key_id: str) -> str:
    """Return the secret of a key. Raises ApiError when it was returned before."""
    if tx.secret(key_id, _SECRET_SHOWN) is not None:
        raise contract.bad_state(
            key_id, f"The secret of {key_id} was shown before and is not shown again. Create a new key."
        )
    tx.put_secret(key_id, _SECRET_SHOWN, b"1")
    return ensure_secret(tx, key_id)


def find_signing_key(tx: Transaction, aws_id: str, now: datetime) -> SigningKey | None:
    """Return the key that an S3 client names; None unless it is active, not expired, and has its account."""
    try:
        key = tx.get(key_id_of(aws_id))
    except contract.ApiError:
        return None
    if key is None or key.kind != ACCESS_KEY or not _is_usable(key, now):
        return None
    account, secret = tx.get(key.owner_id), tx.secret(key.id, _SECRET)
    tenant_id = tenant_of(key.owner_id, tx.get)
    is_usable = account is not None and account.kind == SERVICE_ACCOUNT and not account.deleted_at
    if account is None or not is_usable or secret is None or tenant_id is None:
        return None
    subject = Subject(account.id, "service_account", account.name, tenant_id, scopes=ACCESS_KEY_SCOPES)
    return SigningKey(subject, secret.decode(), key, account.parent_id)


def _is_usable(key: Resource, now: datetime) -> bool:
    spec = AccessKeySpec.FromString(key.spec)
    return key.state == IamState.ACTIVE and not key.deleted_at and not is_expired(spec, now)
