"""Locks of a backup: a passphrase or keys, in the age format (age-encryption.org/v1).

`age --decrypt FILE` opens a backup without Neocloud. Age refuses a file that was cut off or changed.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyrage  # pyright: ignore[reportMissingTypeStubs]

from neocloud.control_plane.backup.archive import BackupError, PackedFiles, damaged, open_regular

MAX_PASSPHRASE_BYTES = 512 * 1024**2
"""Largest file under a passphrase, which is encrypted and decrypted in memory. Keys have no such limit."""
MAX_KEY_FILE_BYTES = 64 * 1024
MAX_WORK_FACTOR = 22
"""Largest cost of a passphrase that is accepted, as a power of two: 4 GiB of memory."""
_CHUNK_BYTES = 1024**2
HEADER_BYTES = 256 * 1024
"""Longest header of a file of age that is read."""
_AGE_CHUNK_BYTES, _NONCE_BYTES, _TAG_BYTES = 64 * 1024, 16, 16
_MAGIC = b"age-encryption.org/v1\n"
_SCRYPT = re.compile(rb"age-encryption\.org/v1\n-> scrypt [^ \n]* ([0-9]{1,9})\n")
_KEY_PREFIX, _RECIPIENT_PREFIX = "AGE-SECRET-KEY-1", "age1"

_age: Any = pyrage  # it has no types
_EncryptError: type[Exception] = _age.EncryptError
_DecryptError: type[Exception] = _age.DecryptError
_BAD_KEY: tuple[type[Exception], ...] = (ValueError, _age.IdentityError, _age.RecipientError)


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


class Lock(Protocol):
    """A passphrase or keys that encrypt a backup."""

    def encrypt(self, archive: PackedFiles, target: Writable) -> None: ...

    def decrypt(self, source: Readable, target: Writable) -> None: ...


@dataclass(frozen=True)
class Passphrase:
    value: str = field(repr=False)

    def encrypt(self, archive: PackedFiles, target: Writable) -> None:
        content = bytearray()
        while chunk := archive.read(_CHUNK_BYTES):
            content += chunk
            if len(content) > MAX_PASSPHRASE_BYTES:
                raise BackupError(
                    f"The backup is larger than {MAX_PASSPHRASE_BYTES:,} bytes, too large for a passphrase",
                    "Use a key: --key-file FILE --new-key",
                )
        target.write(_age.passphrase.encrypt(bytes(content), self.value))

    def decrypt(self, source: Readable, target: Writable) -> None:
        content = source.read(MAX_PASSPHRASE_BYTES + _CHUNK_BYTES + 1)
        if len(content) > MAX_PASSPHRASE_BYTES + _CHUNK_BYTES:
            raise damaged("it is larger than any that is encrypted with a passphrase")
        _refuse_costly(content[:HEADER_BYTES])
        try:
            target.write(_age.passphrase.decrypt(content, self.value))
        except _DecryptError as error:
            if str(error) == "Decryption failed":
                raise BackupError(
                    "The passphrase is not the one of this backup", "Give the one it was made with"
                ) from None
            if str(error).startswith("Excessive work"):
                raise BackupError(
                    "This machine is too slow, or too busy, for the passphrase of this backup",
                    "Restore it on a faster machine, or when this one is idle",
                ) from None
            raise damaged(str(error)) from None


@dataclass(frozen=True)
class Keys:
    """Keys of age, from a file as `age-keygen` writes it."""

    recipients: tuple[str, ...]
    """Public halves: they encrypt."""
    identities: tuple[str, ...] = field(repr=False)
    """Secret halves: they decrypt."""

    def encrypt(self, archive: PackedFiles, target: Writable) -> None:
        recipients = [_age.x25519.Recipient.from_str(each) for each in self.recipients]
        try:
            _age.encrypt_io(archive, target, recipients)
        except _EncryptError as error:
            raise OSError(str(error)) from error

    def decrypt(self, source: Readable, target: Writable) -> None:
        if not self.identities:
            raise BackupError(
                "The key file holds public keys only, which cannot decrypt",
                "Name the file with the secret key that belongs to one of them",
            )
        identities = [_age.x25519.Identity.from_str(each) for each in self.identities]
        try:
            _age.decrypt_io(source, target, identities)
        except _DecryptError as error:
            if str(error) == "No matching keys found":
                raise BackupError(
                    "The backup was not made with this key file", "Name the one it was made with"
                ) from None
            raise damaged(str(error)) from None
        except OSError as error:
            if error.errno is None:  # of age, not of the disk
                raise damaged(str(error)) from None
            raise


def read_keys(path: Path) -> Keys:
    """Return the keys in a file, one a line; lines that begin with # are comments. Raises BackupError."""
    try:
        path.lstat()
    except FileNotFoundError:
        raise BackupError(
            f"There is no key file {path}", "Add --new-key to make one, or name another"
        ) from None
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}", "Name another file") from None
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        content = file.read(MAX_KEY_FILE_BYTES + 1)
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    if not lines or len(content) > MAX_KEY_FILE_BYTES:
        raise BackupError(f"{path} is not a key file", "Name another, or make one with --new-key")
    recipients: list[str] = []
    identities: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith(_KEY_PREFIX):
                identities.append(line)
                recipients.append(str(_age.x25519.Identity.from_str(line).to_public()))
            elif line.startswith(_RECIPIENT_PREFIX):
                recipients.append(str(_age.x25519.Recipient.from_str(line)))
            else:
                raise ValueError
        except _BAD_KEY:
            raise BackupError(
                f"Line {number} of {path} is not an age key (AGE-SECRET-KEY-1... or age1...)", "Name another"
            ) from None
    if not recipients:
        raise BackupError(f"{path} holds no key", "Name another, or make one with --new-key")
    if identities and found.st_mode & 0o077:
        raise BackupError(f"{path} holds a secret key and is open to other users", f"Run: chmod 600 {path}")
    return Keys(tuple(dict.fromkeys(recipients)), tuple(identities))


def new_key() -> str:
    """Return the content of a new key file, in the form of `age-keygen`."""
    identity = _age.x25519.Identity.generate()
    return f"# public key: {identity.to_public()}\n{identity}\n"


def encrypted_size(head: bytes, size: int) -> int:
    """Return how long a file of age is, by its first bytes and the size of what it holds."""
    header = head.index(b"\n", head.index(b"\n--- ") + 1) + 1
    return header + _NONCE_BYTES + size + _TAG_BYTES * max(1, -(-size // _AGE_CHUNK_BYTES))


def is_age_file(path: Path) -> bool:
    """Return whether a file is in the age format, as every backup is. Raises BackupError."""
    with open_regular(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def needs_passphrase(source: BinaryIO) -> bool:
    """Return whether a passphrase opens the backup, rather than a key. Raises BackupError for other files."""
    head = source.read(HEADER_BYTES)
    source.seek(0)
    if not head.startswith(_MAGIC):
        raise BackupError("The file is not a backup of Neocloud", "Name one that `neo backup` has written")
    if b"\n---" not in head:
        raise damaged("its header has no end")
    return head.startswith(_MAGIC + b"-> scrypt ")


def _refuse_costly(head: bytes) -> None:
    """The cost doubles with each step, and is what the file says: a hostile one would take all memory."""
    found = _SCRYPT.match(head)
    if found is None:
        raise damaged("its header cannot be read")
    if int(found[1]) > MAX_WORK_FACTOR:
        raise BackupError(
            f"The passphrase of this backup would take more than {2 ** (MAX_WORK_FACTOR - 20)} GiB of memory",
            "Use a backup that `neo backup` has written",
        )
