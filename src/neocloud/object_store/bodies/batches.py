# pyright: strict
"""A body that comes in chunks of any size, cut into batches.

There are two buffers, used in turn: one is filled while the batch in the other is hashed, encrypted and
written. New memory for each batch would cost about as much processor time as the encryption.
"""

from neocloud.object_store.blobs.sealing import FRAME_BYTES

BATCH_BYTES = 16 * FRAME_BYTES
_FIRST_BYTES = FRAME_BYTES


class Batches:
    """A batch is to be done before the next but one is complete."""

    def __init__(self, length: int | None) -> None:
        """`length` is that of the body; None: unknown."""
        self._size = BATCH_BYTES if length is None else max(1, min(length, BATCH_BYTES))
        self._filling = memoryview(bytearray(min(self._size, _FIRST_BYTES)))
        self._other: memoryview | None = None
        self._filled = 0

    def add(self, chunk: memoryview) -> int:
        """Take as much of the chunk as the batch has room for; return how many bytes."""
        taken = min(len(chunk), self._size - self._filled)
        end = self._filled + taken
        if end > len(self._filling):
            self._grow()
        self._filling[self._filled : end] = chunk[:taken]
        self._filled = end
        return taken

    @property
    def is_full(self) -> bool:
        return self._filled == BATCH_BYTES

    def take(self) -> memoryview:
        """Return what was added since the last call."""
        batch = self._filling[: self._filled]
        self._filling, self._other = self._other or memoryview(bytearray(self._size)), self._filling
        self._filled = 0
        return batch

    def _grow(self) -> None:
        """Most bodies are short: they take one buffer of the size of a frame."""
        whole = memoryview(bytearray(self._size))
        whole[: self._filled] = self._filling[: self._filled]
        self._filling = whole
