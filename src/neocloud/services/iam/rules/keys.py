"""Rules of the keys of service accounts: public keys, ids of access keys, and expiry.

An access key has two names: the cloud's own id, and the access key id that S3 clients send. Each follows from
the other, so a signed request finds its key without an index.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from neocloud.core import contract, wire
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.core.store.writing import refuse_while_writing
from neocloud.messages.nebius.iam.v1 import AuthPublicKeyStatus
from neocloud.messages.nebius.iam.v2 import SecretDeliveryMode as DeliveryMode
from neocloud.services.iam.rules.grants import refuse_mightier
from neocloud.services.iam.types import ACCESS_KEY_ID_PREFIX, SERVICE_ACCOUNT, State

_AWS_PREFIX = "NCAK"
_AWS_ID = re.compile(rf"{_AWS_PREFIX}([A-Z0-9]{{13,75}})")


def aws_access_key_id(key_id: str) -> str:
    """ "accesskey-e00k3v..." is NCAKE00K3V..."""
    return _AWS_PREFIX + key_id.removeprefix(f"{ACCESS_KEY_ID_PREFIX}-").upper()


def key_id_of(aws_id: str) -> str:
    """The id of the key that S3 clients call so. Raises ApiError when no key can have this name."""
    if not aws_id:
        raise contract.bad_field("aws_access_key_id", "is required")
    found = _AWS_ID.fullmatch(aws_id)
    if found is None:
        raise contract.not_found("access key", aws_id)
    return f"{ACCESS_KEY_ID_PREFIX}-{found[1].lower()}"


MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
SigningPublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

ACCEPTED = f"an RSA key of {MIN_RSA_BITS} bits or more (RS256), a P-256 key (ES256) or an Ed25519 key (EdDSA)"


class PublicKeyError(ValueError):
    """Why the text is no key we take; words for the person who sent it."""


@dataclass(frozen=True)
class PublicKey:
    key: SigningPublicKey
    algorithm: str
    """The one JWT algorithm this key may be used with; a token never chooses."""
    bits: int
    fingerprint: str
    """SHA-256 of the DER form, in hex."""


def read_public_key(pem: str) -> PublicKey:
    """Raises PublicKeyError. Not for the write transaction."""
    refuse_while_writing("Reading a public key")
    if "PRIVATE KEY" in pem:
        raise PublicKeyError(
            "is a private key. Send only the public half (openssl pkey -in key.pem -pubout) and make a new"
            " pair: this one has travelled"
        )
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PublicKeyError(f"is no public key in PEM form; send {ACCEPTED}") from error
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
    raise PublicKeyError(f"is of a kind that is not taken; send {ACCEPTED}")


EXPIRED = "EXPIRED"
KeyState = AuthPublicKeyStatus.State


class AuthPublicKeyRules(Rules):
    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"iam.auth-public-key.count": 1}

    def defaults(self, resource: Any) -> None:
        status = resource.status
        if not status.state:
            status.state = KeyState.Value(State.ACTIVE)
        is_read = bool(status.fingerprint) or not resource.spec.data
        key = None if is_read else _read(resource.spec.data)
        if isinstance(key, PublicKey):
            status.fingerprint, status.algorithm, status.key_size = key.fingerprint, key.algorithm, key.bits

    def owner_id(self, resource: Any) -> str:
        return resource.spec.account.service_account.id

    def request_violations(self, request: Any) -> Iterable[Violation]:
        is_kept = bool(request.metadata.id) and not request.spec.data
        key = None if is_kept else _read(request.spec.data)
        if isinstance(key, PublicKeyError):
            yield Violation("spec.data", str(key))

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is not None:
            return
        yield from account_problem(new, reader.get)
        refuse_mightier("iam.authPublicKeys.create", self.owner_id(new), reader)
        yield from expiry_violations(new, "expires_at", reader.now)


def _read(pem: str) -> PublicKey | PublicKeyError:
    try:
        return read_public_key(pem)
    except PublicKeyError as error:
        return error


class AccessKeyRules(Rules):
    """Keys for the S3 protocol."""

    def defaults(self, resource: Any) -> None:
        if not resource.status.state:
            resource.status.state = _states(resource)[State.ACTIVE].number
        resource.status.aws_access_key_id = aws_access_key_id(resource.metadata.id)

    def owner_id(self, resource: Any) -> str:
        return resource.spec.account.service_account.id

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is not None:
            return
        if new.spec.secret_delivery_mode == DeliveryMode.Value("MYSTERY_BOX"):
            raise contract.ApiError(
                contract.Code.UNIMPLEMENTED,
                "This cloud has no MysteryBox. Set spec.secret_delivery_mode to EXPLICIT and fetch the secret"
                " with GetSecret.",
            )
        yield from account_problem(new, reader.get)
        refuse_mightier("iam.accessKeys.create", self.owner_id(new), reader)
        yield from expiry_violations(new, "expires_at", reader.now)


def account_problem(key: Any, get: Callable[[str], Resource | None]) -> Iterable[Violation]:
    """A key lies in the project of its account: else who may make keys in one project could act as the
    accounts of another."""
    account_id = key.spec.account.service_account.id
    account = get(account_id) if account_id else None
    if account is None or account.kind != SERVICE_ACCOUNT or account.parent_id != key.metadata.parent_id:
        yield Violation(
            "spec.account.service_account.id", f'"{account_id}" is no service account of this project'
        )


def expiry_violations(new: Any, field: str, now: datetime) -> Iterable[Violation]:
    if is_expired(new.spec, now, field):
        yield Violation(f"spec.{field}", "lies in the past; give a later time, or none to keep it for good")


def is_expired(spec: Any, now: datetime, field: str = "expires_at") -> bool:
    return spec.HasField(field) and contract.to_datetime(getattr(spec, field)) <= now


def show_expiry(key: Any, now: datetime) -> None:
    """An expired key says so, in place; nothing has to be written when its time comes."""
    if is_expired(key.spec, now):
        key.status.state = _states(key)[EXPIRED].number


def view_key(key: Any, tx: Transaction, now: datetime) -> None:
    show_expiry(key, now)


def view_static_key(key: Any, tx: Transaction, now: datetime) -> None:
    if is_expired(key.spec, now, "expiresAt"):
        key.status.active = False


def set_state(row: Resource, state: State) -> bytes:
    """The key's status with another state."""
    return wire.with_state(row.kind, row.status, state)


def _states(key: Any) -> Any:
    return key.status.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_name
