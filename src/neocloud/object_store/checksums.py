"""Digests and checksums of bodies, as they come, and of multipart objects from those of their parts.

The algorithms and how they compose are those of the published S3 documentation ("Checking object integrity").
"""

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from awscrt import checksums as crt  # pyright: ignore[reportMissingTypeStubs]

from neocloud.object_store.types import Checksum, ChecksumAlgorithm, ChecksumType

DEFAULT = ChecksumAlgorithm.CRC64NVME
"""The checksum of objects for which the client asks for none."""
Data = bytes | memoryview
_Crc = Callable[[Any, int], int]
"""Functions of awscrt take any buffer, whatever their types say."""
_Combine = Callable[[int, int, int], int]
_CRCS: dict[ChecksumAlgorithm, tuple[_Crc, _Combine, int]] = {
    ChecksumAlgorithm.CRC32: (zlib.crc32, crt.combine_crc32, 4),
    ChecksumAlgorithm.CRC32C: (crt.crc32c, crt.combine_crc32c, 4),
    ChecksumAlgorithm.CRC64NVME: (crt.crc64nvme, crt.combine_crc64nvme, 8),
}
"""Each with its number of bytes."""
_HASHES: dict[ChecksumAlgorithm, Callable[[], Any]] = {
    ChecksumAlgorithm.SHA1: partial(hashlib.sha1, usedforsecurity=False),
    ChecksumAlgorithm.SHA256: hashlib.sha256,
}


class Running(Protocol):
    """A digest of bytes that are still coming."""

    def update(self, chunk: Data, /) -> None: ...

    def digest(self) -> bytes: ...


class _RunningCrc:
    def __init__(self, crc: _Crc, size: int) -> None:
        self._crc, self._size, self._value = crc, size, 0

    def update(self, chunk: Data, /) -> None:
        self._value = self._crc(chunk, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


def running(algorithm: ChecksumAlgorithm) -> Running:
    if algorithm in _CRCS:
        crc, _, size = _CRCS[algorithm]
        return _RunningCrc(crc, size)
    return _HASHES[algorithm]()


class Digests:
    """MD5, the checksums that were asked for, and CRC64NVME."""

    def __init__(self, algorithms: Iterable[ChecksumAlgorithm]) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._checksums = {each: running(each) for each in {*algorithms, DEFAULT}}

    def update(self, chunk: Data) -> None:
        for update in self.slow():
            update(chunk)
        self.update_quick(chunk)

    def slow(self) -> Sequence[Callable[[Data], None]]:
        """Return what has to be called with each chunk beside `update_quick`; these may run side by side."""
        hashes = [each.update for name, each in self._checksums.items() if name not in _CRCS]
        return [self._md5.update, *hashes]

    def update_quick(self, chunk: Data) -> None:
        for name, each in self._checksums.items():
            if name in _CRCS:
                each.update(chunk)

    @property
    def md5(self) -> bytes:
        return self._md5.digest()

    def digest(self, algorithm: ChecksumAlgorithm) -> bytes | None:
        """Return None for an algorithm that was not asked for."""
        found = self._checksums.get(algorithm)
        return None if found is None else found.digest()

    def checksum(self, algorithm: ChecksumAlgorithm) -> Checksum | None:
        found = self.digest(algorithm)
        return None if found is None else Checksum(algorithm, encode(found))


def encode(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def multipart_etag(etags: Sequence[str]) -> str:
    joined = b"".join(bytes.fromhex(each) for each in etags)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(etags)}"


def default_type(algorithm: ChecksumAlgorithm | None) -> ChecksumType:
    """Return the type that a multipart upload has where the client names none."""
    is_full = algorithm in (None, ChecksumAlgorithm.CRC64NVME)
    return ChecksumType.FULL_OBJECT if is_full else ChecksumType.COMPOSITE


def has_type(algorithm: ChecksumAlgorithm | None, type: ChecksumType) -> bool:
    """Return whether S3 has this type of the algorithm: CRC64NVME is of full objects alone, SHA of parts."""
    if type is ChecksumType.FULL_OBJECT:
        return algorithm is None or algorithm in _CRCS
    return algorithm not in (None, ChecksumAlgorithm.CRC64NVME)


def of_parts(type: ChecksumType, parts: Sequence[tuple[Checksum, int]]) -> Checksum:
    """Return the checksum of an object from those of its parts with their sizes; all are of one algorithm."""
    algorithm = parts[0][0].algorithm
    digests = [base64.b64decode(checksum.value) for checksum, _ in parts]
    if type is ChecksumType.COMPOSITE:
        composed = running(algorithm)
        composed.update(b"".join(digests))
        return Checksum(algorithm, f"{encode(composed.digest())}-{len(parts)}", type)
    _, combine, size = _CRCS[algorithm]
    value = 0
    for digest, (_, length) in zip(digests, parts, strict=True):
        value = combine(value, int.from_bytes(digest, "big"), length)
    return Checksum(algorithm, encode(value.to_bytes(size, "big")), type)


def is_of_object(asked: Checksum, found: Checksum) -> bool:
    """Return whether a client that completes an upload names the checksum of its object.

    That of a COMPOSITE one may come without the number of parts, as MinIO's clients send it.
    """
    values = {found.value}
    if found.type is ChecksumType.COMPOSITE:
        values.add(found.value.rpartition("-")[0])
    return asked.algorithm == found.algorithm and asked.value in values
