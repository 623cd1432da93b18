"""The first tenant of a cloud: created once, and found at every later start.

`bootstrap` creates a tenant with its groups, a default project, and a service account for the operator of the
cloud. It returns the private key and stores it nowhere: when the credentials file is lost, a new key replaces
the old one.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from neocloud.core.clock import Clock
from neocloud.core.json_values import as_object
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.nebius.iam.v1 import AuthPublicKeySpec
from neocloud.services.iam.access.tokens import ensure_signing_key
from neocloud.services.iam.defaults import (
    TENANT_NAME,
    TenantDefaults,
    add_operator_key,
    ensure_defaults,
    find_defaults,
    find_misplaced_operator,
    move_operator,
)
from neocloud.services.iam.rules.accounts import DEFAULT_REGION
from neocloud.services.iam.types import AUTH_PUBLIC_KEY, IamState

logger = logging.getLogger(__name__)

RSA_BITS = 2048
CREDENTIALS = "subject-credentials"
Credentials = Mapping[str, Mapping[str, str]]
"""The published SDKs' credentials file: {"subject-credentials": {alg, private-key, kid, iss, sub}}."""


@dataclass(frozen=True)
class Bootstrap:
    tenant_id: str
    project_id: str
    service_account_id: str
    credentials: Credentials

    def __repr__(self) -> str:
        return f"Bootstrap({self.tenant_id}, {self.project_id}, {self.service_account_id})"


def make_rsa_key() -> RSAPrivateKey:
    return generate_private_key(public_exponent=65537, key_size=RSA_BITS)


async def bootstrap(
    store: Store,
    clock: Clock,
    *,
    tenant_name: str = TENANT_NAME,
    region: str = DEFAULT_REGION,
    held_credentials: Mapping[str, object] | None = None,
    make_key: Callable[[], RSAPrivateKey] = make_rsa_key,
) -> Bootstrap:
    """Ensure that the tenant exists, and return it with credentials. Idempotent. `held_credentials` are
    returned unchanged while they are valid for this tenant."""
    await _repair(store, tenant_name, region, held_credentials)
    held = await store.read(lambda tx: _still_valid(tx, tenant_name, region, held_credentials))
    if held is not None:
        return held
    private_key = await asyncio.to_thread(make_key)

    def create(tx: Transaction) -> Bootstrap:
        ensure_signing_key(tx)
        rows = ensure_defaults(tx, tenant_name, region, clock.now())
        key = add_operator_key(tx, rows, _public_pem(private_key), clock.now())
        return _result(rows, _credentials(private_key, key))

    return await store.write(create)


async def _repair(store: Store, tenant_name: str, region: str, held: Mapping[str, object] | None) -> None:
    """Move an operator's account that an earlier release created in the first project. Idempotent."""
    subject = _subject_of(held)
    held_id = subject.get("sub", "")

    def find(tx: Transaction) -> Resource | None:
        return find_misplaced_operator(tx, tenant_name, region, held_id)

    def move(tx: Transaction) -> list[str]:
        account = find(tx)
        return move_operator(tx, account) if account is not None else []

    if await store.read(find) is not None:
        others = await store.write(move)
        logger.warning("moved the operator's account out of the first project, into the tenant")
        if others:
            logger.warning(
                "the operator's account has keys that `neo up` did not create; delete the unknown ones: %s",
                ", ".join(others),
            )


def _subject_of(held: Mapping[str, object] | None) -> Mapping[str, str]:
    """Return the subject in a credentials file; empty when it has none."""
    subject = as_object(held.get(CREDENTIALS) if held else None)
    return {name: str(value) for name, value in subject.items()}


def _still_valid(
    tx: Transaction, tenant_name: str, region: str, held: Mapping[str, object] | None
) -> Bootstrap | None:
    rows = find_defaults(tx, tenant_name, region)
    subject = _subject_of(held)
    if rows is None:
        return None
    key = tx.get(subject.get("kid", ""))
    if key is None or key.kind != AUTH_PUBLIC_KEY or key.state != IamState.ACTIVE:
        return None
    if not key.owner_id == rows.service_account.id == subject.get("iss") == subject.get("sub"):
        return None
    if AuthPublicKeySpec.FromString(key.spec).data != _public_half(subject.get("private-key", "")):
        return None
    return _result(rows, {CREDENTIALS: subject})


def _result(rows: TenantDefaults, credentials: Credentials) -> Bootstrap:
    return Bootstrap(rows.tenant.id, rows.project.id, rows.service_account.id, credentials)


def _credentials(private_key: RSAPrivateKey, key: Resource) -> Credentials:
    pem = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return {
        CREDENTIALS: {
            "type": "JWT",
            "alg": "RS256",
            "private-key": pem.decode(),
            "kid": key.id,
            "iss": key.owner_id,
            "sub": key.owner_id,
        }
    }


def _public_pem(private_key: PrivateKeyTypes) -> str:
    pem = private_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()


def _public_half(private_pem: str) -> str | None:
    try:
        return _public_pem(load_pem_private_key(private_pem.encode(), password=None))
    except (ValueError, TypeError):
        return None
