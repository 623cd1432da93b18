"""Objects are put, read, copied and deleted as S3 has it."""

import asyncio
import hashlib
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.object_store.backends.blobs.copies import ATTEMPTS, BlobCopies
from neocloud.object_store.checksums import encode
from neocloud.object_store.errors import (
    ChecksumMismatch,
    ConditionFailed,
    ContentHashMismatch,
    DigestMismatch,
    IncompleteBody,
    InvalidKey,
    InvalidRequest,
    KeyTooLong,
    NoSuchKey,
    NoSuchUpload,
    NoSuchVersion,
    NotModified,
    RangeNotSatisfiable,
    StoreBusy,
    WrongCustomerKey,
)
from neocloud.object_store.garbage import collect
from neocloud.object_store.metadata import contents
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import (
    Attributes,
    ByteRange,
    Checksum,
    ChecksumAlgorithm,
    Expected,
    ReadConditions,
    Source,
    StorageClass,
    WriteConditions,
)
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import (
    KIB,
    MIB,
    check_sums,
    files,
    get,
    keys,
    make_bucket,
    make_versioned,
    opened,
    put,
)

pytestmark = pytest.mark.usefixtures("metadata")

SIZES = (0, 1, 16 * KIB, 16 * KIB + 1, 64 * KIB, 1 * MIB, 1 * MIB + 1, 3 * MIB + 17)


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_put_is_read(tmp_path: Path, size: int) -> None:
    body = os.urandom(size)
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        attributes = Attributes({"content-type": "a/b"}, {"x": "ä"}, {"t": "1"})
        version = await put(store, bucket, "a/ü", body, attributes)
        assert version.etag == hashlib.md5(body).hexdigest()
        assert (version.version_id, version.is_versioned, version.size) == ("null", False, size)
        assert version.checksum is not None
        assert version.checksum.algorithm is ChecksumAlgorithm.CRC64NVME
    async with opened(tmp_path) as store:
        assert await store.head(bucket.id, "a/ü") == version
        assert version.attributes.metadata == {"x": "ä"}
        assert await get(store, bucket, "a/ü") == body
    assert len(files(tmp_path)) == (size > 16 * KIB)
    assert not body or size < 100 or all(body[:100] not in path.read_bytes() for path in _stored(tmp_path))
    check_sums(tmp_path)


def _stored(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", (100, 200 * KIB, 3 * MIB + 17))
async def test_ranges(tmp_path: Path, size: int) -> None:
    body = os.urandom(size)
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", body)
        for first, last in (
            (0, 0),
            (1, 98),
            (size - 1, size - 1),
            (50, None),
            (10, size + 5),
            (64 * KIB, None),
        ):
            if first < size:
                expected = body[first:] if last is None else body[first : last + 1]
                assert await get(store, bucket, "k", range=ByteRange(first, last)) == expected
        assert await get(store, bucket, "k", range=ByteRange(None, 7)) == body[-7:]
        assert await get(store, bucket, "k", range=ByteRange(None, size + 1)) == body
        for wrong in (ByteRange(size, None), ByteRange(None, 0)):
            with pytest.raises(RangeNotSatisfiable):
                await get(store, bucket, "k", range=wrong)


async def test_an_object_is_replaced_and_its_blob_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        for number in range(3):
            await put(store, bucket, "k", bytes([number]) * 20 * KIB)
        await store.delete(bucket.id, "gone")
        assert await get(store, bucket, "k") == b"\2" * 20 * KIB
        (counters,) = store.counters(bucket.id)
        assert (counters.simple_objects, counters.simple_bytes) == (1, 20 * KIB)
        deleted = await store.delete(bucket.id, "k")
        assert (deleted.version_id, deleted.is_delete_marker) == ("", False)
        with pytest.raises(NoSuchKey):
            await store.head(bucket.id, "k")
        await collected(store)
    assert files(tmp_path) == []
    check_sums(tmp_path)


async def collected(store: ObjectStore) -> None:
    assert not await collect(store.engine)


async def test_conditions_of_a_put(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        with pytest.raises(NoSuchKey):
            await put(store, bucket, "k", b"1", conditions=WriteConditions(if_match="*"))
        first = await put(store, bucket, "k", b"1", conditions=WriteConditions(if_none_match="*"))
        for condition in (WriteConditions(if_none_match="*"), WriteConditions(if_match="0" * 32)):
            with pytest.raises(ConditionFailed):
                await put(store, bucket, "k", b"2" * 100 * KIB, conditions=condition)
        await put(store, bucket, "k", b"3", conditions=WriteConditions(if_match=first.etag))
        assert await get(store, bucket, "k") == b"3"
    assert files(tmp_path) == []


@pytest.mark.parametrize("condition", (WriteConditions(if_none_match="*"), None))
async def test_one_of_16_conditional_puts_wins(tmp_path: Path, condition: WriteConditions | None) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        if condition is None:
            condition = WriteConditions(if_match=(await put(store, bucket, "k", b"first")).etag)
        bodies = [bytes([number]) * 20 * KIB for number in range(16)]
        results = await asyncio.gather(
            *(put(store, bucket, "k", body, conditions=condition) for body in bodies), return_exceptions=True
        )
        winners = [number for number, each in enumerate(results) if not isinstance(each, BaseException)]
        assert [type(each) for each in results if isinstance(each, BaseException)] == [ConditionFailed] * 15
        assert len(winners) == 1
        assert await get(store, bucket, "k") == bodies[winners[0]]
        await collected(store)
    assert len(files(tmp_path)) == 1
    check_sums(tmp_path)


async def test_conditions_of_a_read(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_bucket(store)
        version = await put(store, bucket, "k", b"1")
        now = version.modified_at
        passing = (
            ReadConditions(if_match=(version.etag,)),
            ReadConditions(if_none_match=("0" * 32,), if_modified_since=now),
            ReadConditions(if_match=("*",), if_unmodified_since=now - timedelta(days=1)),
        )
        for each in passing:
            assert await get(store, bucket, "k", conditions=each) == b"1"
        unmodified = (ReadConditions(if_none_match=(version.etag,)), ReadConditions(if_modified_since=now))
        for each in unmodified:
            with pytest.raises(NotModified):
                await get(store, bucket, "k", conditions=each)
            with pytest.raises(ConditionFailed):
                await store.copy(Source(bucket.id, "k"), bucket.id, "copy", source_conditions=each)
        for each in (
            ReadConditions(if_match=("0" * 32,)),
            ReadConditions(if_unmodified_since=now - timedelta(seconds=1)),
        ):
            with pytest.raises(ConditionFailed):
                await get(store, bucket, "k", conditions=each)


async def test_a_body_is_checked_before_it_is_stored(tmp_path: Path) -> None:
    body = b"x" * 100 * KIB
    wrong = Checksum(ChecksumAlgorithm.CRC32C, encode(b"\0" * 4))
    expectations = (
        (Expected(md5=b"\0" * 16), DigestMismatch),
        (Expected(sha256=b"\0" * 32), ContentHashMismatch),
        (Expected(checksum=wrong), ChecksumMismatch),
        (Expected(checksum=Checksum(ChecksumAlgorithm.SHA1, "")), InvalidRequest),
    )
    algorithms = (ChecksumAlgorithm.SHA256, ChecksumAlgorithm.CRC32C)
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        for expected, error in expectations:
            async with await store.open_write(bucket.id, len(body), algorithms=algorithms) as writer:
                await writer.write(body)
                with pytest.raises(error):
                    await writer.commit("k", Attributes(), expected=expected)
        async with await store.open_write(bucket.id, len(body)) as writer:
            await writer.write(body[:-1])
            with pytest.raises(IncompleteBody):
                await writer.commit("k", Attributes())
        async with await store.open_write(bucket.id, 10) as writer:
            with pytest.raises(IncompleteBody):
                await writer.write(body)
        async with await store.open_write(bucket.id, None) as writer:
            await writer.write(body)
        assert await keys(store, bucket) == []
    assert files(tmp_path) == []
    check_sums(tmp_path)


@pytest.mark.parametrize("algorithm", ChecksumAlgorithm)
async def test_checksums_are_verified_and_kept(tmp_path: Path, algorithm: ChecksumAlgorithm) -> None:
    known = {
        ChecksumAlgorithm.CRC32: "cbf43926",
        ChecksumAlgorithm.CRC32C: "e3069283",
        ChecksumAlgorithm.CRC64NVME: "ae8b14860a799888",
        ChecksumAlgorithm.SHA1: hashlib.sha1(b"123456789").hexdigest(),
        ChecksumAlgorithm.SHA256: hashlib.sha256(b"123456789").hexdigest(),
    }
    """The published check values of the algorithms, of the digits 1 to 9."""
    checksum = Checksum(algorithm, encode(bytes.fromhex(known[algorithm])))
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        async with await store.open_write(bucket.id, 9, algorithms=[algorithm]) as writer:
            await writer.write(b"123456789")
            await writer.commit("k", Attributes(), expected=Expected(checksum=checksum))
        assert (await store.head(bucket.id, "k")).checksum == checksum
        plain = await put(store, bucket, "plain", b"123456789")
        copy = await store.copy(Source(bucket.id, "plain"), bucket.id, "copy", algorithm=algorithm)
        assert (copy.etag, copy.checksum) == (plain.etag, checksum)


async def test_copies_share_the_bytes(tmp_path: Path) -> None:
    body = os.urandom(100 * KIB)
    async with opened(tmp_path) as store:
        bucket, other = await make_bucket(store), await make_bucket(store, "other")
        await put(store, bucket, "k", body, Attributes({"content-type": "a/b"}, tags={"t": "1"}))
        source = Source(bucket.id, "k")
        copy = await store.copy(source, other.id, "c", storage_class=StorageClass.ENHANCED_THROUGHPUT)
        assert (copy.attributes.headers, copy.attributes.tags) == ({"content-type": "a/b"}, {"t": "1"})
        assert copy.storage_class is StorageClass.ENHANCED_THROUGHPUT
        itself = await store.copy(source, bucket.id, "k", attributes=Attributes(metadata={"x": "1"}), tags={})
        assert (itself.attributes.metadata, itself.attributes.tags) == ({"x": "1"}, {})
        assert len(files(tmp_path)) == 1
        await store.delete(bucket.id, "k")
        await collected(store)
        assert await get(store, other, "c") == body
        with pytest.raises(NoSuchKey):
            await store.copy(source, other.id, "d")
        check_sums(tmp_path)
        await store.delete(other.id, "c")
        await collected(store)
    assert files(tmp_path) == []


async def test_a_key_of_the_client_encrypts_and_is_asked_for(tmp_path: Path) -> None:
    mine, another = os.urandom(32), os.urandom(32)
    body = os.urandom(100 * KIB)
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        async with await store.open_write(bucket.id, len(body), customer_key=mine) as writer:
            await writer.write(body)
            version = await writer.commit("k", Attributes())
        assert version.customer_key_md5 == encode(hashlib.md5(mine).digest())
        for wrong in (None, another):
            with pytest.raises(WrongCustomerKey):
                await get(store, bucket, "k", customer_key=wrong)
        assert await get(store, bucket, "k", customer_key=mine) == body
        source = Source(bucket.id, "k", customer_key=mine)
        await store.copy(source, bucket.id, "ours")
        await store.copy(source, bucket.id, "theirs", customer_key=another)
        assert await get(store, bucket, "ours") == body
        assert await get(store, bucket, "theirs", customer_key=another) == body


async def test_tags_are_replaced(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"1", Attributes(metadata={"m": "1"}, tags={"a": "1"}))
        await store.set_tags(bucket.id, "k", None, {"b": "2"})
        attributes = (await store.head(bucket.id, "k")).attributes
        assert (attributes.tags, attributes.metadata) == ({"b": "2"}, {"m": "1"})


async def test_keys_that_cannot_be(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        for key, error in (("", InvalidKey), ("\ud800", InvalidKey), ("ü" * 513, KeyTooLong)):
            with pytest.raises(error):
                await put(store, bucket, key, b"1") if key else await store.head(bucket.id, key)
        odd = ("../../etc/passwd", "a\0b", "a\0", "/", "//", " ", "ü" * 512, "\n")
        for key in odd:
            await put(store, bucket, key, key.encode())
        assert set(await keys(store, bucket)) == set(odd)
        for key in odd:
            assert await get(store, bucket, key) == key.encode()
    assert files(tmp_path) == []


async def test_buckets_are_apart(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        one, two = await make_versioned(store, "one"), await make_versioned(store, "two")
        version = await put(store, one, "k", b"1")
        for version_id in (None, version.version_id):
            with pytest.raises((NoSuchKey, NoSuchVersion)):
                await store.head(two.id, "k", version_id)
        await store.delete(two.id, "k", version.version_id)
        upload = await store.create_upload(one.id, "k", Attributes())
        with pytest.raises(NoSuchUpload):
            await store.list_parts(two.id, "k", upload.upload_id)
        with pytest.raises(NoSuchUpload):
            await store.abort_upload(two.id, "k", upload.upload_id)
        assert await get(store, one, "k") == b"1"


async def test_bytes_that_are_being_read_stay(tmp_path: Path) -> None:
    body = os.urandom(3 * MIB)
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", body)
        async with await store.open_read(bucket.id, "k") as reader:
            await store.delete(bucket.id, "k")
            assert await collect(store.engine), "the blob is garbage, and stays"
            assert b"".join([chunk async for chunk in reader]) == body
        await collected(store)
    assert files(tmp_path) == []


async def test_a_source_that_is_replaced_meanwhile_is_copied_and_one_that_is_deleted_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the source and the copy, as when a program renames a file that it just changed."""
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        source = Source(bucket.id, "k")
        look, changes = BlobCopies._checksum, list[bytes | None]((b"22", b"333"))

        async def change_first(*arguments: Any) -> Checksum | None:
            if changes:
                body = changes.pop(0)
                await (put(store, bucket, "k", body) if body else store.delete(bucket.id, "k"))
            return await look(*arguments)

        await put(store, bucket, "k", b"1")
        monkeypatch.setattr(BlobCopies, "_checksum", change_first)
        await store.copy(source, bucket.id, "copy")
        assert await get(store, bucket, "copy") == b"333"
        changes.append(None)
        with pytest.raises(NoSuchKey):
            await store.copy(source, bucket.id, "other")
        await put(store, bucket, "k", b"1")
        changes.extend(b"%d" % number for number in range(ATTEMPTS))
        with pytest.raises(StoreBusy):
            await store.copy(source, bucket.id, "other")
        assert await keys(store, bucket) == ["copy", "k"]
        check_sums(tmp_path)


async def test_an_object_that_is_replaced_while_a_read_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit lies between the look for the version and the one for its bytes, which are gone then."""
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"old")
        find, replaced = contents.spans, threading.Event()

        def spans(*given: Any) -> Sequence[contents.Span]:
            if not replaced.is_set():
                replaced.set()
                writer = threading.Thread(target=lambda: asyncio.run(put(store, bucket, "k", b"newer")))
                writer.start()
                writer.join()
            return find(*given)

        monkeypatch.setattr(contents, "spans", spans)
        assert await get(store, bucket, "k") == b"newer"
        assert replaced.is_set()
