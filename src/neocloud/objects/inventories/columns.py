# pyright: strict
"""The columns of an inventory, named as those of S3 Inventory are, and their values. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from neocloud.messages.nebius.storage.v1 import InventorySpec
from neocloud.objects.lifecycle import expiration
from neocloud.objects.metadata import rows
from neocloud.objects.metadata.rows import VersionRow
from neocloud.objects.metadata.transaction import BucketRow
from neocloud.objects.metadata.versions import show

Value = str | int | bool | datetime | None
"""None: the version has no such thing, as a delete marker has no size."""


@dataclass(frozen=True)
class Column:
    name: str
    value: Callable[[BucketRow, VersionRow], Value]
    is_key: bool = False
    """Encode it as a URL where the format is text, as S3 Inventory does: keys hold any character."""


def _unless_marker(value: Callable[[VersionRow], Value]) -> Callable[[BucketRow, VersionRow], Value]:
    return lambda _, row: None if row.is_marker else value(row)


def _checksum(row: VersionRow) -> Value:
    found = rows.load_checksum(row.checksum)
    return None if found is None else str(found.algorithm)


def _tags(bucket: BucketRow, row: VersionRow) -> Value:
    """Return the tags as the header x-amz-tagging has them."""
    return None if row.is_marker else urlencode(show(row, bucket).attributes.tags)


_FIRST = (
    Column("Bucket", lambda bucket, _: bucket.bucket.name),
    Column("Key", lambda _, row: row.key.decode(), is_key=True),
)
_OF_VERSIONS = (
    Column("VersionId", lambda _, row: row.version_id),
    Column("IsLatest", lambda _, row: bool(row.is_latest)),
    Column("IsDeleteMarker", lambda _, row: bool(row.is_marker)),
)
_LAST = (
    Column("Size", _unless_marker(lambda row: row.size)),
    Column("LastModifiedDate", lambda _, row: rows.to_time(row.modified_ms)),
    Column("ETag", _unless_marker(lambda row: row.etag)),
    Column("StorageClass", _unless_marker(lambda row: row.storage_class)),
)
_OPTIONAL = {
    "CHECKSUM_ALGORITHMS": Column("ChecksumAlgorithm", _unless_marker(_checksum)),
    "IS_MULTIPART_UPLOAD": Column("IsMultipartUploaded", _unless_marker(lambda row: row.part_count > 0)),
    "LIFECYCLE_EXPIRATION": Column("LifecycleExpirationDate", expiration),
    "TAGS": Column("Tags", _tags),
}


def columns_of(spec: InventorySpec) -> Sequence[Column]:
    """Return the columns that a specification asks for; fields that are not served are left out."""
    names = {InventorySpec.OptionalField.Name(each) for each in spec.optional_fields}
    optional = [column for name, column in _OPTIONAL.items() if name in names]
    return (*_FIRST, *(_OF_VERSIONS if spec.noncurrent_versions else ()), *_LAST, *optional)


def values(
    columns: Sequence[Column], bucket: BucketRow, found: Sequence[VersionRow]
) -> Sequence[Sequence[Value]]:
    """Return a line for each version."""
    return [[column.value(bucket, row) for column in columns] for row in found]
