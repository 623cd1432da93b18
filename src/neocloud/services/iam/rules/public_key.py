"""Reads the public keys that service accounts sign their tokens with: which are taken, and what they are."""

from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from neocloud.core.store.writing import refuse_while_writing

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
