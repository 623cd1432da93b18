"""Types of the object store. Nothing here knows HTTP or SQL.

Keys are text of 1 to 1,024 bytes in UTF-8 and are ordered by these bytes. Times are in UTC. An ETag is the
bare value: hexadecimal digits, for multipart objects followed by "-" and the number of parts, without quotes.
Checksums are in base64, those of the type COMPOSITE followed by "-" and the number of parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from neocloud.object_store.filesystem_view import FilesystemView
from neocloud.object_store.front_settings import FrontSettings
from neocloud.object_store.last_access import AccessCondition
from neocloud.object_store.lifecycle_rules import ImageRules, LifecycleRule
from neocloud.object_store.storage_class import StorageClass

__all__ = ["LifecycleRule", "StorageClass"]

NULL_VERSION = "null"
"""The id of versions that were written while the bucket had no versioning."""
MAX_KEY_BYTES = 1024
MAX_PART_NUMBER = 10_000
MAX_PAGE = 1000


class Versioning(StrEnum):
    DISABLED = "DISABLED"
    """Never enabled: a put replaces the object."""
    ENABLED = "ENABLED"
    SUSPENDED = "SUSPENDED"
    """Versions that exist stay; a put replaces the null version."""


class BucketState(StrEnum):
    ACTIVE = "ACTIVE"
    SCHEDULED_FOR_DELETION = "SCHEDULED_FOR_DELETION"
    """Gone for S3 clients; it keeps its content until it is purged, and may become active again."""


class BucketKind(StrEnum):
    S3 = "S3"
    REGISTRY = "REGISTRY"
    """Holds container images; S3 clients do not see it."""


class RequestClass(StrEnum):
    """Classes by which requests are counted and billed."""

    READ = "read"
    MODIFY = "modify"
    LIST = "list"
    DELETE = "delete"


EGRESS, EGRESS_PRIVATE = "egress", "egress-private"
"""How bytes to clients are counted; private: to this machine and private networks, such as those of VMs."""


class ChecksumAlgorithm(StrEnum):
    CRC32 = "CRC32"
    CRC32C = "CRC32C"
    CRC64NVME = "CRC64NVME"
    SHA1 = "SHA1"
    SHA256 = "SHA256"


class ChecksumType(StrEnum):
    FULL_OBJECT = "FULL_OBJECT"
    COMPOSITE = "COMPOSITE"
    """The checksum of the checksums of the parts."""


class RetentionMode(StrEnum):
    GOVERNANCE = "GOVERNANCE"
    COMPLIANCE = "COMPLIANCE"


@dataclass(frozen=True)
class DesiredBucket:
    """A bucket as the control plane wants it."""

    id: str
    name: str
    project_id: str
    generation: int
    """Rises with every change; an older one than the applied is ignored."""
    created_at: datetime
    versioning: Versioning = Versioning.DISABLED
    max_size_bytes: int = 0
    """Most bytes of all versions and of parts of unfinished uploads; 0: no limit."""
    default_storage_class: StorageClass = StorageClass.STANDARD
    force_storage_class: bool = False
    """Objects get the default class whatever the client asks for."""
    lifecycle: tuple[LifecycleRule, ...] = ()
    access_filter: tuple[AccessCondition, ...] = ()
    """Reads that count as the last access of an object."""
    image_rules: ImageRules = ImageRules()
    """The rules that remove images from a registry."""
    state: BucketState = BucketState.ACTIVE
    kind: BucketKind = BucketKind.S3
    title: str = ""
    """The name for people, where it differs."""
    filesystem: FilesystemView | None = None
    """Where its objects are files; None: they lie in the object store."""
    document: bytes = b""
    """Whatever else belongs to the bucket (policy, CORS, audit...), kept as it is for the front."""


@dataclass(frozen=True)
class Bucket(DesiredBucket):
    """A bucket as it was applied, with what the control plane does not know: its object lock, and settings
    of the S3 front."""

    has_object_lock: bool = False
    """Versions may be protected; versioning stays enabled, and a lock is never taken away."""
    default_retention: "DefaultRetention | None" = None
    front: FrontSettings = FrontSettings()


@dataclass(frozen=True)
class DefaultRetention:
    """The retention of new versions, in days or in years of 365 days."""

    mode: RetentionMode
    days: int = 0
    years: int = 0

    @property
    def period(self) -> timedelta:
        return timedelta(days=self.days + 365 * self.years)


@dataclass(frozen=True)
class Retention:
    mode: RetentionMode
    until: datetime


@dataclass(frozen=True)
class Checksum:
    algorithm: ChecksumAlgorithm
    value: str
    type: ChecksumType = ChecksumType.FULL_OBJECT


@dataclass(frozen=True)
class Attributes:
    """Attributes that a client sets on an object beside its bytes."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Lower-case names of headers that are returned as they came: content-type, cache-control,
    content-disposition, content-encoding, content-language, expires, x-amz-website-redirect-location."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """User metadata by lower-case name, without "x-amz-meta-"."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    storage_class: StorageClass | None = None
    """None: the default of the bucket."""
    retention: Retention | None = None
    """None: the default of the bucket."""
    has_legal_hold: bool = False


@dataclass(frozen=True)
class ObjectVersion:
    """A version of an object, or a delete marker."""

    key: str
    version_id: str
    """NULL_VERSION where it was written without versioning."""
    is_latest: bool
    is_delete_marker: bool
    size: int
    etag: str
    modified_at: datetime
    """The time of the last change, in whole milliseconds."""
    storage_class: StorageClass
    attributes: Attributes
    checksum: Checksum | None
    """The one that the client asked for, or else CRC64NVME; None for delete markers."""
    part_count: int
    """0: not a multipart object."""
    is_versioned: bool
    """Whether the bucket has or had versioning, so that clients get the version id."""
    customer_key_md5: str = ""
    """The base64 MD5 of the key of the client that encrypts it; "": the key is ours."""
    seq: int = field(default=0, compare=False)
    """The number of the version, which never belongs to another one."""
    accessed_ms: int | None = field(default=None, compare=False)
    """The last read that was written, to the day; None: never."""


@dataclass(frozen=True)
class ListPage:
    """Objects and common prefixes of one page, each ordered by bytes."""

    objects: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]
    is_truncated: bool
    next_marker: str
    """The last key or common prefix of the page: pass it as `start_after` to continue; "" on the last page.
    """


@dataclass(frozen=True)
class VersionPage:
    """Versions by key, the newest first, delete markers included."""

    versions: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]
    is_truncated: bool
    next_key_marker: str
    next_version_marker: str
    """"" where the page ends with a common prefix."""


@dataclass(frozen=True)
class Upload:
    """A multipart upload that is neither completed nor aborted."""

    key: str
    upload_id: str
    created_at: datetime
    storage_class: StorageClass
    attributes: Attributes
    checksum_algorithm: ChecksumAlgorithm | None
    """None: the client asked for none; the object will have CRC64NVME."""
    checksum_type: ChecksumType
    customer_key_md5: str = ""


@dataclass(frozen=True)
class UploadPage:
    uploads: tuple[Upload, ...]
    """The uploads, sorted by key, then by time of creation."""
    prefixes: tuple[str, ...]
    is_truncated: bool
    next_key_marker: str
    next_upload_marker: str


@dataclass(frozen=True)
class Part:
    number: int
    size: int
    etag: str
    modified_at: datetime
    checksum: Checksum | None


@dataclass(frozen=True)
class PartPage:
    parts: tuple[Part, ...]
    is_truncated: bool
    next_number: int
    """Pass it as `after` to continue."""


@dataclass(frozen=True)
class CompletedPart:
    """A part as the client names it on completion."""

    number: int
    etag: str
    checksum: str = ""
    """The checksum in base64; "": not given."""


@dataclass(frozen=True)
class ByteRange:
    """`first` to `last`, both included. Without `first`: the last `last` bytes. Without `last`: all after."""

    first: int | None
    last: int | None


@dataclass(frozen=True)
class Source:
    """The source of a copy."""

    bucket_id: str
    key: str
    version_id: str | None = None
    """None: the latest."""
    customer_key: bytes | None = None


@dataclass(frozen=True)
class Expected:
    """Expected properties of a body; checked before anything is committed."""

    md5: bytes | None = None
    """The value of the Content-MD5 header, 16 bytes."""
    sha256: bytes | None = None
    """The value of x-amz-content-sha256, 32 bytes. `open_write` then needs SHA256 among its algorithms."""
    checksum: Checksum | None = None
    stored: ChecksumAlgorithm | None = None
    """The checksum that the object gets where `checksum` is not given; None: CRC64NVME."""
    size: int | None = None


UNCHECKED = Expected()


@dataclass(frozen=True)
class WriteConditions:
    """Checked in the transaction of the write, against the latest version."""

    if_match: str | None = None
    """An ETag, or "*": any object."""
    if_none_match: str | None = None
    """"*": no object may be there; or an ETag that it must not have."""
    if_modified_at: datetime | None = None
    """Condition of deletes: the time of the object, compared in whole seconds."""
    if_size: int | None = None
    """Condition of deletes: the size of the object."""


ALWAYS = WriteConditions()


@dataclass(frozen=True)
class ReadConditions:
    """Conditions of RFC 9110, section 13: if_match wins over if_unmodified_since, if_none_match over
    if_modified_since."""

    if_match: tuple[str, ...] = ()
    """ETags or "*"."""
    if_none_match: tuple[str, ...] = ()
    if_modified_since: datetime | None = None
    if_unmodified_since: datetime | None = None


READ_ALWAYS = ReadConditions()


@dataclass(frozen=True)
class DeleteItem:
    key: str
    version_id: str | None = None
    conditions: WriteConditions = ALWAYS


@dataclass(frozen=True)
class Deleted:
    """The result of a delete. Deleting what does not exist succeeds."""

    key: str
    version_id: str
    """The version that was removed, or the delete marker that was written; "" in an unversioned bucket."""
    is_delete_marker: bool
    """Whether a marker was written, or the version that was removed was one."""
    was_marker_written: bool


@dataclass(frozen=True)
class Counters:
    """Versions and parts of one storage class of a bucket, exact at the time of the last commit."""

    storage_class: StorageClass
    simple_objects: int = 0
    simple_bytes: int = 0
    multipart_objects: int = 0
    multipart_bytes: int = 0
    uploads: int = 0
    """Unfinished multipart uploads."""
    parts: int = 0
    """The parts of unfinished uploads."""
    part_bytes: int = 0
    noncurrent_simple_objects: int = 0
    noncurrent_simple_bytes: int = 0
    noncurrent_multipart_objects: int = 0
    noncurrent_multipart_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All that counts for the quota."""
        return (
            self.simple_bytes
            + self.multipart_bytes
            + self.part_bytes
            + self.noncurrent_simple_bytes
            + self.noncurrent_multipart_bytes
        )
