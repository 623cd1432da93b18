"""Images of a registry: blobs that are there, manifests and tags. How blobs come in is in `blob_uploads`.

A registry is a bucket. Repositories come to be with what is pushed to them.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from neocloud.object_store import conditions
from neocloud.object_store.backends.blobs.access import BlobAccess
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.reader import Reader, started
from neocloud.object_store.bodies.writer import open_body
from neocloud.object_store.errors import BlobUnknown, ContentInUse, ManifestUnknown
from neocloud.object_store.image_types import Manifest, ManifestPage, NewManifest, RemovedImages, TagPage
from neocloud.object_store.metadata import contents, image_rules, manifests, repositories, versions
from neocloud.object_store.metadata.contents import NewContent
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.transaction import BucketRow, Transaction, to_ms
from neocloud.object_store.metadata.versions import NewVersion
from neocloud.object_store.types import ALWAYS, Attributes, ByteRange, Expected, RequestClass

UNUSED_KEPT = timedelta(hours=1)
"""A blob that no manifest names is kept for so long after it was uploaded or asked for."""
COLLECTED_AT_ONCE = 500
RULED_AT_ONCE = 50
"""Images that go by rules in one transaction, with what belongs to them."""


class ContainerImages:
    """The images of all registries. Their content is kept as blobs."""

    def __init__(self, engine: Engine, access: BlobAccess) -> None:
        self._engine = engine
        self._access = access

    async def blob_size(self, bucket_id: str, repository: str, digest: str) -> int:
        """Return the size of a blob, which counts as used by that. Raises BlobUnknown."""
        bucket, number = self._repository(bucket_id, repository)
        reading = self._engine.database.reading
        used_ms = repositories.blob_used_ms(reading, bucket.number, number, digest)
        row = versions.latest(reading, bucket.number, digest.encode())
        if row is None:
            raise BlobUnknown("The repository has no blob of this digest.")

        def renew(tx: Transaction) -> None:
            again = tx.bucket(bucket_id)
            repositories.blob_used_ms(tx.connection, again.number, number, digest)  # it may be gone by now
            repositories.link(tx, again.number, number or 0, digest)

        if used_ms < self._engine.database.now_ms() - repositories.RENEW_MS:
            await self._engine.database.write(renew)
        return row.size

    async def open_blob(
        self, bucket_id: str, repository: str, digest: str, range: ByteRange | None = None
    ) -> Reader:
        """Return a reader whose first MiB was verified. Raises BlobUnknown, RangeNotSatisfiable, Damaged."""
        bucket, number = self._repository(bucket_id, repository)
        repositories.blob_used_ms(self._engine.database.reading, bucket.number, number, digest)
        return await self._opened(bucket, digest, range)

    async def mount_blob(
        self, bucket_id: str, repository: str, digest: str, source: tuple[str, str] | None = None
    ) -> bool:
        """Let a repository have a blob of another one, a bucket and a repository, or of any of this registry;
        return whether there is one. No byte moves. Raises QuotaExceeded."""

        def work(tx: Transaction) -> bool:
            bucket = tx.bucket(bucket_id)
            if not _take(tx, bucket, digest, source):
                return False
            tx.count(bucket.number, RequestClass.MODIFY)
            repositories.link(tx, bucket.number, repositories.ensure(tx, bucket.number, repository), digest)
            return True

        return await self._engine.database.write(work)

    async def delete_blob(self, bucket_id: str, repository: str, digest: str) -> None:
        """Raises BlobUnknown, ContentInUse."""

        def work(tx: Transaction) -> None:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, RequestClass.DELETE)
            number = repositories.find(tx.connection, bucket.number, repository)
            repositories.remove_blob(tx, bucket.number, number, digest)

        await self._engine.database.write(work)

    async def put_manifest(
        self, bucket_id: str, repository: str, new: NewManifest, body: bytes, tags: Sequence[str] = ()
    ) -> Manifest:
        """Store a manifest byte for byte, and let tags name it. The caller has checked its digest.
        Raises ReferenceMissing, ReferenceDiffers, QuotaExceeded."""

        def work(tx: Transaction, content: NewContent) -> Manifest:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, RequestClass.MODIFY)
            return manifests.put(tx, bucket, repository, new, content, tags).manifest(repository)

        async with await open_body(self._engine, bucket_id, len(body)) as writer:
            await writer.write(body)
            return await writer.commit_as(work, expected=Expected(size=len(body)))

    def manifest(self, bucket_id: str, repository: str, reference: str) -> Manifest:
        """Return a manifest by its digest or a tag. Raises ManifestUnknown."""
        bucket, number = self._repository(bucket_id, repository)
        reading = self._engine.database.reading
        return manifests.find(reading, bucket.number, number, reference).manifest(repository)

    async def open_manifest(self, bucket_id: str, repository: str, digest: str) -> Reader:
        """Raises ManifestUnknown, Damaged."""
        bucket, number = self._repository(bucket_id, repository)
        manifests.find(self._engine.database.reading, bucket.number, number, digest)
        return await self._opened(bucket, digest, None)

    async def delete_manifest(self, bucket_id: str, repository: str, digest: str) -> None:
        """Remove a manifest with its tags. Raises ManifestUnknown, ContentInUse."""

        def work(tx: Transaction) -> None:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, RequestClass.DELETE)
            number = repositories.find(tx.connection, bucket.number, repository)
            manifests.remove(tx, manifests.find(tx.connection, bucket.number, number, digest))

        await self._engine.database.write(work)

    async def delete_tag(self, bucket_id: str, repository: str, tag: str) -> None:
        """Raises ManifestUnknown."""

        def work(tx: Transaction) -> None:
            bucket = tx.bucket(bucket_id)
            tx.count(bucket.number, RequestClass.DELETE)
            manifests.remove_tag(tx, repositories.find(tx.connection, bucket.number, repository), tag)

        await self._engine.database.write(work)

    async def delete_artifacts(self, bucket_id: str, artifacts: Sequence[tuple[str, datetime]]) -> int:
        """Remove manifests by their ids in the API, each unless it was pushed after a time or an index names
        it. An image that is already removed is not an error."""

        def work(tx: Transaction) -> None:
            bucket = tx.any_bucket(bucket_id)
            for artifact, before in artifacts:
                try:
                    manifests.remove_artifact(tx, bucket.number, artifact, to_ms(before))
                except ContentInUse:
                    continue  # an index was pushed after the request

        await self._engine.database.write(work)
        return len(artifacts)

    def tags(self, bucket_id: str, repository: str, after: str, limit: int) -> TagPage:
        """Raises ManifestUnknown where nothing was ever pushed to the repository."""
        _, number = self._repository(bucket_id, repository)
        if number is None:
            raise ManifestUnknown("The repository does not exist.")
        return manifests.tags(self._engine.database.reading, number, after, limit)

    def referrers(
        self, bucket_id: str, repository: str, subject: str, artifact_type: str, after: int, limit: int
    ) -> ManifestPage:
        """Return the manifests that are about a subject, which need not exist, of a type ("": of any)."""
        _, number = self._repository(bucket_id, repository)
        if number is None:
            return ManifestPage((), 0)
        reading = self._engine.database.reading
        return manifests.referrers(reading, number, repository, subject, artifact_type, after, limit)

    def image_count(self, bucket_id: str) -> int:
        """Return the number of manifests that no index names, of a registry in any state."""
        reading = self._engine.database.reading
        row = reading.execute("SELECT number FROM bucket WHERE id = ?", (bucket_id,)).fetchone()
        return manifests.image_count(reading, row[0]) if row else 0

    async def apply_image_rules(self, bucket_id: str) -> int:
        """Remove the manifests that the rules of a registry remove; return how many. Pushes continue, and
        what is used again meanwhile stays.
        """
        engine = self._engine
        bucket = engine.bucket(bucket_id)
        rules, total = bucket.bucket.image_rules, 0
        found = await engine.in_thread(lambda: _due(engine.database, bucket)) if rules.is_any else ()

        def work(tx: Transaction, candidates: Sequence[tuple[int, int]]) -> int:
            again = tx.bucket(bucket_id)
            if again.bucket.image_rules != rules:
                return 0
            return image_rules.remove_due(tx, again.number, rules, candidates)

        for start in range(0, len(found), RULED_AT_ONCE):
            page = found[start : start + RULED_AT_ONCE]
            total += await engine.database.write(lambda tx, page=page: work(tx, page))
        return total

    def removed_images(self, bucket_id: str) -> RemovedImages | None:
        """Return what the rules of a registry in any state have removed so far; None: nothing."""
        return image_rules.removed(self._engine.database.reading, bucket_id)

    async def collect_blobs(self, before: datetime) -> int:
        """Remove blobs that no manifest names and nobody used since; return how many. Pushes continue."""
        total, before_ms = 0, to_ms(before)
        while found := await self._engine.database.write(
            lambda tx: repositories.collect(tx, before_ms, COLLECTED_AT_ONCE)
        ):
            total += found
        return total

    def _repository(self, bucket_id: str, repository: str) -> tuple[BucketRow, int | None]:
        bucket = self._engine.bucket(bucket_id)
        reading = self._engine.database.reading
        return bucket, repositories.find(reading, bucket.number, repository)

    async def _opened(self, bucket: BucketRow, digest: str, range: ByteRange | None) -> Reader:
        row = versions.find(self._engine.database.reading, bucket, digest.encode(), None)
        first, length = conditions.resolve(range, row.size)
        return await started(self._access.reader(bucket, row, first, length, None))


def _due(database: Database, bucket: BucketRow) -> Sequence[tuple[int, int]]:
    reading = database.open_reading()
    try:
        return image_rules.due(reading, bucket.number, bucket.bucket.image_rules, database.now_ms())
    finally:
        reading.close()


def _take(tx: Transaction, bucket: BucketRow, digest: str, source: tuple[str, str] | None) -> bool:
    """Return whether the registry has a blob, after the content was shared if another registry has it."""
    if source is None:
        return repositories.has_content(tx.connection, bucket.number, digest)
    other = tx.any_bucket(source[0])
    repository = repositories.find(tx.connection, other.number, source[1])
    try:
        repositories.blob_used_ms(tx.connection, other.number, repository, digest)
    except BlobUnknown:
        return False
    key = digest.encode()
    found = versions.latest(tx.connection, other.number, key)
    if found is None:
        return False
    if versions.latest(tx.connection, bucket.number, key) is None:
        contents.share(tx, found.content or 0)
        new = NewVersion(key, found.size, "", found.content or 0, Attributes(), None, found.part_count)
        versions.put(tx, bucket, new, ALWAYS)
    return True
