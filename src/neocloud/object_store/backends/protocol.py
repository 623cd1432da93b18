"""The interface of backends that keep the objects of buckets: as blobs (`blobs`), or as files of a shared
filesystem (`files`).

Each method may raise StoreUnavailable and NoSuchBucket, each that writes StoreFull. Methods that write take
`request`: how the request is counted once it has succeeded; None: not at all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from neocloud.object_store.bodies.protocols import BodyReader, BodyWriter
from neocloud.object_store.errors import ObjectStoreError
from neocloud.object_store.metadata.transaction import BucketRow, Transaction
from neocloud.object_store.metadata.versions import VersionRow
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    ALWAYS,
    MAX_PAGE,
    READ_ALWAYS,
    UNCHECKED,
    Attributes,
    ByteRange,
    ChecksumAlgorithm,
    ChecksumType,
    CompletedPart,
    Deleted,
    DeleteItem,
    Expected,
    ListPage,
    ObjectVersion,
    Part,
    PartPage,
    ReadConditions,
    RequestClass,
    Source,
    Upload,
    VersionPage,
    WriteConditions,
)

VersionChange = Callable[[Transaction, BucketRow, VersionRow], VersionRow]
"""Returns the changed version, in the transaction of the change."""


class BucketBackend(Protocol):
    keeps_tags: bool
    """Whether objects can have tags."""

    async def open_write(
        self,
        bucket_id: str,
        length: int | None,
        *,
        key: str | None = None,
        algorithms: Collection[ChecksumAlgorithm] = (),
        customer_key: bytes | None = None,
    ) -> BodyWriter:
        """Begin a body of a declared length; None: unknown. With `key`, the object that it replaces counts as
        room that becomes free; without, the body is a part. All algorithms that `Expected` will need have to
        be named here; CRC64NVME is always computed. Raises QuotaExceeded, TooLarge, InvalidRequest."""
        ...

    async def head(
        self, bucket_id: str, key: str, version_id: str | None = None, *, customer_key: bytes | None = None
    ) -> ObjectVersion:
        """Raises NoSuchKey, NoSuchVersion, IsDeleteMarker, WrongCustomerKey."""
        ...

    async def find_version(self, bucket_id: str, key: str, version_id: str | None = None) -> ObjectVersion:
        """Return a version whose content is not needed, whatever key encrypts it. Raises as head."""
        ...

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
        """Return a reader whose first MiB was verified. Use it as a context manager. Raises as head, and
        NotModified, ConditionFailed, RangeNotSatisfiable, InvalidPartNumber, Damaged."""
        ...

    async def part_range(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        part_number: int,
        *,
        customer_key: bytes | None = None,
    ) -> tuple[ObjectVersion, ByteRange]:
        """Return what HEAD with a part number answers. Raises as head, and InvalidPartNumber."""
        ...

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
        """Return the parts of a multipart object; none of a simple one. Raises as head."""
        ...

    async def delete_many(
        self,
        bucket_id: str,
        items: Sequence[DeleteItem],
        *,
        bypass_governance: bool = False,
        request: RequestClass | None = RequestClass.DELETE,
    ) -> Sequence[Deleted | ObjectStoreError]:
        """Delete each as `ObjectStore.delete` does: blobs in one transaction, files one after the other. The
        error of a failed one is returned in its place."""
        ...

    async def change_version(
        self,
        bucket_id: str,
        key: str,
        version_id: str | None,
        change: VersionChange,
        request: RequestClass | None,
    ) -> ObjectVersion:
        """Change tags, retention or legal hold. Raises as head; InvalidRequest where objects are files."""
        ...

    async def list_objects(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        start_after: str = "",
        limit: int = MAX_PAGE,
    ) -> ListPage:
        """Return the latest versions that are no delete markers, after a key or common prefix (exclusive)."""
        ...

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
        """Return versions after a version of a key; without `version_marker`, after all versions of it.
        Raises NoSuchVersion for a marker that cannot be the id of a version."""
        ...

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
        """Raises InvalidKey, InvalidRequest (an algorithm that does not have this type)."""
        ...

    async def complete_upload(
        self,
        bucket_id: str,
        key: str,
        upload_id: str,
        parts: Sequence[CompletedPart],
        *,
        expected: Expected = UNCHECKED,
        conditions: WriteConditions = ALWAYS,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        """Make the parts an object. A repeated call returns the same version, while it is there and for a
        day. Raises NoSuchUpload, InvalidPart, InvalidPartOrder, PartTooSmall, ChecksumMismatch,
        ConditionFailed, NoSuchKey (If-Match on nothing), InvalidRequest, TooLarge."""
        ...


class Copies(Protocol):
    """Copies of objects and of ranges of them, from one bucket to another or within one."""

    async def copy(
        self,
        source: Source,
        bucket_id: str,
        key: str,
        *,
        attributes: Attributes | None = None,
        tags: Mapping[str, str] | None = None,
        storage_class: StorageClass | None = None,
        algorithm: ChecksumAlgorithm | None = None,
        source_conditions: ReadConditions = READ_ALWAYS,
        conditions: WriteConditions = ALWAYS,
        customer_key: bytes | None = None,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> ObjectVersion:
        """Copy an object, also to itself with other attributes.

        `attributes` or `tags` None: those of the source. Storage class, retention and legal hold are never
        those of the source: they are in `attributes`, or `storage_class` and the defaults. Raises as head and
        commit.
        """
        ...

    async def copy_part(
        self,
        source: Source,
        bucket_id: str,
        key: str,
        upload_id: str,
        number: int,
        *,
        range: ByteRange | None = None,
        source_conditions: ReadConditions = READ_ALWAYS,
        customer_key: bytes | None = None,
        request: RequestClass | None = RequestClass.MODIFY,
    ) -> Part:
        """Make a range of an object a part. A range that is not whole within the object is refused. Raises as
        open_read and commit_part."""
        ...
