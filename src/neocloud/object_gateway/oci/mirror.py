"""Mirrors of registries elsewhere: repositories whose names begin with a name that the operator has chosen.

A missing blob or manifest that a client requests is fetched, compared with its digest, and stored like a
pushed one: it counts for quota and bill of the registry. So only a caller who may push fills a mirror; others
get what is there. A tag is asked for again after a minute, and stays what it was while the registry is away.

A manifest is stored once all its blobs are there, since the store has no manifest without them; until then it
is passed on from memory. An index names images of platforms that nobody asks for, so it is stored without
references.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from neocloud.core import digests
from neocloud.core.cleanup import aundo_on_error
from neocloud.core.clock import Clock
from neocloud.object_gateway.oci.documents import read_manifest
from neocloud.object_gateway.oci.errors import RegistryError
from neocloud.object_gateway.oci.upstream_registries import Upstream
from neocloud.object_gateway.oci.upstreams import UpstreamError, UpstreamRegistry
from neocloud.object_store.errors import BlobUnknown, ContentHashMismatch, ManifestUnknown, ReferenceMissing
from neocloud.object_store.image_types import NewManifest
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import MAX_PART_NUMBER

CHUNK_BYTES = 1024**3
"""A longer blob is stored in chunks of this size, as pushed ones are."""
TAG_SECONDS = 60.0
MOST_PASSED = 16
"""Manifests of up to 4 MiB that wait in memory for their blobs, of a whole gateway."""
MOST_TAGS = 10_000
MOST_AT_A_TIME, MOST_OF_A_REGISTRY = 16, 4
"""Blobs and manifests that are brought in at a time; others wait."""
LARGEST_BLOB_BYTES = 100 * 1024**3


@dataclass(frozen=True)
class Passed:
    """A manifest that is not stored yet."""

    new: NewManifest
    body: bytes
    tag: str


@dataclass(frozen=True)
class MirroredRepository:
    """A repository that mirrors one elsewhere."""

    registry_id: str
    repository: str
    upstream: UpstreamRegistry

    @property
    def elsewhere(self) -> str:
        """The name of the repository there."""
        return self.repository.partition("/")[2]


class Mirrors:
    def __init__(self, store: ObjectStore, clock: Clock, upstreams: Sequence[Upstream]) -> None:
        self._store = store
        self._clock = clock
        self._upstreams: Mapping[str, UpstreamRegistry] = {
            each.name: UpstreamRegistry(each) for each in upstreams
        }
        self._passed: OrderedDict[tuple[str, str, str], Passed] = OrderedDict()
        """Manifests by registry, repository and digest."""
        self._checked: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        """When a tag was asked for last, by registry, repository and tag."""
        self._room = asyncio.Semaphore(MOST_AT_A_TIME)
        self._rooms: dict[str, asyncio.Semaphore] = {}
        self._locks: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        for each in self._upstreams.values():
            await each.close()

    def place(self, registry_id: str, repository: str) -> MirroredRepository | None:
        """Return what a repository mirrors; None: it is like any other."""
        name, _, rest = repository.partition("/")
        upstream = self._upstreams.get(name)
        return (
            MirroredRepository(registry_id, repository, upstream) if upstream is not None and rest else None
        )

    async def bring_manifest(self, place: MirroredRepository, reference: str) -> Passed | None:
        """Return a manifest that is not stored; None: what there is, is stored. Raises RegistryError,
        ObjectStoreError."""
        is_tag = ":" not in reference
        key = (place.registry_id, place.repository, reference)
        is_known = self._has_manifest(place, reference)
        if is_known and (not is_tag or self._checked.get(key, 0.0) > self._clock.monotonic()):
            return None
        if not is_tag and key in self._passed:
            return self._passed[key]
        try:
            async with self._alone(key):
                media_type, body = await place.upstream.manifest(place.elsewhere, reference)
        except UpstreamError as error:
            if is_known:
                return None
            raise _answered(error) from error
        algorithm = digests.DEFAULT if is_tag else digests.algorithm_of(reference)
        new = read_manifest(body, media_type, algorithm)
        if not is_tag and new.digest != reference:
            raise _another("manifest")
        if is_tag:
            self._note(key)
        return await self._keep(place, Passed(new, body, reference if is_tag else ""))

    async def bring_blob(self, place: MirroredRepository, digest: str) -> None:
        """Store a blob, unless it is there. Raises RegistryError, ObjectStoreError."""
        async with self._alone((place.registry_id, place.repository, digest)):
            try:
                await self._store.blob_size(place.registry_id, place.repository, digest)
                return
            except BlobUnknown:
                pass
            if not await self._store.mount_blob(place.registry_id, place.repository, digest):
                try:
                    async with place.upstream.blob(place.elsewhere, digest) as chunks:
                        await self._receive(place, digest, chunks)
                except UpstreamError as error:
                    raise _answered(error) from error
                except ContentHashMismatch as error:
                    raise _another("blob") from error
        here = (place.registry_id, place.repository)
        waiting = [each for key, each in self._passed.items() if key[:2] == here]
        for each in waiting:
            if digest in each.new.blobs:
                await self._keep(place, each)

    async def _receive(self, place: MirroredRepository, digest: str, chunks: AsyncIterator[bytes]) -> None:
        store, where = self._store, (place.registry_id, place.repository)
        upload_id = await store.begin_blob(*where)
        running, total, number, pending = digests.running(digests.algorithm_of(digest)), 0, 0, b""
        async with aundo_on_error(lambda: store.abort_blob(*where, upload_id)):
            is_over = False
            while not is_over and number < MAX_PART_NUMBER:
                size = 0
                async with await store.open_chunk(place.registry_id, None) as writer:
                    while size < CHUNK_BYTES:
                        piece, pending = pending or await anext(chunks, b""), b""
                        if not piece:
                            is_over = True
                            break
                        await writer.write(piece)
                        running.update(piece)
                        size += len(piece)
                        if total + size > LARGEST_BLOB_BYTES:
                            raise RegistryError(413, "SIZE_INVALID", "The mirrored blob is too large.")
                    if size or not number:
                        number += 1
                        await writer.commit_part(place.repository, upload_id, number)
                total += size
            store.received.set(upload_id, total, running)
            await store.finish_blob(*where, upload_id, digest)

    async def _keep(self, place: MirroredRepository, found: Passed) -> Passed | None:
        """Store a manifest, if its blobs are there; else return it, to be passed on."""
        key = (place.registry_id, place.repository, found.new.digest)
        for other, each in self._passed.items():
            if found.tag and other[:2] == key[:2] and each.tag == found.tag and other != key:
                self._passed[other] = replace(each, tag="")  # the tag has moved on
        new = replace(found.new, manifests=())
        try:
            await self._store.put_manifest(*key[:2], new, found.body, [found.tag] if found.tag else [])
        except ReferenceMissing:
            kept = self._passed.get(key)
            self._passed[key] = found if found.tag or kept is None else kept
            self._passed.move_to_end(key)
            if len(self._passed) > MOST_PASSED:
                self._passed.popitem(last=False)
            return found
        self._passed.pop(key, None)
        return None

    @asynccontextmanager
    async def _alone(self, key: tuple[str, str, str]) -> AsyncGenerator[None]:
        """One request brings one thing in; those that want the same wait for it."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        room = self._rooms.setdefault(key[0], asyncio.Semaphore(MOST_OF_A_REGISTRY))
        async with lock, room, self._room:
            yield

    def _has_manifest(self, place: MirroredRepository, reference: str) -> bool:
        try:
            self._store.manifest(place.registry_id, place.repository, reference)
        except ManifestUnknown:
            return False
        return True

    def _note(self, key: tuple[str, str, str]) -> None:
        self._checked[key] = self._clock.monotonic() + TAG_SECONDS
        self._checked.move_to_end(key)
        if len(self._checked) > MOST_TAGS:
            self._checked.popitem(last=False)


def _another(what: str) -> RegistryError:
    return RegistryError(502, "UNAVAILABLE", f"The mirrored registry sent another {what} than was asked for.")


def _answered(error: UpstreamError) -> RegistryError:
    if error.is_missing:
        return RegistryError(404, "MANIFEST_UNKNOWN", str(error))
    return RegistryError(502, "UNAVAILABLE", f"{error} What is in the mirror already can be pulled.")
