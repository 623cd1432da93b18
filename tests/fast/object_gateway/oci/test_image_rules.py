"""Rules of a registry: which images go by themselves, what belongs to them, and what stays."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from neocloud.core import digests
from neocloud.object_gateway.work.workers import tidy_registries
from neocloud.object_store.errors import ManifestUnknown
from neocloud.object_store.image_types import NewManifest
from neocloud.object_store.images.images import UNUSED_KEPT
from neocloud.object_store.lifecycle_rules import ImageRules
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket
from neocloud.testing.waiting import FakeClock
from tests.fast.object_gateway.oci.client import INDEX, MANIFEST, digest_of
from tests.fast.object_gateway.oci.test_collection import APP, has, make_registry, push, upload
from tests.fast.object_store.stores import check_sums, opened, read

pytestmark = pytest.mark.usefixtures("metadata")
DAY = 86_400
KEEP_2, MONTH = ImageRules(keep_last=2), ImageRules(untagged_days=30)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 11, 25, 12, tzinfo=UTC))


async def put(
    store: ObjectStore,
    registry: Bucket,
    text: str,
    tag: str = "",
    *,
    names: tuple[str, ...] = (),
    about: str | None = None,
    repository: str = APP,
) -> str:
    """Push an index of what it names, or a manifest, and return its digest."""
    body = text.encode()
    kind = INDEX if names else MANIFEST
    new = NewManifest(digest_of(body), kind, len(body), manifests=names, subject=about)
    return (await store.put_manifest(registry.id, repository, new, body, [tag] if tag else [])).digest


def is_there(store: ObjectStore, registry: Bucket, reference: str, repository: str = APP) -> bool:
    try:
        store.manifest(registry.id, repository, reference)
    except ManifestUnknown:
        return False
    return True


async def test_the_last_images_of_each_repository_stay(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=KEEP_2)
        layer = await upload(store, registry, b"layer of v1")
        first = await push(store, registry, "v1", layer, tag="v1")
        for tag in ("v2", "v3", "v4"):
            await clock.advance(60)
            await put(store, registry, tag, tag)
        await put(store, registry, "v2", "v2")  # pushed again, so it is among the last
        await put(store, registry, "other", "v1", repository="other")
        await put(store, registry, "no tag")
        await tidy_registries(store, clock)
        assert [is_there(store, registry, each) for each in ("v1", "v2", "v3", "v4")] == [0, 1, 0, 1]
        assert is_there(store, registry, "v1", "other")
        assert is_there(store, registry, digest_of(b"no tag")), "the other rule is about those"
        await clock.advance(UNUSED_KEPT.total_seconds() + 1)
        await tidy_registries(store, clock)
        assert not await has(store, registry, layer)
        removed = store.removed_images(registry.id)
        assert removed is not None and removed.total == 2
        assert {(each.repository, each.digest, each.tags) for each in removed.last} == {
            (APP, first, ("v1",)),
            (APP, digest_of(b"v3"), ("v3",)),
        }
    check_sums(tmp_path)


async def test_days_count_from_when_the_last_tag_went(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=MONTH)
        moved = await put(store, registry, "first", "latest")
        deleted = await put(store, registry, "second", "v2")
        never = await put(store, registry, "third")
        await clock.advance(40 * DAY)
        await put(store, registry, "fourth", "latest")
        await store.delete_tag(registry.id, APP, "v2")
        await tidy_registries(store, clock)
        assert [is_there(store, registry, each) for each in (moved, deleted, never)] == [1, 1, 0]
        await clock.advance(30 * DAY - 1)
        await tidy_registries(store, clock)
        assert is_there(store, registry, moved) and is_there(store, registry, deleted)
        await clock.advance(1)
        await tidy_registries(store, clock)
        assert not is_there(store, registry, moved) and not is_there(store, registry, deleted)
        assert is_there(store, registry, "latest")


async def test_what_an_index_or_a_tagged_referrer_uses_stays(tmp_path: Path, clock: FakeClock) -> None:
    rules = ImageRules(keep_last=1, untagged_days=30)
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=rules)
        signed, noted = await put(store, registry, "signed", "v0"), await put(store, registry, "noted")
        child = await put(store, registry, "child", "v1-amd64")
        plain = await put(store, registry, "child without a tag")
        await put(store, registry, "index", "v1", names=(child, plain))
        await put(store, registry, "signature", "kept", about=signed)
        await put(store, registry, "note", "kept-too", about=noted)
        await put(store, registry, "list of packages", about=noted)
        await clock.advance(99 * DAY)
        before = read(tmp_path, "SELECT digest FROM manifest ORDER BY digest")
        for _ in range(2):
            await tidy_registries(store, clock)
            assert read(tmp_path, "SELECT digest FROM manifest ORDER BY digest") == before
        assert store.removed_images(registry.id) is None

        await store.delete_tag(registry.id, APP, "kept-too")
        await clock.advance(31 * DAY)
        await tidy_registries(store, clock)
        assert not is_there(store, registry, noted), "what is about it has no tag any more"
        assert not is_there(store, registry, digest_of(b"list of packages"))
        assert is_there(store, registry, signed) and is_there(store, registry, plain)


async def test_an_image_goes_with_all_that_belongs_to_it_alone(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=ImageRules(keep_last=1))
        shared, alone = await put(store, registry, "shared"), await put(store, registry, "alone")
        old = await put(store, registry, "old index", "v1", names=(shared, alone))
        signature = await put(store, registry, "signature", about=old)
        of_child = await put(store, registry, "signature of the child", about=alone)
        of_signature = await put(store, registry, "signature of the signature", about=signature)
        by_tag = await put(store, registry, "as cosign does", old.replace(":", "-") + ".sig")
        await clock.advance(60)
        new = await put(store, registry, "new index", "v2", names=(shared,))
        kept_by_tag = await put(store, registry, "as cosign does, too", new.replace(":", "-"))
        await clock.advance(60)
        await tidy_registries(store, clock)
        gone = (old, alone, signature, of_child, of_signature, by_tag)
        assert not any(is_there(store, registry, each) for each in gone)
        assert all(is_there(store, registry, each) for each in (shared, new, kept_by_tag))
        removed = store.removed_images(registry.id)
        assert removed is not None and (removed.total, removed.last[0].tags) == (1, ("v1",))
    check_sums(tmp_path)


async def test_tags_about_an_image_of_sha512_belong_to_it(tmp_path: Path, clock: FakeClock) -> None:
    """Such a tag has the first 64 digits of the digest: it could not have all of them."""
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=ImageRules(keep_last=1))
        images: list[str] = []
        for number in range(2):
            body = f"image {number}".encode()
            new = NewManifest(digests.digest_of(body, "sha512"), MANIFEST, len(body))
            images.append((await store.put_manifest(registry.id, APP, new, body, [f"v{number}"])).digest)
            await put(store, registry, f"about {number}", f"{images[-1].replace(':', '-')[:71]}.sig")
            await clock.advance(60)
        await tidy_registries(store, clock)
        assert [is_there(store, registry, each) for each in images] == [False, True]
        tags = store.tags(registry.id, APP, "", 10).tags
        assert tags == (f"{images[1].replace(':', '-')[:71]}.sig", "v1")
    check_sums(tmp_path)


async def test_what_was_about_a_deleted_image_goes_in_time(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=MONTH)
        image = await put(store, registry, "image", "v1")
        orphans = [
            await put(store, registry, "signature", about=image),
            await put(store, registry, "by tag", image.replace(":", "-")),
        ]
        early = await put(store, registry, "signature of what comes later", about=digest_of(b"later"))
        await clock.advance(29 * DAY)
        await tidy_registries(store, clock)
        assert is_there(store, registry, early)
        await store.delete_manifest(registry.id, APP, image)
        await clock.advance(2 * DAY)
        await tidy_registries(store, clock)
        assert not is_there(store, registry, early) and is_there(store, registry, orphans[0])
        await clock.advance(29 * DAY)
        await tidy_registries(store, clock)
        assert not any(is_there(store, registry, each) for each in orphans)


async def test_rules_that_were_taken_back_remove_nothing(tmp_path: Path, clock: FakeClock) -> None:
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=KEEP_2)
        images = [await put(store, registry, f"{each}", f"v{each}") for each in range(6)]
        await store.apply_bucket(replace(registry, image_rules=ImageRules(), generation=2))
        await tidy_registries(store, clock)
        assert all(is_there(store, registry, each) for each in images)
    async with opened(tmp_path, clock) as store:
        await store.apply_bucket(replace(registry, generation=3))
        assert store.buckets()[0].image_rules == KEEP_2
        await tidy_registries(store, clock)
        assert [is_there(store, registry, each) for each in images] == [0, 0, 0, 0, 1, 1]
        while not await store.purge_bucket(registry.id, limit=2):
            pass
        await store.forget_bucket(registry.id)
    assert read(tmp_path, "SELECT count(*) FROM removed_images") == [(0,)]
    check_sums(tmp_path)


async def test_rules_beside_pushes(tmp_path: Path, clock: FakeClock) -> None:
    """Whatever the order: nothing that is used lacks a part, and the last images are there."""
    choice = random.Random(7)
    rules = ImageRules(keep_last=3, untagged_days=2)
    async with opened(tmp_path, clock) as store:
        registry = await make_registry(store, image_rules=rules)
        pushed: list[str] = []
        for step in range(60):
            await clock.advance(choice.choice((60, DAY)))
            alive = [each for each in pushed if is_there(store, registry, each)]
            tag = choice.choice(("", "", "a", "b", f"v{step}"))
            names = tuple(choice.sample(alive, min(len(alive), choice.choice((0, 0, 2)))))
            about = choice.choice([None, None, *alive[-3:]]) if not names else None
            pushed.append(await put(store, registry, f"{step}", tag, names=names, about=about))
            last = read(
                tmp_path,
                "SELECT digest FROM manifest WHERE parents = 0 AND subject IS NULL"
                " AND number IN (SELECT manifest FROM tag) ORDER BY updated_ms DESC, number DESC LIMIT 3",
            )
            await tidy_registries(store, clock)
            lacking = read(
                tmp_path,
                "SELECT 1 FROM manifest_reference AS named WHERE NOT EXISTS"
                " (SELECT 1 FROM manifest WHERE manifest.digest = named.digest)"
                " UNION ALL SELECT 1 FROM manifest WHERE parents <>"
                " (SELECT count(*) FROM manifest_reference AS named WHERE named.digest = manifest.digest)"
                " UNION ALL SELECT 1 FROM tag WHERE manifest NOT IN (SELECT number FROM manifest)",
            )
            assert not lacking
            left = {digest for (digest,) in read(tmp_path, "SELECT digest FROM manifest")}
            assert {digest for (digest,) in last} <= left
        assert len(read(tmp_path, "SELECT 1 FROM manifest")) < 40
    check_sums(tmp_path)
