"""Places of objects and files: `s3://bucket/key` and local paths; and the file that a key becomes. Pure.

Keys are text of anyone who may write to a bucket. One becomes a path below the target folder only if each of
its parts is the name of a file; any other is refused, not repaired.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from neocloud.client.errors import ClientError

SCHEME = "s3://"
STREAM = "-"
"""Standard input or output."""
PARTIAL_SUFFIX = ".neo-partial"
"""Ends the names of files that are being downloaded. They are not uploaded."""
LONGEST_KEY_BYTES = 1024
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class BucketPlace:
    bucket: str
    key: str = ""
    """The key of an object, or of a folder with a slash at its end; "": the whole bucket."""

    @property
    def prefix(self) -> str:
        """Return the start of the keys of a folder: "" or a text that ends with a slash."""
        return self.key if not self.key or self.key.endswith("/") else f"{self.key}/"

    @property
    def is_folder(self) -> bool:
        return not self.key or self.key.endswith("/")

    def child(self, relative: str) -> "BucketPlace":
        """Return the place of a file of the folder."""
        return BucketPlace(self.bucket, self.prefix + relative)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


@dataclass(frozen=True)
class LocalPlace:
    path: Path
    ends_with_slash: bool = False

    @property
    def is_folder(self) -> bool:
        return self.ends_with_slash or self.path.is_dir()

    def __str__(self) -> str:
        return str(self.path)


Place = BucketPlace | LocalPlace


class UnsafeKey(ValueError):
    """A key that is not the path of a file below a folder."""


def place_of(text: str) -> Place:
    """Read an argument. Raises ClientError."""
    if not text.startswith(SCHEME):
        if text == STREAM:
            raise ClientError(
                "INVALID_ARGUMENT",
                "- is a stream, not a place of files",
                "`neo storage cp` copies one stream; a file of this name is written ./-",
            )
        if not text or "\0" in text or "://" in text:
            raise ClientError(
                "INVALID_ARGUMENT",
                f"{text!r} is neither a path nor an object",
                "Objects are written s3://BUCKET/KEY",
            )
        return LocalPlace(Path(text), text.endswith("/"))
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{text!r} names no bucket",
            "Write s3://BUCKET or s3://BUCKET/KEY; `neo storage ls` lists the buckets",
        )
    if len(key.encode(errors="surrogateescape")) > LONGEST_KEY_BYTES or "\0" in key:
        raise ClientError("INVALID_ARGUMENT", f"{text!r} has a key that no object can have")
    return BucketPlace(bucket, key)


def bucket_place_of(text: str) -> BucketPlace:
    place = place_of(text)
    if isinstance(place, LocalPlace):
        raise ClientError(
            "INVALID_ARGUMENT", f"{text!r} is not an object", "Write s3://BUCKET or s3://BUCKET/KEY"
        )
    return place


def relative_path(key: str) -> tuple[str, ...]:
    """Return the parts of the path that a key, relative to its folder, becomes. Raises UnsafeKey."""
    parts = tuple(key.split("/"))
    if "\0" in key:
        raise UnsafeKey("has a NUL character, which no file name can have")
    if any(part in (".", "..") for part in parts):
        raise UnsafeKey("would leave the target folder or name a folder twice: it has the part . or ..")
    if not all(parts):
        raise UnsafeKey("starts or ends with a slash or has two in a row, so it names no file")
    return parts


def key_of(relative: str) -> str:
    """Return the key of a file, by its path relative to the folder. Raises UnsafeKey."""
    try:
        relative.encode()
    except UnicodeEncodeError:
        raise UnsafeKey("has a name that is not UTF-8, which no key can be") from None
    return relative


def overlap(first: Place, second: Place) -> bool:
    """Return whether one of two folders contains the other."""
    if isinstance(first, BucketPlace) and isinstance(second, BucketPlace):
        prefixes = first.prefix, second.prefix
        is_inside = prefixes[0].startswith(prefixes[1]) or prefixes[1].startswith(prefixes[0])
        return first.bucket == second.bucket and is_inside
    return False
