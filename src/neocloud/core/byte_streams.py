"""The least that a function needs of a stream of bytes."""

from typing import Protocol


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Rewritable(Protocol):
    """A file that can be written, and emptied to be written again."""

    def write(self, content: bytes, /) -> int: ...

    def seek(self, offset: int, /) -> object: ...

    def truncate(self) -> object: ...
