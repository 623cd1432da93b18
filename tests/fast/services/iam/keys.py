"""Key pairs of each kind, made once: making an RSA key takes longer than any test here."""

from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

KEYS = 4
"""So many control planes in a row have keys of their own; the next has that of the first."""
_keys: deque[rsa.RSAPrivateKey] = deque()


@dataclass(frozen=True)
class KeyPair:
    algorithm: str
    private_pem: str
    public_pem: str

    def credentials(self, key_id: str, account_id: str) -> dict[str, Any]:
        subject = {"alg": self.algorithm, "private-key": self.private_pem, "kid": key_id}
        return {"subject-credentials": {**subject, "iss": account_id, "sub": account_id}}


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@cache
def other_rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def next_rsa_key() -> rsa.RSAPrivateKey:
    """Return the key of a new control plane's first service account."""
    if len(_keys) < KEYS:
        _keys.append(rsa.generate_private_key(public_exponent=65537, key_size=2048))
    else:
        _keys.rotate(-1)
    return _keys[-1]


@cache
def signing_key(pem: str) -> Any:
    """Return the private key in a credentials file; reading it takes 50 ms, which check its numbers."""
    return load_pem_private_key(pem.encode(), None)


@cache
def key_pair(algorithm: str, size: int = 2048) -> KeyPair:
    if algorithm == "RS256":
        key: Any = rsa.generate_private_key(public_exponent=65537, key_size=size)
    elif algorithm == "ES256":
        key = ec.generate_private_key(ec.SECP256R1())
    else:
        key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return KeyPair(algorithm, private.decode(), public.decode())
