"""Plan the copies and deletions of a command, from the places that its user named.

A folder is copied into the target folder under the same relative names. `prefix` and `prefix/` name the same
folder of a bucket; an object whose key merely begins with the same letters is not in it.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from neocloud.cli.output import warn
from neocloud.cli.storage.checksums import facts_of
from neocloud.cli.storage.copier import LocalRoot, Pair, RemoteRoot, Root, open_parent
from neocloud.cli.storage.listing import Listing, files_in, objects_in
from neocloud.cli.storage.places import (
    BucketPlace,
    LocalPlace,
    Place,
    UnsafeKey,
    key_of,
    overlap,
    relative_path,
)
from neocloud.client.errors import ClientError
from neocloud.core.s3_calls import S3
from neocloud.core.untrusted.files import Folder


@dataclass
class Plan:
    source: Root
    target: Root
    pairs: list[Pair]
    left_out: Sequence[str] = ()
    """Links and what is not a file, which are not copied."""
    problems: Sequence[str] = ()
    """Items of the source that could not be listed."""
    unwanted: list[str] = field(default_factory=list[str])
    """Names that are at the target and not at the source."""

    @property
    def size(self) -> int:
        return sum(pair.size for pair in self.pairs)


def one(s3: S3, source: Place, target: Place, open_files: ExitStack) -> Plan:
    """Plan the copy of one file or object. Raises ClientError, OSError."""
    _refuse_local(source, target)
    if isinstance(source, LocalPlace):
        assert isinstance(target, BucketPlace)
        return _upload_of(source, target, open_files)
    if source.is_folder:
        raise _is_folder(source)
    facts = facts_of(s3, source)
    if facts is None:
        raise ClientError("NOT_FOUND", f"There is no object {source}", "For a folder, add --recursive")
    from_root, last = RemoteRoot(BucketPlace(source.bucket)), source.key.rpartition("/")[2]
    if isinstance(target, BucketPlace):
        to = target.prefix + last if target.is_folder else target.key
        if (source.bucket, source.key) == (target.bucket, to):
            raise ClientError("INVALID_ARGUMENT", f"{source} is source and target", "Name another target")
        return Plan(from_root, RemoteRoot(BucketPlace(target.bucket)), [Pair(source.key, to, facts.size)])
    try:
        relative_path(last)
    except UnsafeKey as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"The key of {source} {error}", "Name a file as target"
        ) from error
    path = target.path / last if target.is_folder else target.path
    if path.is_dir():
        raise ClientError("INVALID_ARGUMENT", f"{path} is a folder", "Name a file as target")
    folder = open_files.enter_context(open_parent(path, make=True))
    return Plan(from_root, LocalRoot(folder), [Pair(source.key, path.name, facts.size)])


def _upload_of(source: LocalPlace, target: BucketPlace, open_files: ExitStack) -> Plan:
    path = _existing(source)
    state = path.stat()
    if stat.S_ISDIR(state.st_mode):
        raise _is_folder(source)
    if not stat.S_ISREG(state.st_mode):
        raise ClientError("INVALID_ARGUMENT", f"{source} is not a regular file")
    folder = open_files.enter_context(open_parent(path))
    key = target.prefix + _key_of(source.path.name or path.name) if target.is_folder else target.key
    to = RemoteRoot(BucketPlace(target.bucket))
    return Plan(LocalRoot(folder), to, [Pair(path.name, key, state.st_size)])


def folder(
    s3: S3, source: Place, target: Place, open_files: ExitStack, *, is_sync: bool, is_dry: bool
) -> Plan:
    """Plan the copy of all that is in a folder. Raises ClientError, OSError."""
    _refuse_local(source, target)
    if overlap(source, target):
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{source} and {target} lie one in the other",
            "Copy between folders that do not",
        )
    from_root, found = _opened(s3, source, open_files, "source", is_dry=is_dry)
    try:
        to_root, there = _opened(s3, target, open_files, "target", is_dry=is_dry)
    except ClientError as error:
        if error.code != "PERMISSION_DENIED" or is_sync or not isinstance(target, BucketPlace):
            raise
        warn("The target may not be listed, so files that are there already are copied again.")
        to_root, there = RemoteRoot(target), Listing()
    pairs = [
        Pair(item.name, item.name, item.size, there.items.get(item.name)) for item in found.items.values()
    ]
    unwanted = [name for name in there.items if name not in found.items]
    return Plan(from_root, to_root, pairs, found.left_out, found.problems, unwanted)


def _opened(s3: S3, place: Place, open_files: ExitStack, role: str, *, is_dry: bool) -> tuple[Root, Listing]:
    if isinstance(place, BucketPlace):
        return RemoteRoot(place), objects_in(s3, place)
    if role == "target" and not place.path.exists():
        if is_dry:
            empty = Folder.open(Path(open_files.enter_context(TemporaryDirectory())))
            empty.path = place.path
            return LocalRoot(open_files.enter_context(empty)), Listing()
        place.path.mkdir(parents=True)
    path = _existing(place)
    if not path.is_dir():
        raise ClientError(
            "INVALID_ARGUMENT", f"{place} is not a folder", "Leave out --recursive for one file"
        )
    opened = open_files.enter_context(Folder.open(path))
    return LocalRoot(opened), files_in(opened)


def _existing(place: LocalPlace) -> Path:
    try:
        return Path(os.path.realpath(place.path, strict=True))
    except OSError as error:
        code = "INVALID_ARGUMENT" if isinstance(error, FileNotFoundError) else "FAILED_PRECONDITION"
        raise ClientError(code, f"{place} cannot be read: {error.strerror or error}") from error


def _key_of(name: str) -> str:
    try:
        return key_of(name)
    except UnsafeKey as error:
        raise ClientError("INVALID_ARGUMENT", f"The file {error}", "Name a key as target") from error


def _refuse_local(source: Place, target: Place) -> None:
    if isinstance(source, LocalPlace) and isinstance(target, LocalPlace):
        raise ClientError(
            "INVALID_ARGUMENT",
            "Neither place is an object",
            "Write one of them as s3://BUCKET/KEY; between folders use cp or rsync",
        )


def _is_folder(place: Place) -> ClientError:
    return ClientError(
        "INVALID_ARGUMENT", f"{place} is a folder", "Add --recursive to copy all that is in it"
    )
