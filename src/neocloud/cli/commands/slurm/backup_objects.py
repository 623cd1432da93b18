"""The backup of a cluster as objects of a folder in a bucket, with the rights of the signed-in account.

    manifest.json, accounting.zst, shared-root.tar.zst    as in the file of a backup
    SHA256SUMS                                            the last one: the backup is complete with it

Each is sent as it is made and read piece by piece, so neither needs room on this machine. Anyone who may
write to the bucket may change it between check and restore: what is read is the object that was checked, and
its sum is compared again.
"""

import hashlib
import io
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer

from neocloud.cli.commands.slurm.backup_file import (
    ACCOUNTING,
    FILES,
    MANIFEST,
    MAX_TEXT_BYTES,
    SUMS,
    Contents,
    damaged,
    manifest_of,
)
from neocloud.cli.storage.places import SCHEME, BucketPlace, bucket_place_of
from neocloud.cli.storage.session import s3_session
from neocloud.client.errors import ClientError
from neocloud.core.s3_calls import S3

PIECE_BYTES = 8 * 1024**2
TRIES = 4
"""Attempts to read a piece."""
_GONE = frozenset({"404", "NoSuchKey"})
_CHANGED = frozenset({"PreconditionFailed", "412", "InvalidRange", "416"})


def folder_in(text: str) -> BucketPlace | None:
    """Return the folder that an argument names; None where it is no URL of a bucket. Raises ClientError."""
    if not text.startswith(SCHEME):
        return None
    place = bucket_place_of(text)
    if not place.key:
        raise ClientError("INVALID_ARGUMENT", f"{text} is a whole bucket", "Name a folder: s3://BUCKET/NAME")
    return BucketPlace(place.bucket, place.prefix)


class ObjectWriter:
    """Writes the members one after another, as objects."""

    def __init__(self, s3: S3, folder: BucketPlace) -> None:
        self._s3, self._folder = s3, folder
        self._sums = ""

    def add(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a member; return its size. It appears once it is whole."""
        from neocloud.cli.storage.streams import upload_stream  # noqa: PLC0415  botocore takes a while to load

        stream = _ChunkStream(chunks)
        size = upload_stream(self._s3, stream, self._folder.child(name), lambda _: None)
        self._sums += f"{stream.sha256}  {name}\n"
        return size

    def finish(self) -> None:
        """Write the sums: the backup is complete."""
        self.add(SUMS, [self._sums.encode()])


@contextmanager
def new_objects(
    context: typer.Context, folder: BucketPlace, project: str, *, replace: bool, env_key: bool
) -> Generator[ObjectWriter]:
    """Yield what writes a backup into a folder, which has none unless that is to be replaced."""
    from neocloud.cli.storage.service import s3_errors  # noqa: PLC0415

    with s3_session(context, project, env_key=env_key) as s3:
        with s3_errors(folder.bucket):
            found = s3.list_objects_v2(Bucket=folder.bucket, Prefix=folder.key, MaxKeys=1)
        if found.get("KeyCount"):
            if not replace:
                raise ClientError(
                    "ALREADY_EXISTS",
                    f"There are objects in {folder} already",
                    "Name another folder, or add --force",
                )
            with s3_errors(folder):  # from now on it is not a complete backup
                s3.delete_object(Bucket=folder.bucket, Key=folder.child(SUMS).key)
        yield ObjectWriter(s3, folder)


class _ChunkStream(io.RawIOBase):
    """A stream of chunks that are made while it is read."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self._chunks = iter(chunks)
        self._rest = b""
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._digest.update(chunk)
            self._rest = chunk
        found, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return found


@dataclass(frozen=True)
class ObjectPart:
    """A member that was checked."""

    s3: S3
    place: BucketPlace
    size: int
    etag: str
    sha256: str = ""

    def chunks(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yield its bytes. Raises ClientError, at the end where they are not those that were checked."""
        digest = hashlib.sha256()
        for start in range(0, self.size, size):
            piece = self._piece(start, min(size, self.size - start))
            digest.update(piece)
            yield piece
        if self.sha256 and digest.hexdigest() != self.sha256:
            raise damaged(f"{self.place} has changed since it was checked")

    def _piece(self, start: int, size: int) -> bytes:
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        last = f"{self.place}: the connection broke"
        for _ in range(TRIES):
            try:
                found = self._read(start, size)
            except (HTTPError, BotoCoreError) as error:
                last = f"{self.place}: {error}"
                continue
            if len(found) == size:
                return found
        raise ClientError("UNAVAILABLE", last, "Run the command again")

    def _read(self, start: int, size: int) -> bytes:
        from botocore.exceptions import ClientError as S3Error  # noqa: PLC0415

        from neocloud.cli.storage.service import translated  # noqa: PLC0415

        where = {"Bucket": self.place.bucket, "Key": self.place.key, "IfMatch": self.etag}
        try:
            answer = self.s3.get_object(**where, Range=f"bytes={start}-{start + size - 1}")
            return answer["Body"].read(size)
        except S3Error as error:
            if error.response.get("Error", {}).get("Code") in _CHANGED:
                raise damaged(f"{self.place} has changed since it was checked") from error
            raise translated(error, self.place) from error


@contextmanager
def opened_objects(
    context: typer.Context, folder: BucketPlace, project: str, *, env_key: bool
) -> Generator[Contents]:
    """Yield the members of a backup, checked whole. Raises ClientError."""
    with s3_session(context, project, env_key=env_key) as s3:
        yield read_objects(s3, folder)


def read_objects(s3: S3, folder: BucketPlace) -> Contents:
    """Check a backup against its sums, and return its members. Raises ClientError."""
    sums, parts = _text(_found(s3, folder.child(SUMS))), dict[str, ObjectPart]()
    expected = ""
    for name in (MANIFEST, ACCOUNTING, FILES):
        part = _found(s3, folder.child(name))
        digest = hashlib.sha256()
        for chunk in part.chunks():
            digest.update(chunk)
        checked = digest.hexdigest()
        parts[name] = ObjectPart(s3, part.place, part.size, part.etag, checked)
        expected += f"{checked}  {name}\n"
    if sums != expected.encode():
        raise damaged("its content does not have the sums that it names")
    return Contents(manifest_of(_text(parts[MANIFEST])), parts[ACCOUNTING], parts[FILES])


def _found(s3: S3, place: BucketPlace) -> ObjectPart:
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    from botocore.exceptions import ClientError as S3Error  # noqa: PLC0415

    from neocloud.cli.storage.service import translated  # noqa: PLC0415

    try:
        head = s3.head_object(Bucket=place.bucket, Key=place.key)
    except (S3Error, BotoCoreError) as error:
        code = error.response.get("Error", {}).get("Code") if isinstance(error, S3Error) else ""
        if code in _GONE:
            raise damaged(f"there is no object {place}, so it is not complete") from error
        raise translated(error, place) from error
    return ObjectPart(s3, place, head["ContentLength"], head["ETag"])


def _text(part: ObjectPart) -> bytes:
    if part.size > MAX_TEXT_BYTES:
        raise damaged("a text in it is too long")
    return b"".join(part.chunks())
