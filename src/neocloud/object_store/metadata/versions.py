"""Versions of objects: their rows; put and delete within a transaction, by the rules of S3's versioning."""

import re
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from neocloud.object_store.conditions import check_delete, check_put
from neocloud.object_store.errors import (
    InvalidRequest,
    IsDeleteMarker,
    NoSuchKey,
    NoSuchVersion,
    ObjectLocked,
)
from neocloud.object_store.metadata import contents
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.transaction import BucketRow, Transaction, kind_of, to_ms, to_time
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    NULL_VERSION,
    Attributes,
    Bucket,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    Deleted,
    DeleteItem,
    ObjectVersion,
    Retention,
    RetentionMode,
    Versioning,
    WriteConditions,
)

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


def select(connection: Connection, where: str, values: tuple[Any, ...]) -> VersionRow | None:
    """Return the first version `where`, a constant of this program, is true of."""
    query = f"SELECT {COLUMNS} FROM version WHERE {where} LIMIT 1"  # nosec B608
    row = connection.execute(query, values).fetchone()
    return None if row is None else VersionRow._make(row)


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


_VERSION_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class NewVersion:
    key: bytes
    size: int
    etag: str
    content: int
    attributes: Attributes
    checksum: Checksum | None
    part_count: int = 0
    customer_key_md5: str = ""


def latest(connection: Connection, bucket: int, key: bytes) -> VersionRow | None:
    """Return the newest version, which may be a delete marker."""
    return select(connection, "bucket = ? AND key = ? ORDER BY seq DESC", (bucket, key))


def by_id(connection: Connection, bucket: int, key: bytes, version_id: str) -> VersionRow | None:
    """Raises NoSuchVersion for an id that was never given to a version."""
    if version_id == NULL_VERSION:
        return select(connection, "bucket = ? AND key = ? AND is_null = 1 ORDER BY seq DESC", (bucket, key))
    if not _VERSION_ID.fullmatch(version_id):
        raise NoSuchVersion("There is no version of this id.")
    where = "version_id = ? AND is_null = 0 AND bucket = ? AND key = ?"
    return select(connection, where, (version_id, bucket, key))


def find(connection: Connection, bucket: BucketRow, key: bytes, version_id: str | None) -> VersionRow:
    """Return a version with content. Raises NoSuchKey, NoSuchVersion, IsDeleteMarker."""
    if version_id is None:
        row = latest(connection, bucket.number, key)
        if row is None or row.is_marker:
            raise NoSuchKey("The object does not exist.", row and show(row, bucket))
        return row
    row = by_id(connection, bucket.number, key, version_id)
    if row is None:
        raise NoSuchVersion("The object has no version of this id.")
    if row.is_marker:
        raise IsDeleteMarker("The version is a delete marker.", show(row, bucket))
    return row


def show(row: VersionRow, bucket: BucketRow) -> ObjectVersion:
    return row.version(bucket.bucket.versioning is not Versioning.DISABLED)


def class_for(bucket: Bucket, asked: StorageClass | None) -> StorageClass:
    if bucket.force_storage_class or asked is None:
        return bucket.default_storage_class
    return asked


def put(tx: Transaction, bucket: BucketRow, new: NewVersion, conditions: WriteConditions) -> ObjectVersion:
    """Make a content that the caller holds a version. Raises ConditionFailed, NoSuchKey, InvalidRequest."""
    found = latest(tx.connection, bucket.number, new.key)
    check_put(conditions, None if found is None or found.is_marker else show(found, bucket))
    retention = retention_for(tx, bucket.bucket, new.attributes)
    _give_way(tx, bucket, new.key, found)
    seq = tx.take_seq()
    is_null = bucket.bucket.versioning is not Versioning.ENABLED
    storage_class = class_for(bucket.bucket, new.attributes.storage_class)
    row = VersionRow(
        seq=seq,
        bucket=bucket.number,
        key=new.key,
        version_id=NULL_VERSION if is_null else secrets.token_hex(16),
        is_null=int(is_null),
        is_latest=1,
        is_marker=0,
        size=new.size,
        etag=new.etag,
        modified_ms=tx.now_ms,
        noncurrent_ms=None,
        storage_class=storage_class,
        content=new.content,
        part_count=new.part_count,
        checksum=dump_checksum(new.checksum),
        attributes=dump_attributes(new.attributes),
        retention_mode=retention and retention.mode,
        retention_ms=retention and to_ms(retention.until),
        legal_hold=int(new.attributes.has_legal_hold),
        customer_key_md5=new.customer_key_md5,
    )
    _insert(tx, row)
    tx.changes.add(bucket.number, storage_class, kind_of(True, new.part_count), 1, new.size)
    return show(row, bucket)


def delete(
    tx: Transaction, bucket: BucketRow, key: bytes, item: DeleteItem, *, bypass_governance: bool
) -> Deleted:
    """Raises ConditionFailed, NoSuchVersion, ObjectLocked."""
    if item.version_id is not None:
        return _delete_version(tx, bucket, key, item, bypass_governance=bypass_governance)
    found = latest(tx.connection, bucket.number, key)
    if found is not None:
        check_delete(item.conditions, show(found, bucket))
    elif item.conditions != WriteConditions():
        return Deleted(item.key, "", is_delete_marker=False, was_marker_written=False)
    _give_way(tx, bucket, key, found)
    if bucket.bucket.versioning is Versioning.DISABLED:
        return Deleted(item.key, "", is_delete_marker=False, was_marker_written=False)
    is_null = bucket.bucket.versioning is Versioning.SUSPENDED
    marker = VersionRow(
        seq=tx.take_seq(),
        bucket=bucket.number,
        key=key,
        version_id=NULL_VERSION if is_null else secrets.token_hex(16),
        is_null=int(is_null),
        is_latest=1,
        is_marker=1,
        size=0,
        etag="",
        modified_ms=tx.now_ms,
        noncurrent_ms=None,
        storage_class=bucket.bucket.default_storage_class,
        content=None,
        part_count=0,
        checksum=None,
        attributes=dump_attributes(Attributes()),
        retention_mode=None,
        retention_ms=None,
        legal_hold=0,
        customer_key_md5="",
    )
    _insert(tx, marker)
    return Deleted(item.key, marker.version_id, is_delete_marker=True, was_marker_written=True)


def remove(tx: Transaction, row: VersionRow, *, is_replaced: bool = False) -> None:
    """Remove a version and make the one before it the latest, if it was the latest and is not replaced."""
    tx.connection.execute("DELETE FROM version WHERE seq = ?", (row.seq,))
    if not row.is_marker:
        assert row.content is not None
        kind = kind_of(bool(row.is_latest), row.part_count)
        tx.changes.add(row.bucket, StorageClass(row.storage_class), kind, -1, -row.size)
        contents.release(tx, row.content)
    if is_replaced or not row.is_latest:
        return
    if (previous := latest(tx.connection, row.bucket, row.key)) is not None:
        _set_latest(tx, previous, is_latest=True)


def check_unlocked(tx: Transaction, row: VersionRow, *, bypass_governance: bool) -> None:
    """Raises ObjectLocked."""
    if row.legal_hold:
        raise ObjectLocked("The version is under a legal hold.")
    if row.retention_ms is None or row.retention_ms <= tx.now_ms:
        return
    if row.retention_mode == RetentionMode.COMPLIANCE or not bypass_governance:
        raise ObjectLocked(f"The version is retained until {to_time(row.retention_ms)}.")


def retention_for(tx: Transaction, bucket: Bucket, attributes: Attributes) -> Retention | None:
    """Raises InvalidRequest for a lock in a bucket without."""
    if not bucket.has_object_lock:
        if attributes.retention is not None or attributes.has_legal_hold:
            raise InvalidRequest("The bucket has no object lock.")
        return None
    if attributes.retention is not None or bucket.default_retention is None:
        return attributes.retention
    until = to_time(tx.now_ms) + bucket.default_retention.period
    return Retention(bucket.default_retention.mode, until)


def _give_way(tx: Transaction, bucket: BucketRow, key: bytes, found: VersionRow | None) -> None:
    """Make the latest version noncurrent; without versioning, remove the null version instead."""
    if bucket.bucket.versioning is not Versioning.ENABLED:
        is_found = found is None or found.is_null
        null = found if is_found else by_id(tx.connection, bucket.number, key, NULL_VERSION)
        if null is not None:
            check_unlocked(tx, null, bypass_governance=False)
            remove(tx, null, is_replaced=True)
        if is_found:
            return
    if found is not None:
        _set_latest(tx, found, is_latest=False)


def _delete_version(
    tx: Transaction, bucket: BucketRow, key: bytes, item: DeleteItem, *, bypass_governance: bool
) -> Deleted:
    assert item.version_id is not None
    row = by_id(tx.connection, bucket.number, key, item.version_id)
    if row is None:
        return Deleted(item.key, item.version_id, is_delete_marker=False, was_marker_written=False)
    check_delete(item.conditions, show(row, bucket))
    check_unlocked(tx, row, bypass_governance=bypass_governance)
    remove(tx, row)
    return Deleted(item.key, row.version_id, bool(row.is_marker), was_marker_written=False)


def _set_latest(tx: Transaction, row: VersionRow, *, is_latest: bool) -> None:
    tx.connection.execute(
        "UPDATE version SET is_latest = ?, noncurrent_ms = ? WHERE seq = ?",
        (int(is_latest), None if is_latest else tx.now_ms, row.seq),
    )
    if not row.is_marker:
        storage_class = StorageClass(row.storage_class)
        for kind_is_latest, sign in ((is_latest, 1), (not is_latest, -1)):
            kind = kind_of(kind_is_latest, row.part_count)
            tx.changes.add(row.bucket, storage_class, kind, sign, sign * row.size)


def _insert(tx: Transaction, row: VersionRow) -> None:
    marks = ", ".join("?" * len(row))
    tx.connection.execute(f"INSERT INTO version ({COLUMNS}) VALUES ({marks})", row)  # nosec B608
