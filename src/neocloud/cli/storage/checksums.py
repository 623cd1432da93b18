"""Facts about the bytes of an object, and the comparison with a file."""

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from awscrt import checksums as crt

from neocloud.cli.storage.places import BucketPlace
from neocloud.cli.storage.service import CHECKSUM, S3Error, s3_errors
from neocloud.core.s3_calls import S3

CHUNK_BYTES = 4 * 1024**2
_GONE = ("404", "NoSuchKey")


class _Crc:
    """A CRC with the methods of hashlib."""

    def __init__(self, update: Callable[[bytes, int], int], size: int) -> None:
        self._update, self._size, self._value = update, size, 0

    def update(self, chunk: bytes) -> None:
        self._value = self._update(chunk, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


ALGORITHMS: Mapping[str, Callable[[], Any]] = {
    CHECKSUM: lambda: _Crc(crt.crc64nvme, 8),
    "CRC32C": lambda: _Crc(crt.crc32c, 4),
    "CRC32": lambda: _Crc(zlib.crc32, 4),
    "SHA256": hashlib.sha256,
    "SHA1": lambda: hashlib.sha1(usedforsecurity=False),
}
"""Checksums of S3, the quickest first."""


@dataclass(frozen=True)
class Facts:
    size: int
    algorithm: str = ""
    """"": no checksum of the whole object is known, as with some that were uploaded in parts."""
    checksum: str = ""
    etag: str = ""
    """The MD5 in hex; of an object in parts, that of their MD5s, a dash and their number."""
    part_size: int = 0
    """Bytes of the first part; 0: the object is not in parts."""

    def is_same(self, other: "Facts") -> bool:
        """Return whether both have the same bytes, as far as that is known."""
        if self.size != other.size:
            return False
        if self.algorithm and self.algorithm == other.algorithm:
            return self.checksum == other.checksum
        return bool(self.etag) and (self.etag, self.part_size) == (other.etag, other.part_size)

    def is_intact(self, file: BinaryIO) -> bool:
        """Read a file, and return whether it has the bytes of the object; True where that is unknown."""
        if self.algorithm:
            return checksum_of(file, self.algorithm) == self.checksum
        return not self.etag or bool(self.part_size) or _md5_of(file) == self.etag

    def new_value(self) -> Any:
        """Return what computes the value that `is_value` compares: it has the methods of hashlib."""
        return ALGORITHMS[self.algorithm]() if self.algorithm else hashlib.md5(usedforsecurity=False)

    def is_value(self, value: Any) -> bool:
        """Return whether bytes with this value are those of the object; True where that is unknown."""
        if self.algorithm:
            return _encoded(value) == self.checksum
        return not self.etag or bool(self.part_size) or value.hexdigest() == self.etag

    def has_bytes_of(self, file: BinaryIO) -> bool:
        """Read a file, and return whether it is known to have the bytes of the object."""
        if self.algorithm or not self.part_size:
            return bool(self.algorithm or self.etag) and self.is_intact(file)
        return _md5_of_parts(file, self.part_size) == self.etag


def facts_of(s3: S3, place: BucketPlace) -> Facts | None:
    """Return the facts of an object; None where there is none. Raises ClientError."""
    where = {"Bucket": place.bucket, "Key": place.key}
    with s3_errors(place):
        try:
            found = s3.head_object(**where, ChecksumMode="ENABLED")
        except S3Error as error:
            if error.response.get("Error", {}).get("Code") in _GONE:
                return None
            raise
        is_whole = found.get("ChecksumType") == "FULL_OBJECT"
        known = [each for each in ALGORITHMS if is_whole and f"Checksum{each}" in found]
        if known:
            return Facts(found["ContentLength"], known[0], found[f"Checksum{known[0]}"])
        is_secret = "SSECustomerAlgorithm" in found  # then the ETag is not an MD5
        etag = "" if is_secret else str(found.get("ETag", "")).strip('"')
        part = s3.head_object(**where, PartNumber=1)["ContentLength"] if "-" in etag else 0
    return Facts(found["ContentLength"], etag=etag, part_size=part)


def checksum_of(file: BinaryIO, algorithm: str = CHECKSUM) -> str:
    """Return the checksum of the rest of a file, as S3 writes it."""
    value = ALGORITHMS[algorithm]()
    while chunk := file.read(CHUNK_BYTES):
        value.update(chunk)
    return _encoded(value)


def _encoded(value: Any) -> str:
    """Return a checksum as S3 writes it."""
    return base64.b64encode(value.digest()).decode()


def _md5_of(file: BinaryIO) -> str:
    value = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(CHUNK_BYTES):
        value.update(chunk)
    return value.hexdigest()


def _md5_of_parts(file: BinaryIO, part_size: int) -> str:
    """Return the ETag of an upload of this file in parts of this size."""
    of_parts: list[bytes] = []
    part, rest = hashlib.md5(usedforsecurity=False), part_size
    while chunk := file.read(min(CHUNK_BYTES, rest)):
        part.update(chunk)
        rest -= len(chunk)
        if not rest:
            of_parts.append(part.digest())
            part, rest = hashlib.md5(usedforsecurity=False), part_size
    if rest != part_size:
        of_parts.append(part.digest())
    return f"{hashlib.md5(b''.join(of_parts), usedforsecurity=False).hexdigest()}-{len(of_parts)}"
