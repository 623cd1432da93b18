"""Encryption of secrets at rest: AES-256-GCM with a key that lies in a file beside the database.

Sealed are the secrets that services keep by name, and the spec and status of every kind that can hold a
field which the contract marks as sensitive. A sealed column begins with the byte 1, which begins no protobuf
message (it would be the tag of field 0), so rows that were written in plain are told apart and still read.

Each value is bound to its resource and name, so a value cannot be moved to another row. This protects against
a copied database file or backup; who can read the key file as well can read the secrets.
"""

import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from neocloud.core.contract.annotations import secret_parts
from neocloud.core.osfiles import create_file
from neocloud.core.store.protocol import StoreError

KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
FORMAT = b"\x01"
"""The first byte of everything sealed."""
SEALED_BYTES = len(FORMAT) + _NONCE_BYTES + _TAG_BYTES
"""How much longer than its value something sealed is."""


def load_or_make_key(path: str | Path) -> bytes:
    """The key in this file; a new random one, readable only by its owner, when there is no file yet."""
    path = Path(path)
    if not path.exists():
        try:
            create_file(path, os.urandom(KEY_BYTES))
        except OSError as error:
            raise StoreError(
                f"Cannot make the key file {path}: {error.strerror}. Check the folder."
            ) from error
    return _load_key(path)


def _load_key(path: Path) -> bytes:
    try:
        mode, key = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise StoreError(f"Cannot read the key file {path}: {error.strerror}.") from error
    if mode & 0o077:
        raise StoreError(f"The key file {path} is open to others. Run: chmod 600 {path}")
    if len(key) != KEY_BYTES:
        raise StoreError(
            f"The key file {path} holds {len(key)} bytes instead of {KEY_BYTES}: it is damaged. "
            "Restore it from a backup; without it the stored secrets cannot be read."
        )
    return key


class Vault:
    """Seals and opens values with one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise StoreError(f"The store's key must have {KEY_BYTES} bytes, not {len(key)}.")
        self._cipher = AESGCM(key)

    def seal(self, resource_id: str, name: str, value: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return FORMAT + nonce + self._cipher.encrypt(nonce, value, _place(resource_id, name))

    def open(self, resource_id: str, name: str, sealed: bytes) -> bytes:
        nonce, body = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, body, _place(resource_id, name))
        except InvalidTag:
            raise StoreError(
                f"The secret {name!r} of {resource_id} cannot be read with this key. "
                "The key file does not belong to this database: restore the one that does."
            ) from None

    def seal_part(self, kind: str, resource_id: str, part: str, value: bytes) -> bytes:
        """The "spec" or "status" of a resource as it is stored: sealed where its kind can hold secrets."""
        return self.seal(resource_id, part, value) if value and part in secret_parts(kind) else value

    def open_part(self, resource_id: str, part: str, value: bytes) -> bytes:
        """Return the stored "spec" or "status" of a resource, sealed or not."""
        return self.open(resource_id, part, value) if value[:1] == FORMAT else value


def _place(resource_id: str, name: str) -> bytes:
    return f"{resource_id}\n{name}".encode()
