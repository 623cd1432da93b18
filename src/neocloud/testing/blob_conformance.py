# pyright: standard
"""Tests of the behaviour of every `BlobDriver`, to inherit from.

class TestMyBlobs(BlobConformance):
    @pytest.fixture
    async def blobs(self): ...
"""

import os
from datetime import UTC, datetime, timedelta

import pytest

from neocloud.object_store.blobs.driver import BlobDriver, NoSuchBlob
from neocloud.object_store.bodies.writer import new_blob_name


async def put(blobs: BlobDriver, *chunks: bytes) -> str:
    name = new_blob_name()
    blob = await blobs.create(name)
    for chunk in chunks:
        await blob.write(chunk)
    await blob.finish()
    return name


async def names(blobs: BlobDriver) -> set[str]:
    return {stat.name async for stat in blobs.list()}


class BlobConformance:
    async def test_bytes_come_back(self, blobs: BlobDriver) -> None:
        body = os.urandom(300_000)
        name = await put(blobs, body[:1], body[1:200_000], b"", body[200_000:])
        assert await blobs.read(name, 0, len(body)) == body
        for start, length in ((0, 1), (1, 100), (199_999, 2), (299_999, 1), (100, 0)):
            assert await blobs.read(name, start, length) == body[start : start + length]

    async def test_a_read_ends_where_the_blob_does(self, blobs: BlobDriver) -> None:
        name = await put(blobs, b"12345")
        assert await blobs.read(name, 3, 100) == b"45"
        assert await blobs.read(name, 5, 1) == b""

    async def test_an_empty_blob(self, blobs: BlobDriver) -> None:
        name = await put(blobs)
        assert await blobs.read(name, 0, 10) == b""
        assert await names(blobs) == {name}

    async def test_stat_and_list(self, blobs: BlobDriver) -> None:
        found = {await put(blobs, b"x" * size) for size in (1, 2, 3)}
        assert await names(blobs) == found
        name = await put(blobs, b"x" * 7)
        stat = await blobs.stat(name)
        assert stat is not None
        assert (stat.name, stat.size) == (name, 7)
        assert abs(stat.written_at - datetime.now(UTC)) < timedelta(minutes=5)
        assert await blobs.stat(new_blob_name()) is None

    async def test_what_is_aborted_leaves_nothing(self, blobs: BlobDriver) -> None:
        blob = await blobs.create(name := new_blob_name())
        await blob.write(b"x" * 100_000)
        await blob.abort()
        await blob.abort()
        assert await names(blobs) == set()
        assert await blobs.stat(name) is None

    async def test_abort_after_finish_does_nothing(self, blobs: BlobDriver) -> None:
        blob = await blobs.create(name := new_blob_name())
        await blob.write(b"x")
        await blob.finish()
        await blob.abort()
        assert await blobs.read(name, 0, 1) == b"x"

    async def test_deleted_blobs_are_gone(self, blobs: BlobDriver) -> None:
        name, other = await put(blobs, b"x"), await put(blobs, b"y")
        await blobs.delete(name)
        await blobs.delete(name)
        await blobs.delete(new_blob_name())
        with pytest.raises(NoSuchBlob):
            await blobs.read(name, 0, 1)
        assert await names(blobs) == {other}
