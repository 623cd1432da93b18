"""Multipart uploads: parts become an object without a byte being moved."""

import asyncio
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from neocloud.object_store.checksums import encode, running
from neocloud.object_store.errors import (
    ChecksumMismatch,
    ConditionFailed,
    InvalidPart,
    InvalidPartNumber,
    InvalidPartOrder,
    InvalidRequest,
    NoSuchUpload,
    PartTooSmall,
    RangeNotSatisfiable,
)
from neocloud.object_store.garbage import collect
from neocloud.object_store.metadata.uploads import MIN_PART_BYTES
from neocloud.object_store.types import (
    Attributes,
    ByteRange,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    CompletedPart,
    Expected,
    Source,
    StorageClass,
    WriteConditions,
)
from tests.fast.object_store.stores import (
    KIB,
    check_sums,
    files,
    get,
    keys,
    make_bucket,
    make_versioned,
    opened,
    put,
    put_part,
)

pytestmark = pytest.mark.usefixtures("metadata")

ONE, TWO = os.urandom(MIN_PART_BYTES), os.urandom(100 * KIB)


def named(*parts) -> list[CompletedPart]:
    return [CompletedPart(part.number, part.etag) for part in parts]


async def test_parts_become_an_object(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        attributes = Attributes({"content-type": "a/b"}, {"m": "1"}, {"t": "1"}, StorageClass.INTELLIGENT)
        upload = await store.create_upload(bucket.id, "k", attributes)
        two = await put_part(store, bucket, "k", upload.upload_id, 5, TWO)
        old = await put_part(store, bucket, "k", upload.upload_id, 2, b"replaced" * 10_000)
        one = await put_part(store, bucket, "k", upload.upload_id, 2, ONE)
        await put_part(store, bucket, "k", upload.upload_id, 9, b"not named" * 10_000)
        assert await keys(store, bucket) == []
        with pytest.raises(InvalidPart):
            await store.complete_upload(bucket.id, "k", upload.upload_id, named(old, two))
        version = await store.complete_upload(bucket.id, "k", upload.upload_id, named(one, two))
        digests = hashlib.md5(ONE).digest() + hashlib.md5(TWO).digest()
        assert version.etag == hashlib.md5(digests).hexdigest() + "-2"
        assert (version.size, version.part_count) == (len(ONE + TWO), 2)
        assert version.attributes == attributes
        crc = running(ChecksumAlgorithm.CRC64NVME)
        crc.update(ONE + TWO)
        assert version.checksum == Checksum(ChecksumAlgorithm.CRC64NVME, encode(crc.digest()))
        assert await get(store, bucket, "k") == ONE + TWO
        await collect(store.engine)
        assert len(files(tmp_path)) == 2
        again = await store.complete_upload(bucket.id, "k", upload.upload_id, named(one, two))
        assert again == version, "a client that missed the answer asks again"
        edge = len(ONE)
        for first, last in ((edge - 1, edge), (0, edge + 5), (edge, edge), (edge + 1000, edge + 2000)):
            got = await get(store, bucket, "k", range=ByteRange(first, last))
            assert got == (ONE + TWO)[first : last + 1]
        assert await get(store, bucket, "k", part_number=5) == TWO
        assert (await store.part_range(bucket.id, "k", None, 5))[1].first == edge
        with pytest.raises(InvalidPartNumber):
            await get(store, bucket, "k", part_number=3)
        page = await store.parts_of(bucket.id, "k", limit=1)
        assert (page.parts[0].number, page.is_truncated, page.next_number) == (2, True, 2)
        assert [each.size for each in (await store.parts_of(bucket.id, "k", after=2)).parts] == [len(TWO)]
        await store.delete(bucket.id, "k")
        with pytest.raises(NoSuchUpload):
            await store.complete_upload(bucket.id, "k", upload.upload_id, named(one, two))
        await collect(store.engine)
    assert files(tmp_path) == []
    check_sums(tmp_path)


async def test_completions_that_are_refused_change_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"there")
        upload = await store.create_upload(bucket.id, "k", Attributes())
        one = await put_part(store, bucket, "k", upload.upload_id, 1, b"small")
        two = await put_part(store, bucket, "k", upload.upload_id, 2, TWO)
        wrong = Checksum(ChecksumAlgorithm.CRC64NVME, encode(bytes(8)))
        cases: tuple[tuple[list[CompletedPart], dict[str, Any], type[Exception]], ...] = (
            (named(one, two), {}, PartTooSmall),
            (named(two, one), {}, InvalidPartOrder),
            (named(two, two), {}, InvalidPartOrder),
            ([], {}, InvalidRequest),
            ([CompletedPart(3, two.etag)], {}, InvalidPart),
            ([CompletedPart(2, two.etag, "AAAA")], {}, InvalidPart),
            (named(two), {"expected": Expected(checksum=wrong)}, ChecksumMismatch),
            (named(two), {"expected": Expected(size=5)}, InvalidRequest),
            (named(two), {"conditions": WriteConditions(if_none_match="*")}, ConditionFailed),
        )
        for parts, options, error in cases:
            with pytest.raises(error):
                await store.complete_upload(bucket.id, "k", upload.upload_id, parts, **options)
        assert await get(store, bucket, "k") == b"there"
        assert len((await store.list_parts(bucket.id, "k", upload.upload_id)).parts) == 2
        await store.complete_upload(bucket.id, "k", upload.upload_id, named(two))
        assert await get(store, bucket, "k") == TWO
    check_sums(tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "type"),
    (
        (ChecksumAlgorithm.CRC32, ChecksumType.FULL_OBJECT),
        (ChecksumAlgorithm.CRC32, ChecksumType.COMPOSITE),
        (ChecksumAlgorithm.CRC32C, ChecksumType.FULL_OBJECT),
        (ChecksumAlgorithm.SHA1, ChecksumType.COMPOSITE),
        (ChecksumAlgorithm.SHA256, None),
        (ChecksumAlgorithm.CRC64NVME, None),
    ),
)
async def test_checksums_of_multipart_objects(
    tmp_path: Path, algorithm: ChecksumAlgorithm, type: ChecksumType | None
) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        upload = await store.create_upload(
            bucket.id, "k", Attributes(), algorithm=algorithm, checksum_type=type
        )
        with pytest.raises(InvalidRequest):
            if algorithm is ChecksumAlgorithm.CRC64NVME:
                raise InvalidRequest("It is always computed.")
            await put_part(store, bucket, "k", upload.upload_id, 1, b"no checksum")
        parts = [
            await put_part(store, bucket, "k", upload.upload_id, number, body, algorithms=[algorithm])
            for number, body in ((1, ONE), (2, TWO))
        ]
        version = await store.complete_upload(bucket.id, "k", upload.upload_id, named(*parts))
    whole = running(algorithm)
    if upload.checksum_type is ChecksumType.FULL_OBJECT:
        whole.update(ONE + TWO)
        value = encode(whole.digest())
    else:
        for body in (ONE, TWO):
            part = running(algorithm)
            part.update(body)
            whole.update(part.digest())
        value = encode(whole.digest()) + "-2"
    assert version.checksum == Checksum(algorithm, value, upload.checksum_type)
    if (algorithm, type) == (ChecksumAlgorithm.CRC32, ChecksumType.FULL_OBJECT):
        assert value == encode(zlib.crc32(ONE + TWO).to_bytes(4, "big"))


async def test_algorithms_that_have_no_such_type(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        for algorithm, type in (
            (ChecksumAlgorithm.SHA256, ChecksumType.FULL_OBJECT),
            (ChecksumAlgorithm.CRC64NVME, ChecksumType.COMPOSITE),
        ):
            with pytest.raises(InvalidRequest):
                await store.create_upload(
                    bucket.id, "k", Attributes(), algorithm=algorithm, checksum_type=type
                )


async def test_parts_are_copied_by_reference(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "one", ONE)
        await put(store, bucket, "inline", b"0123456789")
        upload = await store.create_upload(bucket.id, "k", Attributes())
        copied = [
            await store.copy_part(
                Source(bucket.id, source), bucket.id, "k", upload.upload_id, number, range=range
            )
            for number, source, range in ((1, "one", None), (2, "inline", ByteRange(2, 5)))
        ]
        assert [part.etag for part in copied] == [hashlib.md5(each).hexdigest() for each in (ONE, b"2345")]
        for wrong in (ByteRange(5, 10), ByteRange(10, None)):
            with pytest.raises(RangeNotSatisfiable):
                await store.copy_part(
                    Source(bucket.id, "inline"), bucket.id, "k", upload.upload_id, 3, range=wrong
                )
        await store.complete_upload(bucket.id, "k", upload.upload_id, named(*copied))
        for key in ("one", "inline"):
            await store.delete(bucket.id, key)
        await collect(store.engine)
        assert await get(store, bucket, "k") == ONE + b"2345"
        assert len(files(tmp_path)) == 1
        second = await store.create_upload(bucket.id, "k2", Attributes())
        range = ByteRange(len(ONE) - 10, len(ONE) + 1)
        part = await store.copy_part(
            Source(bucket.id, "k"), bucket.id, "k2", second.upload_id, 1, range=range
        )
        await store.complete_upload(bucket.id, "k2", second.upload_id, named(part))
        await store.copy(Source(bucket.id, "k2"), bucket.id, "k3")
        for key in ("k", "k2"):
            await store.delete(bucket.id, key)
        assert await get(store, bucket, "k3") == ONE[-10:] + b"23"
        check_sums(tmp_path)
        await store.delete(bucket.id, "k3")
        await collect(store.engine)
    assert files(tmp_path) == []
    assert (await _contents(tmp_path)) == 0


async def _contents(home: Path) -> int:
    async with opened(home) as store:
        reading = store.engine.database.reading
        tables = ("content", "piece", "object_part", "part", "upload")
        return sum(reading.execute(f"SELECT count(*) FROM {each}").fetchone()[0] for each in tables)


async def test_uploads_are_listed_by_key_and_age(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        made = [
            (key, (await store.create_upload(bucket.id, key, Attributes())).upload_id)
            for key in ("b", "a/1", "b", "a/2", "c")
        ]
        expected = sorted(made, key=lambda each: each[0])
        found, key, marker, is_truncated = [], "", "", True
        while is_truncated:
            page = await store.list_uploads(bucket.id, key_marker=key, upload_marker=marker, limit=2)
            found += [(each.key, each.upload_id) for each in page.uploads]
            key, marker, is_truncated = page.next_key_marker, page.next_upload_marker, page.is_truncated
        assert found == expected
        page = await store.list_uploads(bucket.id, delimiter="/", limit=2)
        assert (page.prefixes, [each.key for each in page.uploads]) == (("a/",), ["b"])
        page = await store.list_uploads(bucket.id, key_marker="b")
        assert [each.key for each in page.uploads] == ["c"]


async def test_complete_against_put_against_delete(tmp_path: Path) -> None:
    """One key, many writers: the last commit decides, and the versions are in the order of the commits."""
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store)
        upload = await store.create_upload(bucket.id, "k", Attributes())
        part = await put_part(store, bucket, "k", upload.upload_id, 1, TWO)
        await asyncio.gather(
            *(put(store, bucket, "k", bytes([number])) for number in range(5)),
            store.complete_upload(bucket.id, "k", upload.upload_id, named(part)),
            *(store.delete(bucket.id, "k") for _ in range(5)),
        )
        versions = (await store.list_versions(bucket.id)).versions
        assert len(versions) == 11
        assert [each.is_latest for each in versions] == [True] + [False] * 10
    check_sums(tmp_path)
