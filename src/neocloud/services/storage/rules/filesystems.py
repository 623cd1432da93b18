"""Validation rules of a filesystem bucket, the filesystem that it may show, and who may allow it.

Its objects are files: what S3 adds to objects and files cannot have is refused here, by field.
"""

import re
from collections.abc import Iterable

from neocloud.core import contract
from neocloud.core.kind import Violation
from neocloud.core.readers import ResourceReader, Subject
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.storage.v1 import (
    Bucket,
    BucketSpec,
    LifecycleRule,
    StorageClass,
    VersioningPolicy,
)
from neocloud.services.iam.types import SignedRequests
from neocloud.services.storage.public import Filesystems

USE = "compute.filesystems.update"
"""The right on the filesystem that who makes a bucket of it needs: S3 clients write in it."""
MAX_DIRECTORY_BYTES = 1024
MAX_NAME_BYTES = 255
DEFAULT_FILE_MODE, DEFAULT_DIRECTORY_MODE = "644", "755"
_FIELD = "spec.filesystem_bucket"
_MODE = re.compile(r"[0-7]{1,4}")
_NO_ID = 2**32 - 1
"""To the kernel it means: as it was."""
_CLASS = StorageClass.Value("FILESYSTEM")
_DISABLED = VersioningPolicy.Value("DISABLED")
_UNUSABLE = ("ERROR", "DELETING")
_NOT_OF_FILES = "is not for filesystem buckets: their objects are files. Leave it unset"


def is_filesystem_bucket(spec: BucketSpec) -> bool:
    return spec.HasField("filesystem_bucket")


def set_defaults(spec: BucketSpec) -> None:
    if not is_filesystem_bucket(spec):
        return
    spec.default_storage_class = spec.default_storage_class or _CLASS
    view = spec.filesystem_bucket
    view.file_mode = view.file_mode or DEFAULT_FILE_MODE
    view.directory_mode = view.directory_mode or DEFAULT_DIRECTORY_MODE


def filesystem_violations(new: Bucket, old: Bucket | None, reader: ResourceReader) -> Iterable[Violation]:
    spec = new.spec
    if old is not None and (_place(spec) != _place(old.spec)):
        yield Violation(_FIELD, "names another directory; create another bucket for that")
        return
    if not is_filesystem_bucket(spec):
        return
    yield from _view_violations(spec.filesystem_bucket)
    yield from _feature_violations(spec)
    if old is None:
        yield from _target_violations(new, reader)


def acquire_filesystem(new: Bucket, reader: ResourceReader) -> None:
    """Attach the filesystem to the bucket, so that it is not deleted before. Raises ApiError unless the
    caller may change the filesystem."""
    filesystem_id, subject = new.spec.filesystem_bucket.filesystem_id, reader.subject
    if subject is None:
        raise contract.unauthenticated("This call needs a token; sign in first.")
    requests = reader.provided.get(SignedRequests)
    reader.write(lambda tx: _require_right(tx, requests, subject, filesystem_id))
    reader.provided.get(Filesystems).attach(reader, filesystem_id, new.metadata.id)


def _require_right(tx: Transaction, requests: SignedRequests, subject: Subject, filesystem_id: str) -> None:
    refusal = requests.refusal(tx, subject, USE, filesystem_id)
    if refusal is not None:
        raise refusal


def _place(spec: BucketSpec) -> tuple[bool, str, str]:
    view = spec.filesystem_bucket
    return is_filesystem_bucket(spec), view.filesystem_id, view.directory


def _target_violations(new: Bucket, reader: ResourceReader) -> Iterable[Violation]:
    field, filesystem_id = f"{_FIELD}.filesystem_id", new.spec.filesystem_bucket.filesystem_id
    row = reader.provided.get(Filesystems).find(reader, filesystem_id, new.metadata.parent_id)
    if row is None:
        yield Violation(field, f"names no filesystem of this project: {filesystem_id or 'it is empty'}")
    elif row.state in _UNUSABLE:
        yield Violation(field, f"{row.id} is {row.state} and cannot be shown as a bucket")
    elif reader.inventory is not None and not reader.inventory.shares_filesystems:
        yield Violation(_FIELD, "is not supported by the engine of this cloud; leave it unset")


def _view_violations(view: BucketSpec.FilesystemBucketType) -> Iterable[Violation]:
    problem = _directory_problem(view.directory)
    if problem:
        yield Violation(f"{_FIELD}.directory", problem)
    for name, value, most in (
        ("file_mode", view.file_mode, 0o777),
        ("directory_mode", view.directory_mode, 0o3777),
    ):
        if not _MODE.fullmatch(value):
            yield Violation(f"{_FIELD}.{name}", "must be one to four octal digits, such as 644")
        elif int(value, 8) & ~most:
            yield Violation(
                f"{_FIELD}.{name}",
                f"must be at most {most:o}: files are not made to run as their owner or group",
            )
    for name, value in (("uid", view.uid), ("gid", view.gid)):
        if value == _NO_ID:
            yield Violation(f"{_FIELD}.{name}", f"must be less than {_NO_ID}")


def _directory_problem(directory: str) -> str:
    if directory in ("", "/"):
        return ""
    first, *parts = directory.split("/")
    if first or any(part in ("", ".", "..") for part in parts):
        return "must be an absolute path without '.', '..', doubled or trailing slashes, such as /data/sets"
    if any("\0" in part or len(part.encode()) > MAX_NAME_BYTES for part in parts):
        return f"must have names of at most {MAX_NAME_BYTES} bytes, without NUL characters"
    if len(directory.encode()) > MAX_DIRECTORY_BYTES:
        return f"must have at most {MAX_DIRECTORY_BYTES:,} bytes"
    return ""


def _feature_violations(spec: BucketSpec) -> Iterable[Violation]:
    if spec.default_storage_class != _CLASS:
        yield Violation("spec.default_storage_class", "must be FILESYSTEM for a filesystem bucket, or unset")
    if spec.versioning_policy != _DISABLED:
        yield Violation("spec.versioning_policy", _NOT_OF_FILES)
    if spec.max_size_bytes:
        yield Violation("spec.max_size_bytes", "is the size of the filesystem here. Leave it unset")
    if spec.HasField("last_access"):
        yield Violation("spec.last_access", _NOT_OF_FILES)
    for number, rule in enumerate(spec.lifecycle_configuration.rules):
        if _more_than_uploads(rule):
            yield Violation(
                f"spec.lifecycle_configuration.rules[{number}]",
                "may only abort incomplete multipart uploads in a filesystem bucket: files stay until they"
                " are deleted",
            )


def _more_than_uploads(rule: LifecycleRule) -> bool:
    parts = ("expiration", "noncurrent_version_expiration", "transition", "noncurrent_version_transition")
    return any(rule.HasField(each) for each in parts)
