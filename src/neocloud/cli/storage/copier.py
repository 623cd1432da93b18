"""Copies one file or object: uploads, downloads and copies, each checked by the checksum of the whole.

A download is written beside its target under a name of its own, and takes the target's name only once its
checksum is right. Paths are resolved below the target folder without following links.
"""

import mimetypes
import os
import secrets
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from botocore.exceptions import BotoCoreError
from botocore.exceptions import ClientError as S3Error
from s3transfer.exceptions import CancelledError
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.subscribers import BaseSubscriber

from neocloud.cli.storage.checksums import Facts, facts_of
from neocloud.cli.storage.listing import Item
from neocloud.cli.storage.places import PARTIAL_SUFFIX, BucketPlace, relative_path
from neocloud.cli.storage.service import CHECKSUM, s3_errors
from neocloud.client.errors import ClientError
from neocloud.client.s3 import CONNECTIONS
from neocloud.core.s3_calls import S3
from neocloud.core.untrusted.files import Folder

MIB = 1024**2
PART_BYTES = 16 * MIB
LARGEST_COPY_BYTES = 5 * 1024**3
"""Largest object that S3 copies in one request."""
LONGEST_NAME = 200


@dataclass(frozen=True)
class Pair:
    """A file or object, and where it goes; names are relative to the two places."""

    source: str
    target: str
    size: int
    found: Item | None = None
    """The item at the target."""


@dataclass(frozen=True)
class LocalRoot:
    folder: Folder

    def show(self, name: str) -> str:
        return str(self.folder.path / name)


@dataclass(frozen=True)
class RemoteRoot:
    place: BucketPlace
    """A folder, or the bucket."""

    def at(self, name: str) -> BucketPlace:
        return self.place.child(name)

    def show(self, name: str) -> str:
        return str(self.at(name))


Root = LocalRoot | RemoteRoot
Count = Callable[[int], None]
"""Called with the bytes that were transferred since the last call, from any thread."""


class Stopped(Exception):
    """The command is ending, so this transfer was given up."""


class _Counting(BaseSubscriber):
    def __init__(self, count: Count) -> None:
        self._count = count

    def on_progress(self, future: Any, bytes_transferred: int, **kwargs: Any) -> None:
        self._count(bytes_transferred)


class Copier:
    """Copies between two roots; its methods may be called from several threads."""

    def __init__(self, s3: S3, source: Root, target: Root, count: Count) -> None:
        self._s3 = s3
        self.source, self.target = source, target
        self._count = count
        config = TransferConfig(
            multipart_threshold=PART_BYTES,
            multipart_chunksize=PART_BYTES,
            max_request_concurrency=CONNECTIONS,
        )
        self._transfers: Any = TransferManager(s3, config)
        self._file_mode = 0o666 & ~_umask()
        self._is_closed = False
        self._closing = threading.Lock()
        self._running: set[Any] = set()
        self._uploads: dict[tuple[str, str], str] = {}
        """Uploads in parts that are not known to be completed, by bucket and key."""
        s3.meta.events.register("after-call.s3.CreateMultipartUpload", self._note_upload)

    def close(self, *, cancel: bool = False) -> None:
        """Return once no transfer runs. With `cancel`, give them up: unfinished uploads are removed."""
        with self._closing:
            self._is_closed = True
            running = list(self._running) if cancel else []
        for each in running:
            each.cancel()
        self._transfers.shutdown()
        # Those that ended are aborted already, except for one whose answer came after the transfer was given
        # up.
        for (bucket, key), upload in self._uploads.items():
            with suppress(BotoCoreError, S3Error):
                self._s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)

    def _note_upload(self, parsed: dict[str, Any], **_: Any) -> None:
        if "UploadId" in parsed:
            self._uploads[parsed["Bucket"], parsed["Key"]] = parsed["UploadId"]

    def _finish(self, begin: Callable[[], Any], to: BucketPlace | None = None) -> None:
        """Begin a transfer and wait for its end. Raises Stopped when this copier is closed."""
        with self._closing:
            if self._is_closed:
                raise Stopped
            transfer = begin()
            self._running.add(transfer)
        try:
            transfer.result()
        finally:
            with self._closing:
                self._running.discard(transfer)
        if to is not None:
            self._uploads.pop((to.bucket, to.key), None)

    def copy(self, pair: Pair) -> bool:
        """Copy one, unless the same is there already; return whether it was copied.

        Raises ClientError, OSError, UnsafeKey, Stopped.
        """
        if self.is_there(pair):
            self._count(pair.size)
            return False
        try:
            if isinstance(self.target, LocalRoot):
                self._download(pair, self.target.folder)
            elif isinstance(self.source, LocalRoot):
                self._upload(pair, self.source.folder, self.target.at(pair.target))
            else:
                self._copy_object(pair, self.source.at(pair.source), self.target.at(pair.target))
        except CancelledError:
            raise Stopped from None
        return True

    def remove_source(self, name: str) -> None:
        remove(self._s3, self.source, name)

    def is_there(self, pair: Pair) -> bool:
        """Return whether the target has the same bytes: the checksums of both are known, and equal."""
        if pair.found is None or pair.found.size != pair.size:
            return False
        if isinstance(self.source, RemoteRoot):
            facts = facts_of(self._s3, self.source.at(pair.source))
        else:
            assert isinstance(self.target, RemoteRoot), "Files are not copied to files."
            facts = facts_of(self._s3, self.target.at(pair.target))
        if facts is None or facts.size != pair.size:
            return False
        if isinstance(self.source, RemoteRoot) and isinstance(self.target, RemoteRoot):
            there = facts_of(self._s3, self.target.at(pair.target))
            return there is not None and facts.is_same(there)
        root, name = (
            (self.source, pair.source) if isinstance(self.source, LocalRoot) else (self.target, pair.target)
        )
        assert isinstance(root, LocalRoot)
        with root.folder.file(PurePosixPath(*relative_path(name))) as file:
            return facts.has_bytes_of(file)

    def _upload(self, pair: Pair, folder: Folder, to: BucketPlace) -> None:
        with folder.file(pair.source) as file:
            self.upload_file(file, to)

    def upload_file(self, file: BinaryIO, to: BucketPlace) -> None:
        """Upload an open file or stream. The object gateway checks each part by its checksum."""
        extra = upload_headers(to.key)
        with s3_errors(to):
            counting = [_Counting(self._count)]
            self._finish(lambda: self._transfers.upload(file, to.bucket, to.key, extra, counting), to)

    def _copy_object(self, pair: Pair, source: BucketPlace, to: BucketPlace) -> None:
        where = {"Bucket": source.bucket, "Key": source.key}
        with s3_errors(source):
            if pair.size <= LARGEST_COPY_BYTES:
                self._s3.copy_object(Bucket=to.bucket, Key=to.key, CopySource=where)
                self._count(pair.size)
            else:
                counting = [_Counting(self._count)]
                self._finish(lambda: self._transfers.copy(where, to.bucket, to.key, None, counting), to)

    def _download(self, pair: Pair, root: Folder) -> None:
        assert isinstance(self.source, RemoteRoot), "Files are not copied to files."
        *folders, name = relative_path(pair.target)
        source = self.source.at(pair.source)
        facts = facts_of(self._s3, source)
        if facts is None:
            raise ClientError("NOT_FOUND", f"There is no object {source}")
        with _made(root, folders) as folder, _partial(folder, name, self._file_mode) as file:
            with s3_errors(source):
                counting = [_Counting(self._count)]
                self._finish(
                    lambda: self._transfers.download(source.bucket, source.key, file, None, counting)
                )
            file.flush()
            _check(facts, file, source)

    def show(self, pair: Pair) -> str:
        return f"{self.source.show(pair.source)} to {self.target.show(pair.target)}"


def remove(s3: S3, root: Root, name: str) -> None:
    """Remove one file or object. Raises ClientError, OSError."""
    if isinstance(root, RemoteRoot):
        place = root.at(name)
        with s3_errors(place):
            s3.delete_object(Bucket=place.bucket, Key=place.key)
        return
    path = PurePosixPath(name)
    with root.folder.folder(path.parent) as folder:
        folder.unlink(path.name)


def upload_headers(key: str) -> dict[str, str]:
    """Return what an upload to this key says of its content."""
    kind, encoding = mimetypes.guess_type(key)
    extra = {"ChecksumAlgorithm": CHECKSUM}
    if kind is not None and encoding is None:
        extra["ContentType"] = kind
    return extra


def damaged(source: BucketPlace) -> ClientError:
    return ClientError(
        "DATA_LOSS",
        f"{source} arrived with other bytes than were stored, or was replaced meanwhile",
        "Run the command again",
    )


def _check(facts: Facts, file: BinaryIO, source: BucketPlace) -> None:
    """Raise ClientError unless the file holds the bytes of the object."""
    file.seek(0)
    size = os.fstat(file.fileno()).st_size
    if size != facts.size or not facts.is_intact(file):
        raise damaged(source)


@contextmanager
def _made(root: Folder, names: list[str]) -> Generator[Folder]:
    """Open the folder of this path below the root; make what is missing. Raises UnsafePath for a link."""
    opened: list[Folder] = []
    current = root
    try:
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=current.descriptor)
            current = current.folder(name)
            opened.append(current)
        yield current
    finally:
        for each in opened:
            each.close()


@contextmanager
def _partial(folder: Folder, name: str, mode: int) -> Generator[BinaryIO]:
    """A new file, which takes the name when the body ends; when that raises, it is removed."""
    partial = f".{name[:LONGEST_NAME]}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, mode, dir_fd=folder.descriptor)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
        folder.rename(partial, name)
    finally:
        folder.unlink(partial)


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


def open_parent(path: Path, *, make: bool = False) -> Folder:
    """Open the folder that a path is in, as the user wrote it: links in it are followed."""
    parent = path.parent
    if make:
        parent.mkdir(parents=True, exist_ok=True)
    return Folder.open(parent)
