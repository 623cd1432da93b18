"""A quota holds however many puts come at once, and no room is lost."""

import asyncio
from pathlib import Path

import pytest

from neocloud.object_store.errors import QuotaExceeded
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Attributes, Bucket, Source
from tests.fast.object_store.stores import (
    KIB,
    check_sums,
    desired,
    files,
    make_bucket,
    make_versioned,
    opened,
    put,
    put_part,
)

pytestmark = pytest.mark.usefixtures("metadata")


def held(store: ObjectStore, bucket: Bucket) -> int:
    return sum(each.bytes for each in store.counters(bucket.id))


@pytest.mark.parametrize("size", (1000, 20 * KIB))
async def test_100_parallel_puts(tmp_path: Path, size: int) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store, max_size_bytes=40 * size + size - 1)
        puts = (put(store, bucket, f"k{number}", b"x" * size) for number in range(100))
        results = await asyncio.gather(*puts, return_exceptions=True)
        refused = [each for each in results if isinstance(each, BaseException)]
        assert [type(each) for each in refused] == [QuotaExceeded] * 60
        assert held(store, bucket) == 40 * size
        await store.delete(bucket.id, next(iter((await store.list_objects(bucket.id)).objects)).key)
        await put(store, bucket, "again", b"x" * size)
    check_sums(tmp_path)


async def test_100_that_fit_exactly_all_fit(tmp_path: Path) -> None:
    """Room is never counted twice, not even between a commit and its answer."""
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store, max_size_bytes=100_000)

        async def some(worker: int) -> None:
            for number in range(10):
                await put(store, bucket, f"{worker}-{number}", b"x" * 1000)

        await asyncio.gather(*(some(worker) for worker in range(10)))
        assert held(store, bucket) == 100_000
        with pytest.raises(QuotaExceeded):
            await put(store, bucket, "more", b"x")


async def test_what_is_refused_is_refused_before_the_body(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store, max_size_bytes=1000)
        async with await store.open_write(bucket.id, 600):
            with pytest.raises(QuotaExceeded):
                await store.open_write(bucket.id, 600)
        await put(store, bucket, "k", b"x" * 1000)
        await put(store, bucket, "k", b"y" * 1000)
        with pytest.raises(QuotaExceeded):
            await store.open_write(bucket.id, 1001, key="k")


async def test_a_body_of_unknown_length(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store, max_size_bytes=100 * KIB)
        with pytest.raises(QuotaExceeded):
            async with await store.open_write(bucket.id, None) as writer:
                for _ in range(20):
                    await writer.write(b"x" * 10 * KIB)
        async with await store.open_write(bucket.id, None) as writer:
            await writer.write(b"x" * 100 * KIB)
            await writer.commit("k", Attributes())
        with pytest.raises(QuotaExceeded):
            await store.open_write(bucket.id, None)
    assert len(files(tmp_path)) == 1


async def test_versions_parts_and_copies_count(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store, max_size_bytes=3000)
        first = await put(store, bucket, "k", b"x" * 1000)
        await put(store, bucket, "k", b"x" * 1000)
        upload = await store.create_upload(bucket.id, "u", Attributes())
        await put_part(store, bucket, "u", upload.upload_id, 1, b"x" * 900)
        with pytest.raises(QuotaExceeded):
            await put(store, bucket, "k", b"x" * 101)
        with pytest.raises(QuotaExceeded):
            await store.copy(Source(bucket.id, "k"), bucket.id, "copy")
        with pytest.raises(QuotaExceeded):
            await store.copy_part(Source(bucket.id, "k"), bucket.id, "u", upload.upload_id, 2)
        await store.abort_upload(bucket.id, "u", upload.upload_id)
        await store.copy(Source(bucket.id, "k"), bucket.id, "copy")
        with pytest.raises(QuotaExceeded):
            await put(store, bucket, "k", b"x")
        await store.delete(bucket.id, "k", first.version_id)
        await put(store, bucket, "k", b"x" * 1000)
    check_sums(tmp_path)


async def test_a_quota_that_is_lowered_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store, max_size_bytes=100 * KIB)
        async with await store.open_write(bucket.id, 50 * KIB) as writer:
            await writer.write(b"x" * 50 * KIB)
            await store.apply_bucket(desired(generation=2, max_size_bytes=10 * KIB))
            with pytest.raises(QuotaExceeded):
                await writer.commit("k", Attributes())
        assert held(store, bucket) == 0
    assert files(tmp_path) == []
