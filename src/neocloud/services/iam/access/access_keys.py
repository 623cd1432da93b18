"""The secrets of access keys: made when first asked for, kept encrypted, read to check S3 signatures.

They cannot be kept as hashes: a signature is checked by making it again.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v2 import AccessKeySpec
from neocloud.services.iam.resources import ACCESS_KEY, SERVICE_ACCOUNT, State, tenant_of
from neocloud.services.iam.rules.access_key_id import key_id_of
from neocloud.services.iam.rules.keys import is_expired

_SECRET = "secret"
_SHOWN = "secret-shown"
_SECRET_BYTES = 30


@dataclass(frozen=True)
class SigningKey:
    """What a signed request is checked with. Never printed."""

    subject: Subject
    secret: str

    def __repr__(self) -> str:
        return f"SigningKey({self.subject.id})"


def ensure_secret(tx: Transaction, key_id: str) -> str:
    found = tx.secret(key_id, _SECRET)
    if found is None:
        found = secrets.token_urlsafe(_SECRET_BYTES).encode()
        tx.put_secret(key_id, _SECRET, found)
    return found.decode()


def show_secret_once(tx: Transaction, key_id: str) -> str:
    """Raises ApiError when it was shown before."""
    if tx.secret(key_id, _SHOWN) is not None:
        raise contract.bad_state(
            key_id, f"The secret of {key_id} was shown before and is not shown again. Make a new key."
        )
    tx.put_secret(key_id, _SHOWN, b"1")
    return ensure_secret(tx, key_id)


def find_signing_key(tx: Transaction, aws_id: str, now: datetime) -> SigningKey | None:
    """The key that an S3 client names, while it is active, not expired, and its account is there."""
    try:
        key = tx.get(key_id_of(aws_id))
    except contract.ApiError:
        return None
    if key is None or key.kind != ACCESS_KEY or not _is_usable(key, now):
        return None
    account, secret = tx.get(key.owner_id), tx.secret(key.id, _SECRET)
    tenant_id = tenant_of(key.owner_id, tx.get)
    if account is None or account.kind != SERVICE_ACCOUNT or secret is None or tenant_id is None:
        return None
    subject = Subject(account.id, "service_account", account.name, tenant_id)
    return SigningKey(subject, secret.decode())


def _is_usable(key: Resource, now: datetime) -> bool:
    spec = AccessKeySpec.FromString(key.spec)
    return key.state == State.ACTIVE and not key.deleted_at and not is_expired(spec, now)
