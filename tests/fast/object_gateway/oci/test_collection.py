"""Blobs that no manifest names are removed after an hour; used ones stay, also while they are pushed; quota
and bill.
"""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import digests
from neocloud.object_gateway.work.workers import STALE_UPLOAD, tidy_registries
from neocloud.object_store.errors import BlobUnknown, ManifestUnknown, NoSuchUpload, QuotaExceeded
from neocloud.object_store.image_types import NewManifest
from neocloud.object_store.images.images import UNUSED_KEPT
from neocloud.object_store.lifecycle_rules import ImageRules
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket, BucketKind
from neocloud.object_store.usage import UsageReader
from neocloud.testing.waiting import FakeClock, until
from tests.fast.object_gateway.oci.client import INDEX, MANIFEST, digest_of
from tests.fast.object_store.stores import KIB, check_sums, files, make_bucket, opened, read

pytestmark = pytest.mark.usefixtures("metadata")
APP = "app"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 11, 25, 12, tzinfo=UTC))


async def make_registry(store: ObjectStore, name: str = "e00team", **changes: Any) -> Bucket:
    return await make_bucket(store, f"v2/{name}", kind=BucketKind.REGISTRY, title="team", **changes)


async def upload(
    store: ObjectStore,
    registry: Bucket,
    content: bytes,
    repository: str = APP,
    algorithm: str = digests.DEFAULT,
) -> str:
    """Upload a blob in two chunks, and return its digest."""
    upload_id = await store.begin_blob(registry.id, repository)
    for number, chunk in enumerate((content[: len(content) // 2], content[len(content) // 2 :]), 1):
        async with await store.open_chunk(registry.id, len(chunk)) as writer:
            await writer.write(chunk)
            await writer.commit_part(repository, upload_id, number)
    digest = digests.digest_of(content, algorithm)
    await store.finish_blob(registry.id, repository, upload_id, digest)
    return digest


async def push(
    store: ObjectStore, registry: Bucket, text: str, *blobs: str, repository: str = APP, tag: str = ""
) -> str:
    """Push a manifest that names these blobs, and return its digest."""
    body = text.encode()
    new = NewManifest(digest_of(body), MANIFEST, len(body), blobs=blobs)
    return (await store.put_manifest(registry.id, repository, new, body, [tag] if tag else [])).digest


async def has(store: ObjectStore, registry: Bucket, digest: str, repository: str = APP) -> bool:
    try:
        async with await store.open_blob(registry.id, repository, digest):
            return True
    except BlobUnknown:
        return False


async def test_a_blob_that_no_manifest_names_goes_after_an_hour(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        used, unused = [await upload(store, registry, bytes([each]) * 100 * KIB) for each in (1, 2)]
        await push(store, registry, "image", used, tag="v1")
        await clock.advance(UNUSED_KEPT.total_seconds() - 1)
        await tidy_registries(store, clock)
        assert await has(store, registry, unused)
        await clock.advance(2)
        await tidy_registries(store, clock)
        assert not await has(store, registry, unused) and await has(store, registry, used)
        await store.flush()
        await until(lambda: len(files(tmp_path)) == 2)
    check_sums(tmp_path)


async def test_asking_for_a_blob_renews_its_hour(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        digest = await upload(store, registry, b"layer")
        for _ in range(3):
            await clock.advance(UNUSED_KEPT.total_seconds() - 60)
            assert await store.blob_size(registry.id, APP, digest) == 5
            await tidy_registries(store, clock)
        assert await has(store, registry, digest)


async def test_what_a_deleted_manifest_named_goes_an_hour_later(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        digest = await upload(store, registry, b"layer")
        image = await push(store, registry, "image", digest, tag="v1")
        await clock.advance(7 * 86_400)
        await tidy_registries(store, clock)
        assert await has(store, registry, digest)
        await store.delete_manifest(registry.id, APP, image)
        await tidy_registries(store, clock)
        assert await has(store, registry, digest)
        with pytest.raises(ManifestUnknown):
            store.manifest(registry.id, APP, "v1")
        await clock.advance(UNUSED_KEPT.total_seconds() + 1)
        await tidy_registries(store, clock)
        assert not await has(store, registry, digest)
        assert await store.is_empty(registry.id)
    check_sums(tmp_path)


async def test_blobs_of_sha512_and_of_indexes_are_kept_and_go_alike(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        used, unused = [await upload(store, registry, each, algorithm="sha512") for each in (b"one", b"two")]
        same = await upload(store, registry, b"one")
        body = b"an index of blobs"
        new = NewManifest(digests.digest_of(body, "sha512"), INDEX, len(body), blobs=(used,))
        cache = await store.put_manifest(registry.id, APP, new, body, ["cache"])
        await clock.advance(UNUSED_KEPT.total_seconds() + 1)
        await tidy_registries(store, clock)
        assert await has(store, registry, used)
        assert not await has(store, registry, unused) and not await has(store, registry, same)
        await store.delete_manifest(registry.id, APP, cache.digest)
        await clock.advance(UNUSED_KEPT.total_seconds() + 1)
        await tidy_registries(store, clock)
        assert not await has(store, registry, used) and await store.is_empty(registry.id)
    check_sums(tmp_path)


async def test_blobs_that_come_after_their_manifest_are_kept(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=ImageRules(allows_sparse=True))
        layer = digest_of(b"layer")
        image = await push(store, registry, "image", layer, tag="v1")
        assert await upload(store, registry, b"layer") == layer
        await clock.advance(UNUSED_KEPT.total_seconds() + 1)
        await tidy_registries(store, clock)
        assert await has(store, registry, layer)
        await store.delete_manifest(registry.id, APP, image)
        await clock.advance(UNUSED_KEPT.total_seconds() + 1)
        await tidy_registries(store, clock)
        assert not await has(store, registry, layer)
    check_sums(tmp_path)


async def test_content_stays_while_any_repository_has_it(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        digest = await upload(store, registry, b"layer")
        assert await store.mount_blob(registry.id, "other", digest)
        await push(store, registry, "image", digest, repository="other")
        await clock.advance(UNUSED_KEPT.total_seconds() + 1)
        await tidy_registries(store, clock)
        assert not await has(store, registry, digest)
        assert await has(store, registry, digest, "other")


async def test_collection_beside_pushes(tmp_path: Path, clock: FakeClock) -> None:
    """Whatever the order, an image that was pushed can be pulled whole."""
    choice = random.Random(4)
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        images: dict[str, list[str]] = {}
        for step in range(60):
            await clock.advance(choice.choice((1, 600, 3000)))
            layers = [
                await upload(store, registry, f"layer {choice.randrange(12)}".encode()) for _ in range(2)
            ]
            if choice.random() < 0.5:
                await tidy_registries(store, clock)
            if choice.random() < 0.6:
                images[await push(store, registry, f"image {step}", *layers)] = layers
            if images and choice.random() < 0.4:
                gone = choice.choice(sorted(images))
                await store.delete_manifest(registry.id, APP, gone)
                del images[gone]
            await tidy_registries(store, clock)
            assert all([await has(store, registry, each) for named in images.values() for each in named])
    check_sums(tmp_path)


async def test_uploads_that_nobody_goes_on_with_are_aborted(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        upload_id = await store.begin_blob(registry.id, APP)
        await clock.advance(STALE_UPLOAD.total_seconds() + 1)
        await tidy_registries(store, clock)
        with pytest.raises(NoSuchUpload):
            store.blob_upload(registry.id, APP, upload_id)


async def test_an_upload_goes_on_after_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    first, last = b"a" * 200 * KIB, b"b" * 100
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        upload_id = await store.begin_blob(registry.id, APP)
        async with await store.open_chunk(registry.id, None) as writer:
            await writer.write(first)
            await writer.commit_part(APP, upload_id, 1)
    async with opened(tmp_path, clock) as store:
        assert store.blob_upload(registry.id, APP, upload_id).size == len(first)
        async with await store.open_chunk(registry.id, len(last)) as writer:
            await writer.write(last)
            await writer.commit_part(APP, upload_id, 2)
        digest = digest_of(first + last)
        assert await store.finish_blob(registry.id, APP, upload_id, digest) == len(first + last)
        async with await store.open_blob(registry.id, APP, digest) as reader:
            assert b"".join([chunk async for chunk in reader]) == first + last
    check_sums(tmp_path)


async def test_a_blob_that_is_there_is_stored_once(tmp_path: Path, clock: FakeClock) -> None:
    content = b"x" * 64 * KIB
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        for repository in (APP, APP, "other"):
            await upload(store, registry, content, repository)
        (counters,) = store.counters(registry.id)
        assert (counters.bytes, counters.uploads, counters.parts) == (len(content), 0, 0)
    check_sums(tmp_path)


async def test_a_registry_has_room_for_no_more_than_its_size(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, max_size_bytes=100 * KIB)
        await upload(store, registry, b"x" * 60 * KIB)
        with pytest.raises(QuotaExceeded):
            await upload(store, registry, b"y" * 60 * KIB)


async def test_a_purged_registry_leaves_nothing(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        for number in range(7):
            layer = await upload(store, registry, f"layer {number}".encode())
            await push(store, registry, f"image {number}", layer, tag=f"v{number}")
        await store.begin_blob(registry.id, "other")
        while not await store.purge_bucket(registry.id, limit=2):
            pass
        await store.forget_bucket(registry.id)
    for table in (
        "manifest",
        "manifest_reference",
        "tag",
        "repository",
        "repository_blob",
        "version",
        "content",
    ):
        assert read(tmp_path, f"SELECT count(*) FROM {table}") == [(0,)], table
    check_sums(tmp_path)


async def test_what_is_stored_is_on_the_bill_of_the_registry(tmp_path: Path, clock: FakeClock) -> None:
    start = clock.now()
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store)
        await upload(store, registry, b"x" * 1000)
        await clock.advance(7300)
        await store.engine.database.write(lambda _: None)
    found = UsageReader(tmp_path, clock).read(["project-a"], start, start + timedelta(hours=2))
    stored = [each for each in found if each.what.startswith("stored.")]
    assert [each.count for each in stored] == [1000 * 3_600_000] * 2
    assert {(each.bucket_name, each.is_registry) for each in stored} == {("team", True)}
    assert replace(registry).kind is BucketKind.REGISTRY
