"""Rules of the keys of service accounts: public keys, ids of access keys, and expiry.

An access key has two names: the cloud's own id, and the access key id that S3 clients send. Each follows from
the other, so a signed request finds its key without an index.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from neocloud.core import contract, wire
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.group_commit import refuse_while_writing
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import (
    AuthPublicKey,
    AuthPublicKeySpec,
    AuthPublicKeyStatus,
    CreateAuthPublicKeyRequest,
    IssueStaticKeyRequest,
    StaticKey,
    StaticKeySpec,
    UpdateAuthPublicKeyRequest,
)
from neocloud.messages.nebius.iam.v2 import AccessKey, AccessKeySpec, AccessKeyStatus
from neocloud.messages.nebius.iam.v2 import SecretDeliveryMode as DeliveryMode
from neocloud.services.iam.rules.grants import refuse_mightier
from neocloud.services.iam.types import ACCESS_KEY_ID_PREFIX, SERVICE_ACCOUNT, IamState

_AWS_PREFIX = "NCAK"
_AWS_ID = re.compile(rf"{_AWS_PREFIX}([A-Z0-9]{{13,75}})")


def aws_access_key_id(key_id: str) -> str:
    """ "accesskey-e00k3v..." is NCAKE00K3V..."""
    return _AWS_PREFIX + key_id.removeprefix(f"{ACCESS_KEY_ID_PREFIX}-").upper()


def key_id_of(aws_id: str) -> str:
    """Return the id of the key that S3 clients call by this name. Raises ApiError when no key can have it."""
    if not aws_id:
        raise contract.bad_field("aws_access_key_id", "is required")
    found = _AWS_ID.fullmatch(aws_id)
    if found is None:
        raise contract.not_found("access key", aws_id)
    return f"{ACCESS_KEY_ID_PREFIX}-{found[1].lower()}"


ServiceAccountKey = AuthPublicKey | AccessKey | StaticKey
"""The three kinds of keys that service accounts have."""
KeySpec = AuthPublicKeySpec | AccessKeySpec | StaticKeySpec
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
SigningPublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

ACCEPTED = f"an RSA key of {MIN_RSA_BITS} bits or more (RS256), a P-256 key (ES256) or an Ed25519 key (EdDSA)"


class PublicKeyError(ValueError):
    """Says why a text is not an accepted key, as a part of a sentence for its sender."""


@dataclass(frozen=True)
class PublicKey:
    key: SigningPublicKey
    algorithm: str
    """The only JWT algorithm that this key may be used with; a token does not choose it."""
    bits: int
    fingerprint: str
    """SHA-256 of the DER form, in hex."""


def read_public_key(pem: str) -> PublicKey:
    """Return the key in a PEM text. Raises PublicKeyError. Must not run in a write transaction."""
    refuse_while_writing("Reading a public key")
    if "PRIVATE KEY" in pem:
        raise PublicKeyError(
            "is a private key. Create a new key pair, because this one has left your machine, and send"
            " only its public key (openssl pkey -in key.pem -pubout)"
        )
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PublicKeyError(f"is not a public key in PEM form; send {ACCEPTED}") from error
    algorithm, bits = _algorithm(key)
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(key, algorithm, bits, sha256(der).hexdigest())  # pyright: ignore[reportArgumentType]


def _algorithm(key: object) -> tuple[str, int]:
    if isinstance(key, RSAPublicKey):
        if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            raise PublicKeyError(
                f"is an RSA key of {key.key_size} bits; use {MIN_RSA_BITS} to {MAX_RSA_BITS} bits"
            )
        return "RS256", key.key_size
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return "ES256", key.key_size
    if isinstance(key, Ed25519PublicKey):
        return "EdDSA", 256
    raise PublicKeyError(f"is a key of a kind that is not accepted; send {ACCEPTED}")


KeyState = AuthPublicKeyStatus.State


class AuthPublicKeyRules(Rules[AuthPublicKey]):
    def quota_demand(self, resource: AuthPublicKey) -> Mapping[str, int]:
        return {"iam.auth-public-key.count": 1}

    def defaults(self, resource: AuthPublicKey) -> None:
        status = resource.status
        if not status.state:
            status.state = KeyState.Value(IamState.ACTIVE)
        is_read = bool(status.fingerprint) or not resource.spec.data
        key = None if is_read else _read(resource.spec.data)
        if isinstance(key, PublicKey):
            status.fingerprint, status.algorithm, status.key_size = key.fingerprint, key.algorithm, key.bits

    def owner_id(self, resource: AuthPublicKey) -> str:
        return resource.spec.account.service_account.id

    def request_violations(
        self, request: CreateAuthPublicKeyRequest | UpdateAuthPublicKeyRequest
    ) -> Iterable[Violation]:
        is_kept = bool(request.metadata.id) and not request.spec.data
        key = None if is_kept else _read(request.spec.data)
        if isinstance(key, PublicKeyError):
            yield Violation("spec.data", str(key))

    def violations(
        self, new: AuthPublicKey, old: AuthPublicKey | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None:
            return
        yield from account_violations(new, reader.get)
        refuse_mightier("iam.authPublicKeys.create", self.owner_id(new), reader)
        yield from expiry_violations(new, "expires_at", reader.now)


def _read(pem: str) -> PublicKey | PublicKeyError:
    try:
        return read_public_key(pem)
    except PublicKeyError as error:
        return error


class AccessKeyRules(Rules[AccessKey]):
    """Keys for the S3 protocol."""

    def defaults(self, resource: AccessKey) -> None:
        if not resource.status.state:
            resource.status.state = AccessKeyStatus.State.Value(IamState.ACTIVE)
        resource.status.aws_access_key_id = aws_access_key_id(resource.metadata.id)

    def owner_id(self, resource: AccessKey) -> str:
        return resource.spec.account.service_account.id

    def violations(
        self, new: AccessKey, old: AccessKey | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None:
            return
        if new.spec.secret_delivery_mode == DeliveryMode.Value("MYSTERY_BOX"):
            raise contract.ApiError(
                contract.Code.UNIMPLEMENTED,
                "This cloud has no MysteryBox. Set spec.secret_delivery_mode to EXPLICIT and fetch the secret"
                " with GetSecret.",
            )
        yield from account_violations(new, reader.get)
        refuse_mightier("iam.accessKeys.create", self.owner_id(new), reader)
        yield from expiry_violations(new, "expires_at", reader.now)


def account_violations(
    key: ServiceAccountKey | IssueStaticKeyRequest, get: Callable[[str], Resource | None]
) -> Iterable[Violation]:
    """Require that a key is in the project of its account. Otherwise a caller who may create keys in one
    project could act as the accounts of another."""
    account_id = key.spec.account.service_account.id
    account = get(account_id) if account_id else None
    if account is None or account.kind != SERVICE_ACCOUNT or account.parent_id != key.metadata.parent_id:
        yield Violation(
            "spec.account.service_account.id", f'"{account_id}" is not a service account of this project'
        )


def expiry_violations(
    new: ServiceAccountKey | IssueStaticKeyRequest, field: str, now: datetime
) -> Iterable[Violation]:
    if is_expired(new.spec, now, field):
        yield Violation(
            f"spec.{field}",
            "is in the past; set a later time, or none for a key that does not expire",
        )


def is_expired(spec: KeySpec, now: datetime, field: str = "expires_at") -> bool:
    return spec.HasField(field) and contract.to_datetime(getattr(spec, field)) <= now


def show_expiry(key: AuthPublicKey | AccessKey, now: datetime) -> None:
    """Set the state of an expired key in its message. The stored row does not change when a key expires."""
    if is_expired(key.spec, now):
        if isinstance(key, AccessKey):
            key.status.state = AccessKeyStatus.State.Value("EXPIRED")
        else:
            key.status.state = KeyState.Value("EXPIRED")


def view_key(key: AuthPublicKey | AccessKey, tx: Transaction, now: datetime) -> None:
    show_expiry(key, now)


def view_static_key(key: StaticKey, tx: Transaction, now: datetime) -> None:
    if is_expired(key.spec, now, "expiresAt"):
        key.status.active = False


def set_state(row: Resource, state: IamState) -> bytes:
    """Return the key's status with another state."""
    return wire.with_state(row.kind, row.status, state)
