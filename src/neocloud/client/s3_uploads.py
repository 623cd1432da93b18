# pyright: standard
"""Uploads a file or stream of any length, in parts, with memory that does not depend on its length.

It becomes an object only when the stream has ended and the object gateway has compared the checksum of the
whole; else nothing of it is left, unless this process is killed. It is slow to import.
"""

import base64
import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import NamedTuple

from awscrt import checksums as crt
from botocore.exceptions import BotoCoreError, ClientError

from neocloud.core.byte_streams import Readable
from neocloud.core.cleanup import undo_on_error
from neocloud.core.s3_calls import S3, Answer

MIB = 1024**2
PART_BYTES = 16 * MIB
MOST_PARTS = 10_000
"""Parts of an upload, in S3."""
PARTS_OF_A_SIZE = 3_334
"""After so many parts they get four times as large, so that a stream may have a tebibyte."""
MOST_BYTES_UNDERWAY = 64 * MIB
ALGORITHM = "CRC64NVME"
Count = Callable[[int], None]
Part = Mapping[str, object]


class Uploaded(NamedTuple):
    size: int
    etag: str


class TooLong(Exception):
    """The stream has more bytes than an object may have."""


def part_bytes(index: int) -> int:
    """Return the size of a part, by its place among the parts of its upload."""
    return PART_BYTES * 4 ** (index // PARTS_OF_A_SIZE)


def upload(
    s3: S3,
    stream: Readable,
    bucket: str,
    key: str,
    headers: Mapping[str, str],
    count: Count | None = None,
    *,
    replaces: bool = True,
) -> Uploaded:
    """Upload all bytes of a stream. `headers` are those that PutObject takes.

    With `replaces` False, only where there is no object, or one of the same bytes that was uploaded so: else
    S3 answers PreconditionFailed at the end. Raises the errors of botocore and of the stream, and TooLong.
    """
    fields = {**headers, "ChecksumAlgorithm": ALGORITHM}
    block = _read(stream, part_bytes(0))
    if len(block) < part_bytes(0):

        def put(**condition: str) -> Answer:
            return s3.put_object(Bucket=bucket, Key=key, Body=block, **fields, **condition)

        answer = _written(put, _md5(block).hexdigest(), replaces)
        if count is not None:
            count(len(block))
        return Uploaded(len(block), answer["ETag"])
    with _upload(s3, {"Bucket": bucket, "Key": key}, fields) as parts:
        while block:
            parts.add(block)
            if count is not None:
                count(len(block))
            block = _read(stream, part_bytes(parts.number))
        return parts.complete(replaces)


def _written(write: Callable[..., Answer], etag: str, replaces: bool) -> Answer:
    if replaces:
        return write()
    try:
        return write(IfNoneMatch="*")
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "PreconditionFailed":
            raise
        return write(IfMatch=f'"{etag}"')


def _md5(content: bytes) -> "hashlib._Hash":
    return hashlib.md5(content, usedforsecurity=False)


def _read(stream: Readable, size: int) -> bytes:
    """Return so many bytes; fewer at the end of the stream."""
    found = bytearray()
    while len(found) < size and (chunk := stream.read(size - len(found))):
        found += chunk
    return bytes(found)


def _encoded(value: int) -> str:
    return base64.b64encode(value.to_bytes(8, "big")).decode()


class _Upload:
    """An upload in parts. Requests run in threads, so that a signal interrupts none of them half."""

    def __init__(self, s3: S3, where: dict[str, str], fields: Mapping[str, str], pool: ThreadPoolExecutor):
        self._s3, self._where, self._pool = s3, where, pool
        self._value = self._size = 0
        self._digests = bytearray()
        self._done = dict[int, Part]()
        self._running = dict[Future[tuple[int, Part]], int]()
        self.number = 0
        """Number of the parts that were begun."""
        self._creation: Future[Answer] = pool.submit(
            s3.create_multipart_upload, **where, ChecksumType="FULL_OBJECT", **fields
        )

    def add(self, block: bytes) -> None:
        """Begin to upload the next part; wait until there is room for it."""
        where = {**self._where, "UploadId": self._creation.result()["UploadId"]}
        if self.number == MOST_PARTS:
            raise TooLong(f"an object holds no more than the {self._size:,} bytes that were read")
        while self._running and sum(self._running.values()) + len(block) > MOST_BYTES_UNDERWAY:
            self._take(wait(self._running, return_when=FIRST_COMPLETED).done)
        self.number += 1
        self._value = crt.crc64nvme(block, self._value)
        self._size += len(block)
        self._digests += _md5(block).digest()
        self._running[self._pool.submit(self._put, where, self.number, block)] = len(block)

    def _put(self, where: dict[str, str], number: int, block: bytes) -> tuple[int, Part]:
        answer = self._s3.upload_part(**where, PartNumber=number, Body=block, ChecksumAlgorithm=ALGORITHM)
        names = ("ETag", f"Checksum{ALGORITHM}")
        return number, {"PartNumber": number, **{name: answer[name] for name in names if name in answer}}

    def _take(self, futures: Iterable[Future[tuple[int, Part]]]) -> None:
        for each in futures:
            self._running.pop(each)
            number, part = each.result()
            self._done[number] = part

    def complete(self, replaces: bool = True) -> Uploaded:
        """Make it an object."""
        self._take(wait(self._running).done)
        parts = [self._done[number] for number in sorted(self._done)]

        def write(**condition: str) -> Answer:
            return self._pool.submit(
                self._s3.complete_multipart_upload,
                **self._where,
                UploadId=self._creation.result()["UploadId"],
                MultipartUpload={"Parts": parts},
                ChecksumType="FULL_OBJECT",
                **{f"Checksum{ALGORITHM}": _encoded(self._value)},
                **condition,
            ).result()

        etag = f"{_md5(bytes(self._digests)).hexdigest()}-{self.number}"
        return Uploaded(self._size, _written(write, etag, replaces)["ETag"])

    def abort(self) -> None:
        """Remove what was uploaded, once no request runs any more."""
        for each in self._running:
            each.cancel()
        wait(self._running)
        with suppress(BotoCoreError, ClientError):
            self._s3.abort_multipart_upload(**self._where, UploadId=self._creation.result()["UploadId"])


@contextmanager
def _upload(s3: S3, where: dict[str, str], fields: Mapping[str, str]) -> Generator[_Upload]:
    with ThreadPoolExecutor(MOST_BYTES_UNDERWAY // PART_BYTES, "upload") as pool:
        found = _Upload(s3, where, fields, pool)
        with undo_on_error(found.abort):
            yield found
