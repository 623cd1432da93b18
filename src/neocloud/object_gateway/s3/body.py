"""The body of a request: decoded as it comes, bounded, checked against what is declared."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping

from starlette.types import Receive

from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3.chunks import ChunkDecoder, new_decoder, trailer_error
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.signature import UNSIGNED, Signed
from neocloud.object_store import checksums
from neocloud.object_store.types import Checksum, ChecksumAlgorithm, Expected

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
"""The largest XML document. 10,000 parts, each with a number, an ETag and a checksum, have 2 MiB."""
_CHECKSUM = "x-amz-checksum-"
_DRAIN_BYTES, _DISCARD_BYTES, _DRAIN_SECONDS = 1024 * 1024, 64 * 1024 * 1024, 2.0


class ClientLeft(Exception):
    """The client disconnected before its request was complete."""


class Body:
    def __init__(self, receive: Receive, headers: Mapping[str, str]) -> None:
        self._receive = receive
        self._headers = headers
        self._decoder: ChunkDecoder | None = None
        self._sha256: bytes | None = None
        self._is_begun = False
        self.is_read = not (declared_length(headers) or "transfer-encoding" in headers)
        """Whether nothing of it is left in the connection."""

    def expect(self, signed: Signed, key: bytes) -> None:
        """Let the body be what is signed. Raises S3Error."""
        if signed.payload.startswith("STREAMING-"):
            self._decoder = new_decoder(signed, key)
        elif signed.payload != UNSIGNED:
            self._sha256 = bytes.fromhex(signed.payload)

    @property
    def length(self) -> int | None:
        """The number of bytes of the object; None where the client does not say."""
        if self._decoder is None:
            return declared_length(self._headers)
        given = self._headers.get("x-amz-decoded-content-length")
        if given is None:
            return None
        if not (given.isascii() and given.isdigit() and len(given) <= 18):
            raise S3Error("InvalidArgument", "x-amz-decoded-content-length must be a number of bytes.")
        return int(given)

    def required_length(self) -> int:
        """Raises S3Error (MissingContentLength)."""
        length = self.length
        if length is None:
            raise S3Error("MissingContentLength", "The request needs a Content-Length.")
        return length

    @property
    def announced(self) -> Checksum | ChecksumAlgorithm | None:
        """The checksum that the headers have, or the one that will come as a trailer. Raises S3Error."""
        given = fields.checksum(self._headers)
        if given is not None:
            return given
        name = self._headers.get("x-amz-trailer", "").strip().lower()
        if not name:
            return None
        if self._decoder is None or not self._decoder.has_trailer or not name.startswith(_CHECKSUM):
            raise S3Error("InvalidRequest", f"The trailer {name[:80]} is not served here.")
        return fields.algorithm(name.removeprefix(_CHECKSUM), "x-amz-trailer")

    def algorithms(self) -> list[ChecksumAlgorithm]:
        """Return what has to be computed of the body to check it."""
        announced = self.announced
        found = [announced.algorithm] if isinstance(announced, Checksum) else [announced] if announced else []
        return [*found, *([ChecksumAlgorithm.SHA256] if self._sha256 is not None else [])]

    def expected(self, *, has_checksum: bool = True) -> Expected:
        """Return what the body must be; call it when the body was read, as trailers come last. Raises
        S3Error."""
        announced = self.announced if has_checksum else None
        trailers = self._decoder.trailers if self._decoder else {}
        if isinstance(announced, ChecksumAlgorithm):
            announced = fields.checksum(trailers)
            if announced is None:
                raise trailer_error("The trailer that was announced is missing.")
        elif any(name.startswith(_CHECKSUM) for name in trailers):
            raise trailer_error("There is a trailer that was not announced.")
        stored = fields.algorithm(
            self._headers.get("x-amz-sdk-checksum-algorithm", ""), "x-amz-sdk-checksum-algorithm"
        )
        if announced is not None and stored not in (None, announced.algorithm):
            raise S3Error("InvalidRequest", "x-amz-sdk-checksum-algorithm is not that of the checksum.")
        md5 = self._headers.get("content-md5")
        return Expected(
            md5=None if md5 is None else fields.base64_bytes(md5, 16, "Content-MD5", "InvalidDigest"),
            sha256=self._sha256,
            checksum=announced,
            size=self.length,
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the object. Raises S3Error, ClientLeft."""
        async for data in self.raw():
            if self._decoder is None:
                yield data
            else:
                for piece in self._decoder.feed(data):
                    yield piece
        if self._decoder is not None:
            self._decoder.finish()

    async def raw(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they are sent. Raises ClientLeft."""
        while not self.is_read:
            self._is_begun = True
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            self.is_read = not message.get("more_body")
            if data := message.get("body", b""):
                yield data

    async def document(self, *, has_checksum: bool = True) -> bytes:
        """Return a short body, checked. Without `has_checksum`, the checksum of the headers is of something
        else. Raises S3Error, ClientLeft."""
        if (self.length or 0) > MAX_DOCUMENT_BYTES:
            raise _too_large()
        found = bytearray()
        async for piece in self.chunks():
            found += piece
            if len(found) > MAX_DOCUMENT_BYTES:
                raise _too_large()
        content = bytes(found)
        _check(content, self.expected(has_checksum=has_checksum))
        return content

    async def drain(self) -> bool:
        """Read what is left of a short body, so that the connection can be used again; return whether
        nothing is left. A client that waits for "100 Continue" is not asked for its body."""
        if (declared_length(self._headers) or 0) <= _DRAIN_BYTES:
            await self._discard(_DRAIN_BYTES)
        return self.is_read

    async def discard(self) -> None:
        """Read on for a moment, before the connection is closed."""
        await self._discard(_DISCARD_BYTES)

    async def _discard(self, left: int) -> None:
        if self.is_read or not (self._is_begun or "expect" not in self._headers):
            return
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for data in self.raw():
                    left -= len(data)
                    if left < 0:
                        break
        except (TimeoutError, ClientLeft):
            pass


def _check(content: bytes, expected: Expected) -> None:
    if expected.size not in (None, len(content)):
        raise S3Error("IncompleteBody", "The body has another length than declared.")
    if expected.md5 is not None:
        found = hashlib.md5(content, usedforsecurity=False).digest()
        if not hmac.compare_digest(found, expected.md5):
            raise S3Error("BadDigest", "The body has another MD5 than Content-MD5 says.")
    if expected.sha256 not in (None, hashlib.sha256(content).digest()):
        raise S3Error("XAmzContentSHA256Mismatch", "The body has another SHA-256 than was signed.")
    if expected.checksum is not None:
        running = checksums.running(expected.checksum.algorithm)
        running.update(content)
        if base64.b64encode(running.digest()).decode() != expected.checksum.value:
            raise S3Error("BadDigest", "The body has another checksum than declared.")


def declared_length(headers: Mapping[str, str]) -> int | None:
    given = headers.get("content-length", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) <= 18 else None


def _too_large() -> S3Error:
    return S3Error("EntityTooLarge", f"The body may have {MAX_DOCUMENT_BYTES:,} bytes.")
