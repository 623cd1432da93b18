"""Blobs in files, and their encryption."""

import os
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neocloud.object_store.blobs.files import FileBlobs
from neocloud.object_store.blobs.sealing import (
    FRAME_BYTES,
    SEALED_FRAME_BYTES,
    FrameCipher,
    KeySealer,
    NotAuthentic,
    new_data_key,
)
from neocloud.object_store.bodies.writer import new_blob_name
from neocloud.testing.blob_conformance import BlobConformance, put


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[FileBlobs]:
    with ThreadPoolExecutor(2) as executor:
        yield FileBlobs(tmp_path / "blobs", executor)


class TestFileBlobs(BlobConformance):
    """Files do what every driver does."""


async def test_files_are_private_and_leave_no_descriptor(blobs: FileBlobs, tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    name = await put(blobs, b"x")
    blob = await blobs.create(new_blob_name())
    await blob.abort()
    await blobs.read(name, 0, 1)
    path = tmp_path / "blobs" / name[:2] / name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_no_other_name_becomes_a_path(blobs: FileBlobs) -> None:
    for name in ("../../etc/passwd", "a" * 31, "A" * 32, ""):
        with pytest.raises(AssertionError):
            await blobs.read(name, 0, 1)


@pytest.mark.parametrize("size", (0, 1, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES))
def test_frames(size: int) -> None:
    body = os.urandom(size)
    cipher = FrameCipher(new_data_key())
    sealed = cipher.seal(5, body)
    assert cipher.open(5, sealed) == body
    if size > FRAME_BYTES:
        assert cipher.open(6, sealed[SEALED_FRAME_BYTES:]) == body[FRAME_BYTES:]


def test_a_frame_opens_at_its_place_alone_and_unchanged() -> None:
    cipher, other = FrameCipher(new_data_key()), FrameCipher(new_data_key())
    sealed = cipher.seal(0, bytes(2 * FRAME_BYTES))
    one, two = sealed[:SEALED_FRAME_BYTES], sealed[SEALED_FRAME_BYTES:]
    flipped = bytes([one[0] ^ 1]) + one[1:]
    for wrong in (two + one, flipped + two, one + two[:-1], one + two[:8]):
        with pytest.raises(NotAuthentic):
            cipher.open(0, wrong)
    with pytest.raises(NotAuthentic):
        other.open(0, sealed)


def test_a_data_key_opens_with_its_key_alone() -> None:
    sealer = KeySealer(os.urandom(32))
    sealed = sealer.seal(b"k" * 32)
    assert sealer.open(sealed) == b"k" * 32
    for wrong in (b"", sealed[:-1], sealed[:5]):
        with pytest.raises(NotAuthentic):
            sealer.open(wrong)
    with pytest.raises(NotAuthentic):
        KeySealer(os.urandom(32)).open(sealed)
