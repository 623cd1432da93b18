"""The columns of an inventory, named as those of S3 Inventory are, and their values. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlencode

from neocloud.messages.nebius.storage.v1 import InventorySpec
from neocloud.object_store.lifecycle import expiration
from neocloud.object_store.metadata import versions
from neocloud.object_store.metadata.transaction import BucketRow, to_time
from neocloud.object_store.metadata.versions import VersionRow, show
from neocloud.object_store.storage_class import StorageClass

Value = str | int | bool | datetime | None
"""None: the version has no such thing, as a delete marker has no size."""
INFREQUENT_AFTER = timedelta(days=30)
"""The same time as in S3 Intelligent-Tiering."""


class Listed(NamedTuple):
    bucket: BucketRow
    row: VersionRow
    now_ms: int


@dataclass(frozen=True)
class Column:
    name: str
    value: Callable[[Listed], Value]
    kind: type[str] | type[int] | type[bool] | type[datetime] = str
    is_key: bool = False
    """Encode it as a URL where the format is text, as S3 Inventory does: keys hold any character."""


def _unless_marker(value: Callable[[VersionRow], Value]) -> Callable[[Listed], Value]:
    return lambda listed: None if listed.row.is_marker else value(listed.row)


def _checksum(row: VersionRow) -> Value:
    found = versions.load_checksum(row.checksum)
    return None if found is None else str(found.algorithm)


def _tags(listed: Listed) -> Value:
    """Return the tags as the header x-amz-tagging has them."""
    return None if listed.row.is_marker else urlencode(show(listed.row, listed.bucket).attributes.tags)


def _last_access(row: VersionRow) -> Value:
    return None if row.accessed_ms is None else to_time(row.accessed_ms)


def _tier(listed: Listed) -> Value:
    """Return the tier that S3 Intelligent-Tiering would have the object in; here it changes nothing."""
    row = listed.row
    if row.is_marker or row.storage_class != StorageClass.INTELLIGENT:
        return None
    unread_ms = listed.now_ms - max(row.modified_ms, row.accessed_ms or 0)
    return "FREQUENT" if unread_ms < INFREQUENT_AFTER // timedelta(milliseconds=1) else "INFREQUENT"


_FIRST = (
    Column("Bucket", lambda listed: listed.bucket.bucket.name),
    Column("Key", lambda listed: listed.row.key.decode(), is_key=True),
)
_OF_VERSIONS = (
    Column("VersionId", lambda listed: listed.row.version_id),
    Column("IsLatest", lambda listed: bool(listed.row.is_latest), bool),
    Column("IsDeleteMarker", lambda listed: bool(listed.row.is_marker), bool),
)
_LAST = (
    Column("Size", _unless_marker(lambda row: row.size), int),
    Column("LastModifiedDate", lambda listed: to_time(listed.row.modified_ms), datetime),
    Column("ETag", _unless_marker(lambda row: row.etag)),
    Column("StorageClass", _unless_marker(lambda row: row.storage_class)),
)
_OPTIONAL = {
    "CHECKSUM_ALGORITHMS": Column("ChecksumAlgorithm", _unless_marker(_checksum)),
    "IS_MULTIPART_UPLOAD": Column(
        "IsMultipartUploaded", _unless_marker(lambda row: row.part_count > 0), bool
    ),
    "LIFECYCLE_EXPIRATION": Column(
        "LifecycleExpirationDate", lambda listed: expiration(listed.bucket, listed.row), datetime
    ),
    "INTELLIGENT_TIER": Column("IntelligentTieringAccessTier", _tier),
    "LAST_ACCESS": Column("LastAccessDate", _unless_marker(_last_access), datetime),
    "TAGS": Column("Tags", _tags),
}


def columns_of(spec: InventorySpec) -> Sequence[Column]:
    """Return the columns that a specification asks for; fields that are not served are left out."""
    names = {InventorySpec.OptionalField.Name(each) for each in spec.optional_fields}
    optional = [column for name, column in _OPTIONAL.items() if name in names]
    return (*_FIRST, *(_OF_VERSIONS if spec.noncurrent_versions else ()), *_LAST, *optional)


def values(
    columns: Sequence[Column], bucket: BucketRow, found: Sequence[VersionRow], now_ms: int
) -> Sequence[Sequence[Value]]:
    """Return a line for each version."""
    listed = [Listed(bucket, row, now_ms) for row in found]
    return [[column.value(each) for column in columns] for each in listed]
