"""Decodes bodies of the content encoding "aws-chunked", signed or not, as they come.

Written from AWS's published description of "Signature Calculations for the Authorization Header: Transferring
Payload in Multiple Chunks", and "Using trailing headers". Bytes are passed on before the signature of their
chunk is known: the receiver must not use them before the end.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.signature import Signed, mismatch, sign

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
KINDS = (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER)
MAX_LINE_BYTES = 1024
MAX_TRAILERS = 10
SMALL_CHUNK_BYTES, MAX_SMALL_CHUNKS = 8 * 1024, 4096
"""Chunks below the minimum of S3 are taken from clients that send few; a body of single bytes would keep the
server busy."""
_SIZE = re.compile(rb"([0-9a-fA-F]{1,10})(?:;chunk-signature=([0-9a-f]{64}))?")
_EMPTY = hashlib.sha256(b"").hexdigest()


class _State(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    DONE = auto()


@dataclass
class ChunkDecoder:
    """`signing_key` is None where chunks are not signed."""

    signed: Signed
    signing_key: bytes | None
    has_trailer: bool
    trailers: dict[str, str] = field(default_factory=dict[str, str])
    """The trailers by lower-case name, complete at the end of the body."""

    def __post_init__(self) -> None:
        self._state = _State.SIZE
        self._line = bytearray()
        self._left = self._small = 0
        self._is_last = False
        self._previous = self.signed.signature
        self._chunk_signature = ""
        self._hash = hashlib.sha256()
        self._trailer_text = ""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bytes of the object in the next bytes of the body. Raises S3Error."""
        at = 0
        while at < len(data):
            if self._state is _State.DONE:
                raise _broken("There are bytes behind the last chunk.")
            if self._state is _State.DATA:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self.signing_key is not None:
                    self._hash.update(piece)
                if not self._left:
                    self._state = _State.DATA_END
                yield piece
            else:
                end = data.find(b"\n", at)
                self._line += data[at : len(data) if end < 0 else end + 1]
                if len(self._line) > MAX_LINE_BYTES:
                    raise _broken("A line between chunks is too long.")
                if end < 0:
                    return
                at = end + 1
                line = bytes(self._line)
                self._line.clear()
                self._take_line(line)

    def finish(self) -> None:
        """Raises S3Error unless the body is complete."""
        if self._state is not _State.DONE:
            raise S3Error("IncompleteBody", "The body ends before its last chunk.")

    def _take_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n") and self._state is not _State.TRAILER:
            raise _broken("A line between chunks must end with CRLF.")
        text = line.rstrip(b"\r\n")
        if self._state is _State.SIZE:
            self._begin_chunk(text)
        elif self._state is _State.DATA_END:
            if text:
                raise _broken("A chunk is longer than it says.")
            self._end_chunk()
        else:
            self._take_trailer(text)

    def _begin_chunk(self, text: bytes) -> None:
        found = _SIZE.fullmatch(text)
        if found is None or (self.signing_key is not None) != (found[2] is not None):
            raise _broken("The size of a chunk, or its signature, is missing or malformed.")
        self._left = int(found[1], 16)
        self._small += self._left < SMALL_CHUNK_BYTES
        if self._small > MAX_SMALL_CHUNKS:
            raise S3Error("InvalidChunkSizeError", f"Send chunks of at least {SMALL_CHUNK_BYTES:,} bytes.")
        self._chunk_signature = (found[2] or b"").decode()
        self._hash = hashlib.sha256()
        self._is_last = self._left == 0
        if not self._is_last:
            self._state = _State.DATA
        elif self.has_trailer:
            self._check_chunk()
            self._state = _State.TRAILER
        else:
            self._state = _State.DATA_END

    def _end_chunk(self) -> None:
        self._check_chunk()
        self._state = _State.DONE if self._is_last else _State.SIZE

    def _check_chunk(self) -> None:
        self._check("AWS4-HMAC-SHA256-PAYLOAD", f"{_EMPTY}\n{self._hash.hexdigest()}", self._chunk_signature)

    def _check(self, algorithm: str, content: str, signature: str) -> None:
        if self.signing_key is None:
            return
        start = f"{algorithm}\n{self.signed.date}\n{self.signed.scope}\n{self._previous}\n"
        expected = sign(self.signing_key, start + content)
        if not hmac.compare_digest(expected, signature):
            raise mismatch()
        self._previous = expected

    def _take_trailer(self, text: bytes) -> None:
        if not text:
            self._end_trailers()
            return
        name, colon, value = text.decode("latin-1").partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon or name in self.trailers or len(self.trailers) >= MAX_TRAILERS:
            raise trailer_error("A trailer is malformed, or comes twice.")
        self.trailers[name] = value
        if name != "x-amz-trailer-signature":
            self._trailer_text += f"{name}:{value}\n"

    def _end_trailers(self) -> None:
        signature = self.trailers.pop("x-amz-trailer-signature", "")
        if self.signing_key is not None:
            if not signature.isascii():
                raise mismatch()
            digest = hashlib.sha256(self._trailer_text.encode("latin-1")).hexdigest()
            self._check("AWS4-HMAC-SHA256-TRAILER", digest, signature)
        self._state = _State.DONE


def trailer_error(message: str) -> S3Error:
    return S3Error("MalformedTrailerError", message)


def _broken(message: str) -> S3Error:
    return S3Error("InvalidRequest", f"The body is not in the encoding aws-chunked. {message}")


def new_decoder(signed: Signed, key: bytes) -> ChunkDecoder:
    """Raises S3Error for a kind of stream that there is not."""
    if signed.payload not in KINDS:
        raise S3Error("NotImplemented", f"x-amz-content-sha256 {signed.payload[:80]} is not served here.")
    is_signed = signed.payload != UNSIGNED_TRAILER
    return ChunkDecoder(signed, key if is_signed else None, signed.payload != SIGNED)
