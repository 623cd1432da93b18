"""Multipart uploads within a transaction. Parts become an object without a byte being moved."""

import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from neocloud.object_store import checksums
from neocloud.object_store.errors import (
    ChecksumMismatch,
    InvalidPart,
    InvalidPartOrder,
    InvalidRequest,
    NoSuchUpload,
    PartTooSmall,
    TooLarge,
)
from neocloud.object_store.metadata import contents, versions
from neocloud.object_store.metadata.connection import Connection, Row
from neocloud.object_store.metadata.transaction import BucketRow, CounterKind, Transaction, to_ms, to_time
from neocloud.object_store.metadata.versions import NewVersion
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    MAX_PART_NUMBER,
    Attributes,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    CompletedPart,
    Expected,
    ObjectVersion,
    Part,
    Upload,
    WriteConditions,
)

MIN_PART_BYTES = 5 * 1024**2
MAX_OBJECT_BYTES = 5 * 1024**4


class UploadRow(NamedTuple):
    number: int
    id: str
    bucket: int
    key: bytes
    created_ms: int
    storage_class: str
    attributes: bytes
    retention_mode: str | None
    retention_ms: int | None
    legal_hold: int
    algorithm: str | None
    checksum_type: str
    customer_key_md5: str

    def upload(self) -> Upload:
        return Upload(
            key=self.key.decode(),
            upload_id=self.id,
            created_at=to_time(self.created_ms),
            storage_class=StorageClass(self.storage_class),
            attributes=versions.load_attributes(
                self.attributes, self.storage_class, self.retention_mode, self.retention_ms, self.legal_hold
            ),
            checksum_algorithm=None if self.algorithm is None else ChecksumAlgorithm(self.algorithm),
            checksum_type=ChecksumType(self.checksum_type),
            customer_key_md5=self.customer_key_md5,
        )


class PartRow(NamedTuple):
    number: int
    content: int
    size: int
    etag: str
    modified_ms: int
    checksum: str | None

    def part(self) -> Part:
        modified_at = to_time(self.modified_ms)
        return Part(self.number, self.size, self.etag, modified_at, versions.load_checksum(self.checksum))


COLUMNS = ", ".join("class" if name == "storage_class" else name for name in UploadRow._fields)
_NEW_COLUMNS = COLUMNS.partition(", ")[2]
"""All but the number, which the database gives."""
PART_COLUMNS = ", ".join(PartRow._fields)


def select(connection: Connection, where: str, *values: object) -> Iterator[Row]:
    """Return the uploads that `where`, a constant of this program, is true of."""
    return connection.execute(f"SELECT {COLUMNS} FROM upload WHERE {where}", values)  # nosec B608


def by_id(connection: Connection, upload_id: str) -> UploadRow | None:
    row = next(select(connection, "id = ?", upload_id), None)
    return None if row is None else UploadRow._make(row)


def find(connection: Connection, bucket: BucketRow, key: bytes, upload_id: str) -> UploadRow:
    """Raises NoSuchUpload."""
    row = by_id(connection, upload_id)
    if row is None or (row.bucket, row.key) != (bucket.number, key):
        raise NoSuchUpload("The upload does not exist: it was completed or aborted, or is of another key.")
    return row


def create(
    tx: Transaction,
    bucket: BucketRow,
    key: bytes,
    attributes: Attributes,
    algorithm: ChecksumAlgorithm | None,
    checksum_type: ChecksumType | None,
    customer_key_md5: str,
) -> Upload:
    """Raises InvalidRequest."""
    type = checksum_type or checksums.default_type(algorithm)
    if not checksums.has_type(algorithm, type):
        raise InvalidRequest(f"There is no checksum {algorithm} of the type {type} of multipart objects.")
    retention = versions.retention_for(tx, bucket.bucket, attributes)
    row = UploadRow(
        number=0,
        id=secrets.token_hex(16),
        bucket=bucket.number,
        key=key,
        created_ms=tx.now_ms,
        storage_class=versions.class_for(bucket.bucket, attributes.storage_class),
        attributes=versions.dump_attributes(attributes),
        retention_mode=retention and retention.mode,
        retention_ms=retention and to_ms(retention.until),
        legal_hold=int(attributes.has_legal_hold),
        algorithm=algorithm,
        checksum_type=type,
        customer_key_md5=customer_key_md5,
    )
    marks = ", ".join("?" * len(row[1:]))
    tx.connection.execute(f"INSERT INTO upload ({_NEW_COLUMNS}) VALUES ({marks})", row[1:])  # nosec B608
    tx.changes.add(bucket.number, StorageClass(row.storage_class), CounterKind.UPLOAD, 1, 0)
    return row.upload()


def put_part(tx: Transaction, upload: UploadRow, part: PartRow) -> Part:
    """Make a content that the caller holds a part, in place of an earlier one. Raises InvalidRequest."""
    if not 1 <= part.number <= MAX_PART_NUMBER:
        raise InvalidRequest(f"Parts have numbers from 1 to {MAX_PART_NUMBER:,}.")
    earlier = _parts(tx.connection, upload, "AND number = ?", part.number)
    for each in earlier:
        _drop(tx, upload, each)
    tx.connection.execute(
        f"INSERT INTO part (upload, {PART_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # nosec B608
        (upload.number, *part),
    )
    tx.changes.add(upload.bucket, StorageClass(upload.storage_class), CounterKind.PART, 1, part.size)
    return part.part()


def parts(connection: Connection, upload: UploadRow, after: int, limit: int) -> list[PartRow]:
    return _parts(connection, upload, "AND number > ? ORDER BY number LIMIT ?", after, limit)


def abort(tx: Transaction, upload: UploadRow) -> None:
    for part in _parts(tx.connection, upload, ""):
        _drop(tx, upload, part)
    _remove(tx, upload)


def complete(
    tx: Transaction,
    bucket: BucketRow,
    upload: UploadRow,
    named: Sequence[CompletedPart],
    expected: Expected,
    conditions: WriteConditions,
) -> ObjectVersion:
    """Raises InvalidPart, InvalidPartOrder, PartTooSmall, ChecksumMismatch, ConditionFailed, NoSuchKey,
    InvalidRequest, TooLarge."""
    uploaded = {row.number: row for row in _parts(tx.connection, upload, "")}
    used, size, checksum = checked(uploaded, upload, named, expected)
    content = _composed(tx, used)
    for number in uploaded.keys() - {part.number for part in used}:
        _drop(tx, upload, uploaded[number])
    storage_class = StorageClass(upload.storage_class)
    tx.changes.add(upload.bucket, storage_class, CounterKind.PART, -len(used), -size)
    _remove(tx, upload)
    new = NewVersion(
        upload.key,
        size,
        checksums.multipart_etag([part.etag for part in used]),
        content,
        upload.upload().attributes,
        checksum,
        len(used),
        upload.customer_key_md5,
    )
    version = versions.put(tx, bucket, new, conditions)
    values = (upload.id, upload.bucket, upload.key, version.seq, tx.now_ms)
    tx.connection.execute("INSERT INTO completed VALUES (?, ?, ?, ?, ?)", values)
    return version


def checked(
    uploaded: dict[int, PartRow], upload: UploadRow, named: Sequence[CompletedPart], expected: Expected
) -> tuple[list[PartRow], int, Checksum]:
    """Return the parts that become the object, its size and its checksum. Raises as complete."""
    used = _chosen(uploaded, named)
    size = sum(part.size for part in used)
    if size > MAX_OBJECT_BYTES:
        raise TooLarge("An object has at most 5 TiB.")
    if expected.size not in (None, size):
        raise InvalidRequest(f"The parts have {size:,} bytes together, not {expected.size:,}.")
    found = [(versions.load_checksum(part.checksum), part.size) for part in used]
    checksum = checksums.of_parts(
        ChecksumType(upload.checksum_type), [(each, length) for each, length in found if each is not None]
    )
    asked = expected.checksum
    if asked is not None and not checksums.is_of_object(asked, checksum):
        raise ChecksumMismatch(f"The object of these parts has another {asked.algorithm} checksum.")
    return used, size, checksum


def take_content(tx: Transaction, upload: UploadRow) -> tuple[int, int, int]:
    """End an upload whose parts, of any size, become one content. Return it, its size and how many they are,
    0 for one."""
    used = _parts(tx.connection, upload, "ORDER BY number")
    size = sum(part.size for part in used)
    content = used[0].content if len(used) == 1 else _composed(tx, used)
    tx.changes.add(upload.bucket, StorageClass(upload.storage_class), CounterKind.PART, -len(used), -size)
    _remove(tx, upload)
    return content, size, len(used) if len(used) > 1 else 0


def completed_version(
    connection: Connection, bucket: BucketRow, key: bytes, upload_id: str
) -> ObjectVersion | None:
    """Return what an upload became, for a client that asks again because it missed the answer."""
    row = connection.execute(
        "SELECT seq FROM completed WHERE upload_id = ? AND bucket = ? AND key = ?",
        (upload_id, bucket.number, key),
    ).fetchone()
    found = None if row is None else versions.select(connection, "seq = ?", (row[0],))
    return None if found is None else versions.show(found, bucket)


def _chosen(uploaded: dict[int, PartRow], named: Sequence[CompletedPart]) -> list[PartRow]:
    if not named:
        raise InvalidRequest("An upload is completed with one part at least.")
    numbers = [each.number for each in named]
    if any(one >= next for one, next in zip(numbers, numbers[1:], strict=False)):
        raise InvalidPartOrder("Parts are named in the order of their numbers, each once.")
    used: list[PartRow] = []
    for each in named:
        found = uploaded.get(each.number)
        checksum = versions.load_checksum(found.checksum) if found else None
        if found is None or found.etag != each.etag:
            raise InvalidPart(f"Part {each.number} was not uploaded, or has another ETag.")
        if each.checksum and (checksum is None or checksum.value != each.checksum):
            raise InvalidPart(f"Part {each.number} has another checksum.")
        used.append(found)
    if any(part.size < MIN_PART_BYTES for part in used[:-1]):
        raise PartTooSmall("Each part but the last has 5 MiB at least.")
    return used


def _composed(tx: Transaction, used: Sequence[PartRow]) -> int:
    content = contents.compose(
        tx, [piece for part in used for piece in contents.take_pieces(tx, part.content)]
    )
    start = 0
    for part in used:
        tx.connection.execute(
            "INSERT INTO object_part VALUES (?, ?, ?, ?, ?, ?, ?)",
            (content, part.number, start, part.size, part.etag, part.checksum, part.modified_ms),
        )
        start += part.size
    return content


def _parts(connection: Connection, upload: UploadRow, where: str, *values: object) -> list[PartRow]:
    found = connection.execute(
        f"SELECT {PART_COLUMNS} FROM part WHERE upload = ? {where}",  # nosec B608
        (upload.number, *values),
    )
    return [PartRow._make(row) for row in found]


def _drop(tx: Transaction, upload: UploadRow, part: PartRow) -> None:
    values = (upload.number, part.number)
    tx.connection.execute("DELETE FROM part WHERE upload = ? AND number = ?", values)
    contents.release(tx, part.content)
    tx.changes.add(upload.bucket, StorageClass(upload.storage_class), CounterKind.PART, -1, -part.size)


def _remove(tx: Transaction, upload: UploadRow) -> None:
    tx.connection.execute("DELETE FROM part WHERE upload = ?", (upload.number,))
    tx.connection.execute("DELETE FROM upload WHERE number = ?", (upload.number,))
    tx.changes.add(upload.bucket, StorageClass(upload.storage_class), CounterKind.UPLOAD, -1, 0)
