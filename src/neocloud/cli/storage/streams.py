"""Copies a stream to an object and an object to a stream, with memory that does not depend on its length.

An upload becomes an object only when its stream has ended and the object gateway has compared the checksum of
the whole; else nothing of it is left. A download continues where its connection broke.
"""

from typing import IO, Any

from botocore.exceptions import BotoCoreError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ClientError as S3Error
from urllib3.exceptions import HTTPError

from neocloud.cli.storage.checksums import CHUNK_BYTES, Facts, facts_of
from neocloud.cli.storage.copier import Count, damaged, upload_headers
from neocloud.cli.storage.places import BucketPlace
from neocloud.cli.storage.service import ATTEMPTS, s3_errors
from neocloud.client.errors import ClientError
from neocloud.client.s3_uploads import TooLong, upload
from neocloud.core.byte_streams import Readable
from neocloud.core.s3_calls import S3

_BROKEN = (HTTPError, HTTPClientError, IncompleteReadError)


def upload_stream(s3: S3, stream: Readable, to: BucketPlace, count: Count) -> int:
    """Upload all bytes of a stream, and return their number. Raises ClientError; whatever else interrupts it
    leaves no upload either."""
    with s3_errors(to):
        try:
            return upload(s3, stream, to.bucket, to.key, upload_headers(to.key), count).size
        except TooLong as error:
            raise ClientError("OUT_OF_RANGE", f"{to}: {error}", "Split the stream") from error


def download_stream(s3: S3, source: BucketPlace, stream: IO[bytes], largest_bytes: int | None = None) -> int:
    """Write an object to a stream, and return the number of its bytes. Raises ClientError, also where the
    bytes that were written turn out not to be those of the object; OSError of the stream."""
    facts = facts_of(s3, source)
    if facts is None:
        raise ClientError("NOT_FOUND", f"There is no object {source}")
    if largest_bytes is not None and facts.size > largest_bytes:
        raise ClientError(
            "OUT_OF_RANGE",
            f"{source} has {facts.size:,} bytes; at most {largest_bytes:,} are read",
            "Divide it",
        )
    value, written, etag, failures = facts.new_value(), 0, "", 0
    while True:
        body, etag = _open(s3, source, written, etag)
        try:
            while chunk := _chunk(body, source):
                stream.write(chunk)
                value.update(chunk)
                written, failures = written + len(chunk), 0
            break
        except _Broken as error:
            failures += 1
            if failures >= ATTEMPTS or written >= facts.size:
                raise ClientError("UNAVAILABLE", f"{source}: {error}", "Run the command again") from error
        finally:
            body.close()
    stream.flush()
    _require(facts, written, value, source)
    return written


class _Broken(Exception):
    """The connection ended before the object did."""


def _open(s3: S3, source: BucketPlace, offset: int, etag: str) -> tuple[Any, str]:
    """Ask for the rest of the object, as long as it is the same one."""
    rest = {"Range": f"bytes={offset}-", "IfMatch": etag} if offset else {}
    with s3_errors(source):
        try:
            answer = s3.get_object(Bucket=source.bucket, Key=source.key, **rest)
        except S3Error as error:
            said = error.response.get("Error", {})
            if said.get("Code") in ("PreconditionFailed", "412", "InvalidRange", "416"):
                raise damaged(source) from error
            raise
    return answer["Body"], answer["ETag"]


def _chunk(body: Any, source: BucketPlace) -> bytes:
    """Errors of the stream that is written to, such as a broken pipe, are not caught here."""
    try:
        return body.read(CHUNK_BYTES)
    except _BROKEN as error:
        raise _Broken(f"the connection broke: {error}") from error
    except BotoCoreError as error:  # a checksum that does not match
        raise damaged(source) from error


def _require(facts: Facts, written: int, value: Any, source: BucketPlace) -> None:
    if written != facts.size or not facts.is_value(value):
        raise damaged(source)
