"""Errors of the object store, in its own terms; the front translates them to S3's codes."""

from collections.abc import Sequence

from neocloud.object_store.types import ObjectVersion


class ObjectStoreError(Exception):
    """The message says what happened and what to do next. It names nothing of other tenants."""


class NoSuchBucket(ObjectStoreError):
    pass


class BucketNotEmpty(ObjectStoreError):
    pass


class NoSuchKey(ObjectStoreError):
    """`marker` is the delete marker where the latest version is one."""

    def __init__(self, message: str, marker: ObjectVersion | None = None) -> None:
        super().__init__(message)
        self.marker = marker


class NoSuchVersion(ObjectStoreError):
    pass


class IsDeleteMarker(ObjectStoreError):
    """The version that was asked for by its id is a delete marker, which has no content."""

    def __init__(self, message: str, marker: ObjectVersion) -> None:
        super().__init__(message)
        self.marker = marker


class NoSuchUpload(ObjectStoreError):
    pass


class InvalidPart(ObjectStoreError):
    """A part that is to be completed is missing, or has another ETag or checksum."""


class InvalidPartOrder(ObjectStoreError):
    pass


class InvalidPartNumber(ObjectStoreError):
    """The object has no such part."""


class PartTooSmall(ObjectStoreError):
    """A part that is not the last has less than 5 MiB."""


class InvalidKey(ObjectStoreError):
    """Empty, or not encodable in UTF-8."""


class KeyTooLong(InvalidKey):
    pass


class InvalidRequest(ObjectStoreError):
    """The call contradicts itself or the state of the bucket or upload."""


class ConditionFailed(ObjectStoreError):
    """`condition` is the name of the header: "If-Match", "If-None-Match", "If-Unmodified-Since"..."""

    def __init__(self, message: str, condition: str) -> None:
        super().__init__(message)
        self.condition = condition


class NotModified(ObjectStoreError):
    """A conditional read of what the client has already."""

    def __init__(self, message: str, version: ObjectVersion) -> None:
        super().__init__(message)
        self.version = version


class RangeNotSatisfiable(ObjectStoreError):
    def __init__(self, message: str, size: int) -> None:
        super().__init__(message)
        self.size = size


class QuotaExceeded(ObjectStoreError):
    pass


class TooLarge(ObjectStoreError):
    """More bytes than one put, one part or one object may have."""


class IncompleteBody(ObjectStoreError):
    """Fewer or more bytes than declared."""


class DigestMismatch(ObjectStoreError):
    """The body has another MD5 than Content-MD5 says."""


class ContentHashMismatch(ObjectStoreError):
    """The body has another SHA-256 than was signed."""


class ChecksumMismatch(ObjectStoreError):
    """The body, or the object of these parts, has another checksum than declared."""


class ObjectLocked(ObjectStoreError):
    """A retention period or a legal hold protects the version."""


class WrongCustomerKey(ObjectStoreError):
    """The object is encrypted by a key of the client, which is missing or another."""


class StoreFull(ObjectStoreError):
    """The disk has no room. Nothing was stored or lost."""


class StoreUnavailable(ObjectStoreError):
    """The disk or the database fails; try again later. Nothing was acknowledged."""


class StoreBusy(StoreUnavailable):
    """Raised when the storage of bodies or metadata does not answer now. Nothing was acknowledged."""


class Damaged(ObjectStoreError):
    """The stored bytes are not those that were written; none of the wrong ones is returned."""


class BlobUnknown(ObjectStoreError):
    """The repository has no blob of this digest."""


class ManifestUnknown(ObjectStoreError):
    """The repository has no manifest of this digest or tag."""


class ReferenceMissing(ObjectStoreError):
    """A manifest names blobs or manifests that the repository does not have."""

    def __init__(self, message: str, digests: Sequence[str]) -> None:
        super().__init__(message)
        self.digests = tuple(digests)


class ReferenceDiffers(ObjectStoreError):
    """A manifest gives a blob or manifest another size than it has."""


class ContentInUse(ObjectStoreError):
    """A manifest names the blob or manifest that is to be deleted."""
