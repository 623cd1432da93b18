"""The stream format of exec and logs: 8-byte headers (1 is stdout, 2 is stderr) before each piece. Pure.

What a tenant's program printed passes here, so time is linear in its length and memory is bounded.
"""

import struct
from collections.abc import Iterator

from neocloud.engines.base import MAX_LINE_BYTES

STDOUT = 1
STDERR = 2
_HEADER = struct.Struct(">BxxxI")


class FrameDecoder:
    """Takes bytes as they arrive and yields what they hold; a long frame comes in several pieces."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                yield self._stream, piece
                continue
            head = data[at : at + _HEADER.size - len(self._header)]
            at += len(head)
            self._header += head
            if len(self._header) == _HEADER.size:
                self._stream, self._left = _HEADER.unpack(self._header)
                self._header.clear()


class LineJoiner:
    """Joins pieces of text to whole lines, each stream for itself; splits lines over MAX_LINE_BYTES."""

    def __init__(self) -> None:
        self._open: dict[int, bytearray] = {}

    def feed(self, stream: int, piece: bytes) -> Iterator[str]:
        line = self._open.setdefault(stream, bytearray())
        at = 0
        while at < len(piece):
            room = at + MAX_LINE_BYTES - len(line)
            end = piece.find(b"\n", at, room + 1)
            if end >= 0:
                line += piece[at:end]
                at = end + 1
            else:
                line += piece[at:room]
                at = min(room, len(piece))
                if len(line) < MAX_LINE_BYTES or at == len(piece):
                    continue
            yield line.decode(errors="replace")
            line.clear()

    def rest(self) -> Iterator[str]:
        for line in self._open.values():
            if line:
                yield line.decode(errors="replace")
