"""The stream format of exec and logs: 8-byte headers (1 is stdout, 2 is stderr) before each piece. Pure."""

import struct
from collections.abc import Iterator

STDOUT = 1
STDERR = 2
_HEADER = struct.Struct(">BxxxI")


class FrameDecoder:
    """Takes bytes as they arrive and gives out whole pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            stream, size = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + size
            if len(self._buffer) < end:
                return
            piece = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield stream, piece


class LineJoiner:
    """Joins pieces of text to whole lines, each stream for itself."""

    def __init__(self) -> None:
        self._open: dict[int, bytes] = {}

    def feed(self, stream: int, piece: bytes) -> Iterator[str]:
        *whole, self._open[stream] = (self._open.get(stream, b"") + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")

    def rest(self) -> Iterator[str]:
        for line in self._open.values():
            if line:
                yield line.decode(errors="replace")
