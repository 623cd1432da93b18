# pyright: strict
"""Versions as rows and as what callers get."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import orjson

from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    Attributes,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    ObjectVersion,
    Retention,
    RetentionMode,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Looked up rather than called: an enumeration's call takes ten times as long, which lists would feel.
_CLASSES = {str(each): each for each in StorageClass}
_ALGORITHMS = {str(each): each for each in ChecksumAlgorithm}
_TYPES = {str(each): each for each in ChecksumType}


class VersionRow(NamedTuple):
    seq: int
    bucket: int
    key: bytes
    version_id: str
    is_null: int
    is_latest: int
    is_marker: int
    size: int
    etag: str
    modified_ms: int
    noncurrent_ms: int | None
    storage_class: str
    content: int | None
    part_count: int
    checksum: str | None
    attributes: bytes
    retention_mode: str | None
    retention_ms: int | None
    legal_hold: int
    customer_key_md5: str
    accessed_ms: int | None = None
    """The last read that was written, to the day; None: never."""

    def version(self, is_versioned: bool) -> ObjectVersion:
        """Return the version as the callers of the store get it."""
        return ObjectVersion(
            key=self.key.decode(),
            version_id=self.version_id,
            is_latest=bool(self.is_latest),
            is_delete_marker=bool(self.is_marker),
            size=self.size,
            etag=self.etag,
            modified_at=to_time(self.modified_ms),
            storage_class=_CLASSES[self.storage_class],
            attributes=load_attributes(
                self.attributes, self.storage_class, self.retention_mode, self.retention_ms, self.legal_hold
            ),
            checksum=load_checksum(self.checksum),
            part_count=self.part_count,
            is_versioned=is_versioned,
            customer_key_md5=self.customer_key_md5,
            seq=self.seq,
            accessed_ms=self.accessed_ms,
        )


COLUMNS = ", ".join("class" if name == "storage_class" else name for name in VersionRow._fields)


def select(connection: Connection, where: str, values: tuple[object, ...]) -> VersionRow | None:
    """Return the first version `where`, a constant of this program, is true of."""
    query = f"SELECT {COLUMNS} FROM version WHERE {where} LIMIT 1"  # nosec B608
    row = connection.execute(query, values).fetchone()
    return None if row is None else VersionRow._make(row)


def to_time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def to_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def dump_checksum(checksum: Checksum | None) -> str | None:
    return None if checksum is None else f"{checksum.algorithm}:{checksum.type}:{checksum.value}"


def load_checksum(text: str | None) -> Checksum | None:
    if text is None:
        return None
    algorithm, type, value = text.split(":")
    return Checksum(_ALGORITHMS[algorithm], value, _TYPES[type])


def dump_attributes(attributes: Attributes) -> bytes:
    """Return headers, metadata and tags; the rest has columns of its own."""
    return orjson.dumps([attributes.headers, attributes.metadata, attributes.tags])


def load_attributes(
    text: bytes, storage_class: str, mode: str | None, until_ms: int | None, legal_hold: int
) -> Attributes:
    headers, metadata, tags = orjson.loads(text)
    retention = None
    if mode is not None and until_ms is not None:
        retention = Retention(RetentionMode(mode), to_time(until_ms))
    return Attributes(headers, metadata, tags, _CLASSES[storage_class], retention, bool(legal_hold))
