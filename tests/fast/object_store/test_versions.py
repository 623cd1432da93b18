"""Versioning, delete markers and object lock, as S3 has them."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from neocloud.object_store.errors import (
    BucketNotEmpty,
    InvalidRequest,
    IsDeleteMarker,
    NoSuchBucket,
    NoSuchKey,
    NoSuchVersion,
    ObjectLocked,
    ObjectStoreError,
)
from neocloud.object_store.types import (
    NULL_VERSION,
    Attributes,
    BucketState,
    DefaultRetention,
    Deleted,
    DeleteItem,
    Retention,
    RetentionMode,
    Versioning,
    WriteConditions,
)
from neocloud.testing.waiting import FakeClock
from tests.fast.object_store.stores import check_sums, desired, get, make_bucket, make_versioned, opened, put

pytestmark = pytest.mark.usefixtures("metadata")


async def test_versions_of_a_key(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_bucket(store)
        await put(store, bucket, "k", b"0")
        bucket = await store.apply_bucket(desired(generation=2, versioning=Versioning.ENABLED))
        one = await put(store, bucket, "k", b"1")
        two = await put(store, bucket, "k", b"2")
        assert one.version_id != two.version_id
        marker = await store.delete(bucket.id, "k")
        assert marker.was_marker_written
        with pytest.raises(NoSuchKey) as absent:
            await get(store, bucket, "k")
        assert absent.value.marker is not None
        assert absent.value.marker.version_id == marker.version_id
        with pytest.raises(IsDeleteMarker):
            await get(store, bucket, "k", marker.version_id)
        for version_id, body in ((NULL_VERSION, b"0"), (one.version_id, b"1"), (two.version_id, b"2")):
            assert await get(store, bucket, "k", version_id) == body
        for wrong in ("0" * 32, "x"):
            with pytest.raises(NoSuchVersion):
                await get(store, bucket, "k", wrong)
        removed = await store.delete(bucket.id, "k", marker.version_id)
        assert (removed.is_delete_marker, removed.was_marker_written) == (True, False)
        assert await get(store, bucket, "k") == b"2"
        await store.delete(bucket.id, "k", two.version_id)
        assert await get(store, bucket, "k") == b"1"
    check_sums(tmp_path)


async def test_suspended_versioning_replaces_the_null_version(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store)
        first = await put(store, bucket, "k", b"1")
        bucket = await store.apply_bucket(desired(generation=2, versioning=Versioning.DISABLED))
        assert bucket.versioning is Versioning.SUSPENDED, "versions stay, so it cannot be as if never enabled"
        for body in (b"2", b"3"):
            version = await put(store, bucket, "k", body)
            assert (version.version_id, version.is_versioned) == (NULL_VERSION, True)
        marker = await store.delete(bucket.id, "k")
        assert (marker.version_id, marker.was_marker_written) == (NULL_VERSION, True)
        page = await store.list_versions(bucket.id)
        assert [each.version_id for each in page.versions] == [NULL_VERSION, first.version_id]
    check_sums(tmp_path)


async def test_an_older_generation_is_ignored(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await make_bucket(store, generation=3, max_size_bytes=5)
        assert (await store.apply_bucket(desired(generation=2))).max_size_bytes == 5
        with pytest.raises(InvalidRequest):
            await store.apply_bucket(desired(id="storagebucket-other"))


async def test_many_are_deleted_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store, has_object_lock=True)
        held = await put(store, bucket, "held", b"1", Attributes(has_legal_hold=True))
        await put(store, bucket, "k", b"1")
        items = [
            DeleteItem("k"),
            DeleteItem("held", held.version_id),
            DeleteItem("gone", "0" * 32),
            DeleteItem("k2", None, WriteConditions(if_match="*")),
            DeleteItem(""),
        ]
        results = await store.delete_many(bucket.id, items)
        assert [isinstance(each, Deleted) for each in results] == [True, False, True, True, False]
        assert isinstance(results[1], ObjectLocked)
        assert isinstance(results[4], ObjectStoreError)
        assert await get(store, bucket, "held") == b"1"
    check_sums(tmp_path)


async def test_retention(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        default = DefaultRetention(RetentionMode.GOVERNANCE, 1)
        bucket = await make_versioned(store, has_object_lock=True, default_retention=default)
        soft = await put(store, bucket, "soft", b"1")
        assert soft.attributes.retention == Retention(
            RetentionMode.GOVERNANCE, clock.now() + timedelta(days=1)
        )
        until = clock.now() + timedelta(days=2)
        hard = await put(
            store, bucket, "hard", b"1", Attributes(retention=Retention(RetentionMode.COMPLIANCE, until))
        )
        with pytest.raises(ObjectLocked):
            await store.delete(bucket.id, "soft", soft.version_id)
        with pytest.raises(ObjectLocked):
            await store.delete(bucket.id, "hard", hard.version_id, bypass_governance=True)
        shorter = Retention(RetentionMode.COMPLIANCE, until - timedelta(days=1))
        for weaker in (None, shorter, Retention(RetentionMode.GOVERNANCE, until)):
            with pytest.raises(ObjectLocked):
                await store.set_retention(bucket.id, "hard", None, weaker, bypass_governance=True)
        stricter = Retention(RetentionMode.COMPLIANCE, clock.now() + timedelta(days=9))
        with pytest.raises(ObjectLocked):
            await store.set_retention(bucket.id, "soft", None, stricter)
        longer = Retention(RetentionMode.COMPLIANCE, until + timedelta(days=1))
        changed = await store.set_retention(bucket.id, "hard", None, longer)
        assert changed.attributes.retention == longer
        await store.delete(bucket.id, "soft", soft.version_id, bypass_governance=True)
        assert (await store.delete(bucket.id, "hard")).was_marker_written, (
            "a marker hides, it removes nothing"
        )
        await clock.advance(3 * 86_400)
        await store.delete(bucket.id, "hard", hard.version_id)
    check_sums(tmp_path)


async def test_legal_hold(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket, plain = await make_versioned(store, has_object_lock=True), await make_bucket(store, "plain")
        version = await put(store, bucket, "k", b"1")
        await store.set_legal_hold(bucket.id, "k", None, True)
        with pytest.raises(ObjectLocked):
            await store.delete(bucket.id, "k", version.version_id, bypass_governance=True)
        await store.set_legal_hold(bucket.id, "k", version.version_id, False)
        await store.delete(bucket.id, "k", version.version_id)
        await put(store, plain, "k", b"1")
        with pytest.raises(InvalidRequest):
            await store.set_legal_hold(plain.id, "k", None, True)
        with pytest.raises(InvalidRequest):
            await put(store, plain, "k", b"1", Attributes(has_legal_hold=True))


async def test_what_is_protected_is_not_purged(tmp_path: Path) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock) as store:
        bucket = await make_versioned(store, has_object_lock=True)
        await put(store, bucket, "plain", b"1")
        await put(store, bucket, "held", b"1", Attributes(has_legal_hold=True))
        until = clock.now() + timedelta(days=1)
        await put(store, bucket, "k", b"1", Attributes(retention=Retention(RetentionMode.GOVERNANCE, until)))
        with pytest.raises(InvalidRequest, match="versioning"):
            await store.apply_bucket(desired(generation=2))
        hidden = BucketState.SCHEDULED_FOR_DELETION
        gone = await store.apply_bucket(desired(generation=3, versioning=Versioning.ENABLED, state=hidden))
        assert gone.has_object_lock, "a change by the control plane keeps it"
        assert not await store.purge_bucket(bucket.id)
        with pytest.raises(ObjectLocked):
            await store.purge_bucket(bucket.id)
        assert store.is_protected(bucket.id)
        await clock.advance(2 * 86_400)
        assert not await store.purge_bucket(bucket.id) and store.is_protected(bucket.id)
        await store.apply_bucket(desired(generation=4, versioning=Versioning.ENABLED))
        await store.set_legal_hold(bucket.id, "held", None, False)
        assert not store.is_protected(bucket.id)
        await store.apply_bucket(desired(generation=5, versioning=Versioning.ENABLED, state=hidden))
        assert await store.purge_bucket(bucket.id)
    check_sums(tmp_path)


async def test_a_bucket_is_purged_and_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store, has_object_lock=True)
        for number in range(5):
            await put(store, bucket, f"k{number % 2}", b"x" * 20_000)
        await store.create_upload(bucket.id, "u", Attributes())
        gone = desired(generation=2, versioning=Versioning.ENABLED, state=BucketState.SCHEDULED_FOR_DELETION)
        await store.apply_bucket(gone)
        with pytest.raises(NoSuchBucket):
            store.bucket("bucket")
        with pytest.raises(NoSuchBucket):
            await put(store, bucket, "k", b"1")
        with pytest.raises(BucketNotEmpty):
            await store.forget_bucket(bucket.id)
        assert [await store.purge_bucket(bucket.id, 3) for _ in range(2)] == [False, True]
        await store.forget_bucket(bucket.id)
        assert store.buckets() == []
        again = await make_bucket(store, id="storagebucket-new")
        assert (await store.list_versions(again.id)).versions == ()
        with pytest.raises(InvalidRequest):
            await store.apply_bucket(desired(name="another", id=bucket.id))
    check_sums(tmp_path)


async def test_pages_with_a_delimiter_are_whole_beyond_what_is_read_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        bucket = await make_versioned(store)
        names = sorted([f"k{number:03}" for number in range(40)] + ["a/1", "a/2", "k010/1", "z/1"])
        await asyncio.gather(*(put(store, bucket, name, b"1") for name in names))
        many = [(await put(store, bucket, "k005", b"2")).version_id for _ in range(70)]
        for _ in range(40):
            await store.create_upload(bucket.id, "k007", Attributes())
        for limit in (1, 7, 33, 1000):
            keys, marker = list[str](), ""
            while True:
                page = await store.list_objects(bucket.id, delimiter="/", start_after=marker, limit=limit)
                keys += [*(each.key for each in page.objects), *page.prefixes]
                if not page.is_truncated:
                    break
                marker = page.next_marker
            assert sorted(keys) == sorted({name.partition("/")[0] + "/" * ("/" in name) for name in names})
            ids, key, version = list[str](), "", ""
            while True:
                found = await store.list_versions(
                    bucket.id, delimiter="/", key_marker=key, version_marker=version, limit=limit
                )
                ids += [each.version_id for each in found.versions if each.key == "k005"]
                if not found.is_truncated:
                    break
                key, version = found.next_key_marker, found.next_version_marker
            assert ids[:-1] == many[::-1]
            uploads, key, upload = list[str](), "", ""
            while True:
                those = await store.list_uploads(
                    bucket.id, delimiter="/", key_marker=key, upload_marker=upload, limit=limit
                )
                uploads += [each.upload_id for each in those.uploads]
                if not those.is_truncated:
                    break
                key, upload = those.next_key_marker, those.next_upload_marker
            assert len(set(uploads)) == len(uploads) == 40
