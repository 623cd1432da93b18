"""The metadata of a file, kept in an extended attribute of it.

The record names the size and time of the file that it was written for: a file that a program changed has
another ETag at once. Programs on the filesystem can write the attribute themselves, so it is read like all
their data: bounded, and as a whole or not at all.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from neocloud.object_store.errors import InvalidRequest
from neocloud.object_store.storage_class import StorageClass
from neocloud.object_store.types import (
    NULL_VERSION,
    Attributes,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    ObjectVersion,
)

ATTRIBUTE = "user.neocloud.s3"
MAX_RECORD_BYTES = 3500
"""ext4 has room for one block of 4,096 bytes for all attributes of a file."""
EMPTY_ETAG = hashlib.md5(usedforsecurity=False).hexdigest()
"""The ETag of directories: they have no content."""
_HEADERS = frozenset(
    {
        *("content-type", "cache-control", "content-disposition", "content-encoding"),
        *("content-language", "expires", "x-amz-website-redirect-location"),
    }
)
_ETAG = re.compile(r"[0-9a-f]{32}(-[0-9]{1,5})?")
_UPLOAD = re.compile(r"[0-9a-f]{0,64}")
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,256}")
_CHECKSUM = re.compile(r"[A-Za-z0-9+/=]{1,88}(-[0-9]{1,5})?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNSUPPORTED = (errno.ENOTSUP, errno.EPERM)
_TOO_LARGE = (errno.E2BIG, errno.ERANGE)


@dataclass(frozen=True)
class FileRecord:
    etag: str
    size: int = 0
    mtime_ns: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    checksum: Checksum | None = None
    upload_id: str = ""
    """The multipart upload that the file was; "": it was put at once."""


def check_attributes(attributes: Attributes) -> None:
    """Raises InvalidRequest for what a file cannot have."""
    if attributes.tags:
        raise no_such_feature("tags")
    if attributes.retention is not None or attributes.has_legal_hold:
        raise no_such_feature("object lock")


def check_key(customer_key: bytes | None) -> None:
    """Raises InvalidRequest."""
    if customer_key is not None:
        raise no_such_feature("encryption by a key of the client")


def no_such_feature(what: str) -> InvalidRequest:
    return InvalidRequest(f"A filesystem bucket has no {what}: its objects are files. Leave it out.")


def write(descriptor: int, record: FileRecord) -> None:
    """Write the record to an open file or folder. Without extended attributes the file has no record, which
    is refused where the client gave metadata of its own. Raises InvalidRequest, OSError."""
    content = orjson.dumps(asdict(record))
    if len(content) > MAX_RECORD_BYTES:
        raise InvalidRequest(
            f"Headers and metadata of an object of a filesystem bucket have at most {MAX_RECORD_BYTES:,}"
            " bytes together. Use less metadata."
        )
    try:
        os.setxattr(descriptor, ATTRIBUTE, content)
    except OSError as error:
        if error.errno in _TOO_LARGE:
            raise InvalidRequest("The filesystem has no room for so much metadata of one file.") from error
        if error.errno not in _UNSUPPORTED:
            raise
        if record.metadata:
            raise InvalidRequest(
                "The filesystem keeps no metadata of files: it has no extended attributes. Send none."
            ) from error


def read(descriptor: int) -> FileRecord | None:
    """Return the record of a file or folder that is open, also as a mere path; None: it has no valid one."""
    try:
        content = os.getxattr(f"/proc/self/fd/{descriptor}", ATTRIBUTE)
    except OSError:
        return None
    if len(content) > MAX_RECORD_BYTES:
        return None
    try:
        return _record(orjson.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def remove(descriptor: int) -> None:
    try:
        os.removexattr(descriptor, ATTRIBUTE)
    except OSError as error:
        if error.errno not in (errno.ENODATA, *_UNSUPPORTED):
            raise


def version(key: str, descriptor: int, state: os.stat_result) -> ObjectVersion:
    """Return the object that a file or folder is."""
    record = read(descriptor)
    is_folder = stat.S_ISDIR(state.st_mode)
    if record is not None and not is_folder:
        is_current = (record.size, record.mtime_ns) == (state.st_size, state.st_mtime_ns)
        record = record if is_current else None
    if record is None:
        record = FileRecord(state_etag(state), state.st_size)
    if is_folder:
        record = replace(record, etag=EMPTY_ETAG, size=0, checksum=None)
    return shown(key, record, state.st_mtime_ns // 1_000_000)


def shown(key: str, record: FileRecord, modified_ms: int) -> ObjectVersion:
    """Return the object that a record describes."""
    return ObjectVersion(
        key=key,
        version_id=NULL_VERSION,
        is_latest=True,
        is_delete_marker=False,
        size=record.size,
        etag=record.etag,
        modified_at=_time(modified_ms),
        storage_class=StorageClass.FILESYSTEM,
        attributes=Attributes(record.headers, record.metadata),
        checksum=record.checksum,
        part_count=0,
        is_versioned=False,
    )


def state_etag(state: os.stat_result) -> str:
    """Return the ETag of a file whose bytes nobody hashed. Its "-1" says that it is not an MD5."""
    text = f"{state.st_ino} {state.st_mtime_ns} {state.st_size}".encode()
    return f"{hashlib.blake2b(text, digest_size=16).hexdigest()}-1"


def _time(modified_ms: int) -> datetime:
    """Return the time; one that S3 cannot write is that of the epoch."""
    try:
        found = datetime.fromtimestamp(modified_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
    return found if 1970 <= found.year <= 9999 else datetime.fromtimestamp(0, UTC)


def _record(found: Any) -> FileRecord | None:
    headers, metadata, given = found["headers"], found["metadata"], found["checksum"]
    numbers = (found["size"], found["mtime_ns"])
    is_valid = (
        all(type(each) is int for each in numbers)
        and _ETAG.fullmatch(found["etag"])
        and _UPLOAD.fullmatch(found["upload_id"])
        and all(name in _HEADERS and _is_text(value) for name, value in headers.items())
        and all(_NAME.fullmatch(name) and _is_text(value) for name, value in metadata.items())
        and (given is None or _CHECKSUM.fullmatch(given["value"]))
    )
    if not is_valid:
        return None
    checksum = None
    if given is not None:
        algorithm, kind = ChecksumAlgorithm(given["algorithm"]), ChecksumType(given["type"])
        checksum = Checksum(algorithm, given["value"], kind)
    return FileRecord(found["etag"], *numbers, headers, metadata, checksum, found["upload_id"])


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not _CONTROL.search(value)
