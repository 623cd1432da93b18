"""Buckets whose objects are files: put, get, delete and list them.

The parts of unfinished uploads are blobs, as those of all buckets, out of sight of the filesystem.
"""

from collections.abc import Collection, Sequence

from neocloud.core.cleanup import undo_on_error
from neocloud.object_store import conditions as rules
from neocloud.object_store.backends.files import listing
from neocloud.object_store.backends.files.access import FileAccess
from neocloud.object_store.backends.files.completion import UploadCompletion
from neocloud.object_store.backends.files.files import BucketFiles, raise_explained
from neocloud.object_store.backends.files.listing import Selection
from neocloud.object_store.backends.files.paths import file_path
from neocloud.object_store.backends.files.reader import FileReader
from neocloud.object_store.backends.files.records import check_attributes, check_key, no_such_feature
from neocloud.object_store.backends.protocol import BucketBackend, VersionChange
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.protocols import BodyReader, BodyWriter
from neocloud.object_store.bodies.reader import started
from neocloud.object_store.bodies.writer import MAX_BODY_BYTES, check_length
from neocloud.object_store.errors import InvalidPartNumber, NoSuchVersion, ObjectStoreError
from neocloud.object_store.types import (
    MAX_PAGE,
    NULL_VERSION,
    READ_ALWAYS,
    Attributes,
    ByteRange,
    ChecksumAlgorithm,
    ChecksumType,
    Deleted,
    DeleteItem,
    ListPage,
    ObjectVersion,
    PartPage,
    ReadConditions,
    RequestClass,
    Upload,
    VersionPage,
)


class FileBackend:
    """A `BucketBackend`."""

    keeps_tags: bool = False

    def __init__(self, engine: Engine, access: FileAccess, parts: BucketBackend) -> None:
        """`parts` keeps the parts of unfinished uploads."""
        self._access = access
        self._parts = parts
        self.complete_upload = UploadCompletion(engine, access).complete_upload

    async def open_write(
        self,
        bucket_id: str,
        length: int | None,
        *,
        key: str | None = None,
        algorithms: Collection[ChecksumAlgorithm] = (),
        customer_key: bytes | None = None,
    ) -> BodyWriter:
        if key is None:  # a part
            return await self._parts.open_write(
                bucket_id, length, algorithms=algorithms, customer_key=customer_key
            )
        check_key(customer_key)
        file_path(key)
        check_length(length)
        return self._access.writer(bucket_id, length, algorithms, MAX_BODY_BYTES)

    async def head(
        self, bucket_id: str, key: str, version_id: str | None = None, *, customer_key: bytes | None = None
    ) -> ObjectVersion:
        files = self._access.files(bucket_id)
        _check_version(version_id)
        check_key(customer_key)
        return await self._access.in_thread(lambda: files.find(key))

    async def find_version(self, bucket_id: str, key: str, version_id: str | None = None) -> ObjectVersion:
        return await self.head(bucket_id, key, version_id)

    async def open_read(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None = None,
        *,
        range: ByteRange | None = None,
        part_number: int | None = None,
        conditions: ReadConditions = READ_ALWAYS,
        customer_key: bytes | None = None,
    ) -> BodyReader:
        files = self._access.files(bucket_id)
        _check_version(version_id)
        check_key(customer_key)
        _check_part(part_number)
        reader = await self._access.in_thread(lambda: self._reader_of(files, key, range, conditions))
        return await started(reader)

    def _reader_of(
        self, files: BucketFiles, key: str, range: ByteRange | None, conditions: ReadConditions
    ) -> FileReader:
        file, version, state = files.file(key)
        with undo_on_error(file.close):
            rules.check_read(conditions, version)
            first, length = rules.resolve(range, version.size)
        return FileReader(self._access.threads, file, state, version, first, length)

    async def part_range(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        part_number: int,
        *,
        customer_key: bytes | None = None,
    ) -> tuple[ObjectVersion, ByteRange]:
        version = await self.head(bucket_id, key, version_id, customer_key=customer_key)
        _check_part(part_number)
        return version, ByteRange(0, max(version.size - 1, 0))

    async def parts_of(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None = None,
        *,
        after: int = 0,
        limit: int = MAX_PAGE,
        customer_key: bytes | None = None,
    ) -> PartPage:
        await self.head(bucket_id, key, version_id, customer_key=customer_key)
        return PartPage((), False, 0)

    async def delete_many(
        self,
        bucket_id: str,
        items: Sequence[DeleteItem],
        *,
        bypass_governance: bool = False,
        request: RequestClass | None = RequestClass.DELETE,
    ) -> Sequence[Deleted | ObjectStoreError]:
        files = self._access.files(bucket_id)
        self._access.count(bucket_id, request)
        return await self._access.in_thread(lambda: [_deleted(files, item) for item in items])

    async def list_objects(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        start_after: str = "",
        limit: int = MAX_PAGE,
    ) -> ListPage:
        files = self._access.files(bucket_id)
        for each in (prefix, delimiter, start_after):
            rules.encode(each)
        selection = Selection(prefix, delimiter, start_after, rules.check_limit(limit))
        return await self._access.in_thread(lambda: _page(files, selection))

    async def list_versions(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        key_marker: str = "",
        version_marker: str = "",
        limit: int = MAX_PAGE,
    ) -> VersionPage:
        """Return the files, each of which has the one version "null"."""
        page = await self.list_objects(
            bucket_id, prefix=prefix, delimiter=delimiter, start_after=key_marker, limit=limit
        )
        is_object = bool(page.objects) and page.objects[-1].key == page.next_marker
        marker = NULL_VERSION if is_object else ""
        return VersionPage(page.objects, page.prefixes, page.is_truncated, page.next_marker, marker)

    async def change_version(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        change: VersionChange,
        request: RequestClass | None,
    ) -> ObjectVersion:
        raise no_such_feature("tags and no object lock")

    async def create_upload(
        self,
        bucket_id: str,
        key: str,
        attributes: Attributes,
        *,
        algorithm: ChecksumAlgorithm | None = None,
        checksum_type: ChecksumType | None = None,
        customer_key: bytes | None = None,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> Upload:
        check_attributes(attributes)
        check_key(customer_key)
        file_path(key)
        return await self._parts.create_upload(
            bucket_id, key, attributes, algorithm=algorithm, checksum_type=checksum_type, request=request
        )

    async def close(self) -> None:
        await self._access.close()


def _page(files: BucketFiles, selection: Selection) -> ListPage:
    with files.root() as root:
        try:
            return listing.page(root, selection)
        except OSError as error:
            raise_explained(error)


def _deleted(files: BucketFiles, item: DeleteItem) -> Deleted | ObjectStoreError:
    try:
        _check_version(item.version_id)
        rules.key_bytes(item.key)
        files.delete(item.key, item.conditions)
    except ObjectStoreError as error:
        return error
    return Deleted(item.key, item.version_id or "", is_delete_marker=False, was_marker_written=False)


def _check_version(version_id: str | None) -> None:
    """Raises NoSuchVersion."""
    if version_id not in (None, NULL_VERSION):
        raise NoSuchVersion("A filesystem bucket has no versions.")


def _check_part(number: int | None) -> None:
    """Raises InvalidPartNumber."""
    if number not in (None, 1):
        raise InvalidPartNumber("The object has one part.")
