"""Backups under a passphrase.

The library measures the work of a passphrase by the clock, about a second and a GiB of memory: only one test
encrypts with it, the others take files that are made here with little work.
"""

import base64
import hashlib
import hmac
import io
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from neocloud.control_plane.backup import keys as age
from neocloud.control_plane.backup.archive import BackupError, PackedFiles
from neocloud.control_plane.backup.keys import Keys, Passphrase, encrypted_size, needs_passphrase
from tests.fast.control_plane.backup.conftest import restored

PASSPHRASE = "correct horse battery"
WORK_FACTOR = 4


def derived(key: bytes, salt: bytes | None, what: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt, what).derive(key)


def unpadded(content: bytes) -> str:
    return base64.b64encode(content).decode().rstrip("=")


def age_file(content: bytes, work_factor: int = WORK_FACTOR, named: int | None = None) -> bytes:
    """Return the content under the passphrase, see age-encryption.org/v1. The header may name other work."""
    key, salt, nonce = os.urandom(16), os.urandom(16), os.urandom(16)
    wrapping = hashlib.scrypt(
        PASSPHRASE.encode(), salt=b"age-encryption.org/v1/scrypt" + salt, n=2**work_factor, r=8, p=1, dklen=32
    )
    header = f"age-encryption.org/v1\n-> scrypt {unpadded(salt)} {named or work_factor}\n"
    header += unpadded(ChaCha20Poly1305(wrapping).encrypt(bytes(12), key, None)) + "\n---"
    mac = hmac.digest(derived(key, None, b"header"), header.encode(), "sha256")
    cipher = ChaCha20Poly1305(derived(key, nonce, b"payload"))
    chunks = [content[start : start + 65536] for start in range(0, len(content), 65536)] or [b""]
    body = b"".join(
        cipher.encrypt(number.to_bytes(11) + bytes([number == len(chunks) - 1]), chunk, None)
        for number, chunk in enumerate(chunks)
    )
    return f"{header} {unpadded(mac)}\n".encode() + nonce + body


@pytest.fixture
def under_passphrase(backup: Path, keys: Keys) -> Path:
    found = io.BytesIO()
    with backup.open("rb") as file:
        keys.decrypt(file, found)
    backup.write_bytes(age_file(found.getvalue()))
    return backup


async def test_it_is_restored(under_passphrase: Path, tmp_path: Path) -> None:
    with under_passphrase.open("rb") as file:
        assert needs_passphrase(file)
    restored(under_passphrase, Passphrase(PASSPHRASE), tmp_path / "new")
    assert (tmp_path / "new" / "state.db").exists()


async def test_another_passphrase_or_a_key_is_refused(
    under_passphrase: Path, keys: Keys, tmp_path: Path
) -> None:
    with pytest.raises(BackupError, match="The passphrase is not the one of this backup"):
        restored(under_passphrase, Passphrase("another one entirely"), tmp_path / "new")
    with pytest.raises(BackupError, match="not made with this key file"):
        restored(under_passphrase, keys, tmp_path / "new")
    under_passphrase.write_bytes(under_passphrase.read_bytes()[:-1])
    with pytest.raises(BackupError, match="The backup is damaged"):
        restored(under_passphrase, Passphrase(PASSPHRASE), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("named", [23, 63, 10**8])
async def test_a_passphrase_that_takes_all_memory_is_refused(named: int, tmp_path: Path) -> None:
    (tmp_path / "cloud.age").write_bytes(age_file(b"", named=named))
    with pytest.raises(BackupError, match="more than 4 GiB of memory"):
        restored(tmp_path / "cloud.age", Passphrase(PASSPHRASE), tmp_path / "new")


async def test_a_slow_machine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(age, "MAX_WORK_FACTOR", 63)  # the library refuses this by itself, on every machine
    (tmp_path / "cloud.age").write_bytes(age_file(b"", named=50))
    with pytest.raises(BackupError, match="This machine is too slow, or too busy"):
        restored(tmp_path / "cloud.age", Passphrase(PASSPHRASE), tmp_path / "new")


async def test_what_is_encrypted_needs_this_passphrase(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"MARKER-4711")
    archive, made = PackedFiles(tmp_path, ["file"]), io.BytesIO()
    Passphrase(PASSPHRASE).encrypt(archive, made)
    content = made.getvalue()
    assert content.startswith(b"age-encryption.org/v1\n-> scrypt ") and b"MARKER-4711" not in content
    assert len(content) == encrypted_size(content, archive.size)
