# pyright: strict
"""Single objects of filesystem buckets, and lists of them; those of other buckets go to `operations`."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from neocloud.object_store import conditions as rules
from neocloud.object_store.bodies.engine import Engine
from neocloud.object_store.bodies.protocols import BodyReader, BodyWriter
from neocloud.object_store.bodies.writer import MAX_BODY_BYTES, too_large
from neocloud.object_store.errors import InvalidPartNumber, NoSuchVersion, ObjectStoreError
from neocloud.object_store.filesystems import listing
from neocloud.object_store.filesystems.files import BucketFiles, raise_explained
from neocloud.object_store.filesystems.listing import Selection
from neocloud.object_store.filesystems.paths import place_of
from neocloud.object_store.filesystems.reader import FileReader
from neocloud.object_store.filesystems.records import check_key, no_such_feature
from neocloud.object_store.filesystems.writer import FileWriter
from neocloud.object_store.last_access import AccessMethod
from neocloud.object_store.metadata.rows import VersionRow
from neocloud.object_store.metadata.transaction import BucketRow, Transaction
from neocloud.object_store.operations.buckets import BucketOperations
from neocloud.object_store.operations.lists import ListOperations
from neocloud.object_store.operations.objects import ObjectOperations
from neocloud.object_store.types import (
    MAX_PAGE,
    NULL_VERSION,
    READ_ALWAYS,
    ByteRange,
    ChecksumAlgorithm,
    Deleted,
    DeleteItem,
    ListPage,
    ObjectVersion,
    PartPage,
    ReadConditions,
    RequestClass,
    VersionPage,
)

_Result = TypeVar("_Result")
_THREADS = 8
"""Threads that wait for filesystems. They are not those of the object store: a slow filesystem delays only
itself."""


class FilesystemObjects(BucketOperations, ObjectOperations, ListOperations):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.file_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="filesystems")

    def files(self, bucket_id: str) -> BucketFiles | None:
        """Return the files of a filesystem bucket; None: it is another one. Raises NoSuchBucket."""
        view = self._engine.bucket(bucket_id).bucket.filesystem
        return None if view is None else BucketFiles(view)

    async def in_file_thread(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self.file_threads, call)

    async def open_write(
        self,
        bucket_id: str,
        length: int | None,
        *,
        key: str | None = None,
        algorithms: Collection[ChecksumAlgorithm] = (),
        customer_key: bytes | None = None,
    ) -> BodyWriter:
        files = self.files(bucket_id)
        if files is None or key is None:  # without a key it is a part
            return await super().open_write(
                bucket_id, length, key=key, algorithms=algorithms, customer_key=customer_key
            )
        check_key(customer_key)
        place_of(key)
        if length is not None and length > MAX_BODY_BYTES:
            raise too_large()
        return self.file_writer(bucket_id, files, length, algorithms, MAX_BODY_BYTES)

    def file_writer(
        self,
        bucket_id: str,
        files: BucketFiles,
        length: int | None,
        algorithms: Collection[ChecksumAlgorithm],
        most_bytes: int,
    ) -> FileWriter:
        return FileWriter(
            self._engine,
            self.file_threads,
            files,
            bucket_id,
            lambda request: self.count(bucket_id, request),
            length,
            algorithms,
            most_bytes,
        )

    async def head(
        self, bucket_id: str, key: str, version_id: str | None = None, *, customer_key: bytes | None = None
    ) -> ObjectVersion:
        files = self.files(bucket_id)
        if files is None:
            return await super().head(bucket_id, key, version_id, customer_key=customer_key)
        _check_version(version_id)
        check_key(customer_key)
        return await self.in_file_thread(lambda: files.find(key))

    async def find_version(self, bucket_id: str, key: str, version_id: str | None = None) -> ObjectVersion:
        if self.files(bucket_id) is None:
            return await super().find_version(bucket_id, key, version_id)
        return await self.head(bucket_id, key, version_id)

    def note_access(
        self, bucket_id: str, version: ObjectVersion, method: AccessMethod, user_agent: str
    ) -> None:
        if version.seq:  # files have none
            super().note_access(bucket_id, version, method, user_agent)

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
        files = self.files(bucket_id)
        if files is None:
            return await super().open_read(
                bucket_id,
                key,
                version_id,
                range=range,
                part_number=part_number,
                conditions=conditions,
                customer_key=customer_key,
            )
        _check_version(version_id)
        check_key(customer_key)
        _check_part(part_number)
        reader = await self.in_file_thread(lambda: self._reader_of(files, key, range, conditions))
        try:
            await reader.start()
        except BaseException:
            await reader.close()
            raise
        return reader

    def _reader_of(
        self, files: BucketFiles, key: str, range: ByteRange | None, conditions: ReadConditions
    ) -> FileReader:
        file, version, state = files.file(key)
        try:
            rules.check_read(conditions, version)
            first, length = rules.resolve(range, version.size)
        except BaseException:
            file.close()
            raise
        return FileReader(self.file_threads, file, state, version, first, length)

    async def part_range(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        part_number: int,
        *,
        customer_key: bytes | None = None,
    ) -> tuple[ObjectVersion, ByteRange]:
        if self.files(bucket_id) is None:
            return await super().part_range(
                bucket_id, key, version_id, part_number, customer_key=customer_key
            )
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
        if self.files(bucket_id) is None:
            return await super().parts_of(
                bucket_id, key, version_id, after=after, limit=limit, customer_key=customer_key
            )
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
        """Delete each as `delete` does, one after the other; what fails is returned in its place."""
        files = self.files(bucket_id)
        if files is None:
            return await super().delete_many(
                bucket_id, items, bypass_governance=bypass_governance, request=request
            )
        self.count(bucket_id, request)
        return await self.in_file_thread(lambda: [_deleted(files, item) for item in items])

    async def list_objects(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        start_after: str = "",
        limit: int = MAX_PAGE,
    ) -> ListPage:
        files = self.files(bucket_id)
        if files is None:
            return await super().list_objects(
                bucket_id, prefix=prefix, delimiter=delimiter, start_after=start_after, limit=limit
            )
        for each in (prefix, delimiter, start_after):
            rules.encode(each)
        selection = Selection(prefix, delimiter, start_after, rules.check_limit(limit))
        return await self.in_file_thread(lambda: _page(files, selection))

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
        if self.files(bucket_id) is None:
            return await super().list_versions(
                bucket_id,
                prefix=prefix,
                delimiter=delimiter,
                key_marker=key_marker,
                version_marker=version_marker,
                limit=limit,
            )
        page = await self.list_objects(
            bucket_id, prefix=prefix, delimiter=delimiter, start_after=key_marker, limit=limit
        )
        is_object = bool(page.objects) and page.objects[-1].key == page.next_marker
        marker = NULL_VERSION if is_object else ""
        return VersionPage(page.objects, page.prefixes, page.is_truncated, page.next_marker, marker)

    async def _change(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        change: Callable[[Transaction, BucketRow, VersionRow], VersionRow],
        request: RequestClass | None,
    ) -> ObjectVersion:
        """Tags, retention and legal holds of objects. Raises InvalidRequest where these are files."""
        if self.files(bucket_id) is not None:
            raise no_such_feature("tags and no object lock")
        return await super()._change(bucket_id, key, version_id, change, request)


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
