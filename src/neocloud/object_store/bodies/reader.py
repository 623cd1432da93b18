"""Bytes of a version on their way out: read and verified a MiB at a time, one ahead of the caller."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from neocloud.core.cleanup import aundo_on_error
from neocloud.object_store.blobs.driver import BlobError, NoSuchBlob
from neocloud.object_store.blobs.sealing import (
    FRAME_BYTES,
    SEALED_FRAME_BYTES,
    FrameCipher,
    KeySealer,
    NotAuthentic,
)
from neocloud.object_store.bodies.engine import Engine, explained
from neocloud.object_store.errors import Damaged
from neocloud.object_store.metadata.contents import Leaf, Span
from neocloud.object_store.types import ObjectVersion

_CHUNK_FRAMES = 16


class _Startable(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


_Reader = TypeVar("_Reader", bound=_Startable)


async def started(reader: _Reader) -> _Reader:
    """Return the reader after its first bytes were read and verified; close it where that fails."""
    async with aundo_on_error(reader.close):
        await reader.start()
    return reader


class Reader:
    """An `ObjectReader`. Made by `open_reader`."""

    def __init__(
        self,
        engine: Engine,
        version: ObjectVersion,
        first: int,
        length: int,
        spans: Sequence[Span],
        sealer: KeySealer,
    ) -> None:
        self.version = version
        self.first = first
        self.length = length
        self._engine = engine
        self._sealer = sealer
        self._pinned = [span.leaf.id for span in spans]
        self._chunks = _chunks(spans)
        self._first_chunk = b""
        self._next: asyncio.Task[bytes] | None = None
        self._cipher: tuple[int, FrameCipher] | None = None
        engine.pin(self._pinned)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        task, self._next = self._next, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
        pinned, self._pinned = self._pinned, []
        self._engine.unpin(pinned)

    async def start(self) -> None:
        """Read and verify the first chunk. Raises Damaged, StoreUnavailable."""
        span = next(self._chunks, None)
        if span is not None:
            self._first_chunk = await self._read(span)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunk, self._first_chunk = self._first_chunk, b""
        self._advance()
        if chunk:
            yield chunk
        while self._next is not None:
            chunk = await self._next
            self._advance()
            yield chunk

    def _advance(self) -> None:
        span = next(self._chunks, None)
        self._next = None if span is None else asyncio.ensure_future(self._read(span))

    async def _read(self, span: Span) -> bytes:
        leaf, start, length = span
        first = start // FRAME_BYTES
        end = min(-(-(start + length) // FRAME_BYTES) * FRAME_BYTES, leaf.size)
        sealed_length = (
            end - first * FRAME_BYTES + (-(-end // FRAME_BYTES) - first) * (SEALED_FRAME_BYTES - FRAME_BYTES)
        )
        cipher = self._cipher_of(leaf)
        try:
            if leaf.inline is not None:
                plain = cipher.open(0, leaf.inline)
                first = 0
            else:
                assert leaf.blob is not None
                where = (leaf.blob, first * SEALED_FRAME_BYTES, sealed_length)
                try:
                    plain = await self._open(cipher, first, *where)
                except NotAuthentic:  # what was spoilt on its way comes whole the second time
                    plain = await self._open(cipher, first, *where)
        except (NotAuthentic, NoSuchBlob) as error:
            raise damaged() from error
        except BlobError as error:
            raise explained(error) from error
        skipped = start - first * FRAME_BYTES
        if len(plain) < skipped + length:
            raise damaged()
        if skipped == 0 and len(plain) == length:
            return plain
        return plain[skipped : skipped + length]

    async def _open(self, cipher: FrameCipher, first: int, blob: str, start: int, length: int) -> bytes:
        """Raises NotAuthentic, Damaged, BlobError."""
        sealed = await self._engine.blobs.read(blob, start, length)
        if len(sealed) != length:
            raise damaged()
        return await self._engine.in_thread(lambda: cipher.open(first, sealed))

    def _cipher_of(self, leaf: Leaf) -> FrameCipher:
        if self._cipher is None or self._cipher[0] != leaf.id:
            try:
                self._cipher = (leaf.id, FrameCipher(self._sealer.open(leaf.data_key)))
            except NotAuthentic as error:
                raise damaged() from error
        return self._cipher[1]


def damaged() -> Damaged:
    return Damaged("The stored bytes of the object are damaged. Nothing of them is returned.")


def _chunks(spans: Sequence[Span]) -> Iterator[Span]:
    """Cut spans at the ends of frames, into chunks that are read at once."""
    for leaf, start, length in spans:
        end = start + length
        while start < end:
            until = min(end, (start // FRAME_BYTES + _CHUNK_FRAMES) * FRAME_BYTES)
            yield Span(leaf, start, until - start)
            start = until
