"""Blobs as objects of another S3 engine: `<prefix><name>.00000` and so on, pieces of one size but the last.

The engine is asked for puts, ranged gets, deletes and lists of small objects that never change. A key that
is written again after a failure gets the same bytes. The object `<prefix>owner` says which store the blobs
belong to; nothing is read, written or deleted before it was compared.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from neocloud.object_store.blobs.driver import NAME, BlobError, BlobStat, NoSuchBlob
from neocloud.object_store.blobs.s3.attempts import MISSING, Attempts, away
from neocloud.object_store.blobs.s3.location import S3Location
from neocloud.object_store.blobs.s3.spool import Spool
from neocloud.object_store.blobs.sealing import SEALED_FRAME_BYTES
from neocloud.s3_client import answers
from neocloud.s3_client.answers import unreadable
from neocloud.s3_client.client import S3Bucket
from neocloud.s3_client.http import Answer, HttpEndpoint, Patience
from neocloud.s3_client.network import trusted_pool
from neocloud.s3_client.types import EndpointError, Listed

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


async def read_range(bucket: S3Bucket, key: str, first: int, length: int) -> bytes:
    """Return these bytes of an object, fewer where it ends. Raises EndpointError, also for an answer that has
    not exactly what it announces."""
    async with bucket.get(key, "", first, first + length - 1) as answer:
        expected = _announced(answer, first, length)
        if expected is None:
            raise unreadable(bucket.endpoint.origin, "other bytes than were asked for")
        found: list[bytes] = []
        received = 0
        async for chunk in answer.chunks():
            received += len(chunk)
            if received > expected:
                break
            found.append(chunk)
        if received != expected:
            raise unreadable(bucket.endpoint.origin, "another number of bytes than it announced")
        return b"".join(found)


def _announced(answer: Answer, first: int, length: int) -> int | None:
    """Return how many bytes follow; None: they are not those that were asked for."""
    if answer.status == 200:  # the range covers the whole object
        whole = answer.length
        return whole if first == 0 and whole is not None and whole <= length else None
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if answer.status != 206 or found is None:
        return None
    begin, last, total = (int(each) for each in found.groups())
    if begin != first or last != min(first + length, total) - 1:
        return None
    return last - begin + 1


PIECE_BYTES = 63 * 16 * SEALED_FRAME_BYTES
"""63 MiB of a body with their tags, below 64 MiB. It is the format of what is stored: never change it."""
MAX_CONNECTIONS = 64
PATIENCE = Patience(quiet=20.0, pool=20.0)
CHECK_SECONDS, AWAY_CHECK_SECONDS = 60.0, 5.0
"""Between looks whether the engine answers; while it does not, it is asked more often."""
_BEYOND = ("InvalidRange", "HTTP416")
"""A range begins where the object has ended already."""
_MARK = "owner"
_MOST_MARK_BYTES = 100


@dataclass
class Ownership:
    """To which store the blobs belong."""

    owner: str
    """Random; the store remembers it."""
    is_claimed: bool
    """Whether the mark was written."""
    on_claimed: Callable[[], Awaitable[None]]
    """Called when it has been, to remember it."""


class S3Blobs:
    """A `BlobDriver`."""

    def __init__(
        self,
        location: S3Location,
        ownership: Ownership,
        folder: Path,
        executor: Executor,
        patience: Patience = PATIENCE,
    ) -> None:
        """`folder` is on a disk, for pieces on their way. Raises ValueError, OSError."""
        self.location, self.folder, self.executor = location, folder, executor
        self._ownership, self._patience = ownership, patience
        self._pool = trusted_pool(location.endpoint.partition(":")[0], MAX_CONNECTIONS)
        self._endpoint = location.connection()
        self._bucket = self._connected()
        self.attempts = Attempts(location.name, self._read_key_again, self._note_failure)
        self._is_checked, self._failed = False, asyncio.Event()
        self._checking = asyncio.Lock()

    async def create(self, name: str) -> "_NewObject":
        assert NAME.fullmatch(name), "only names of ours become keys"
        await self._ensure_ours()
        return _NewObject(self, name)

    async def read(self, name: str, start: int, length: int) -> bytes:
        await self._ensure_ours()
        found: list[bytes] = []
        while length:
            number, at = divmod(start, PIECE_BYTES)
            wanted = min(length, PIECE_BYTES - at)
            chunk = await self._read_piece(self.key(name, number), at, wanted)
            if chunk is None and number == 0:
                raise NoSuchBlob("The blob does not exist.")
            found.append(chunk or b"")
            if chunk is None or len(chunk) < wanted:
                break
            start, length = start + wanted, length - wanted
        return found[0] if len(found) == 1 else b"".join(found)

    async def delete(self, name: str) -> None:
        await self._ensure_ours()
        for piece in [each async for each in self._listed(f"{name}.")]:
            await self.delete_key(f"{self.location.prefix}{name}.{piece.key}")

    async def list(self) -> AsyncIterator[BlobStat]:
        await self._ensure_ours()
        current: BlobStat | None = None
        async for piece in self._listed(""):
            name = piece.key.partition(".")[0]
            if not NAME.fullmatch(name):
                continue
            if current is not None and current.name == name:
                size, at = current.size + piece.size, max(current.written_at, piece.modified_at)
                current = BlobStat(name, size, at)
                continue
            if current is not None:
                yield current
            current = BlobStat(name, piece.size, piece.modified_at)
        if current is not None:
            yield current

    async def stat(self, name: str) -> BlobStat | None:
        await self._ensure_ours()
        pieces = [each async for each in self._listed(f"{name}.")]
        if not pieces:
            return None
        return BlobStat(name, sum(each.size for each in pieces), max(each.modified_at for each in pieces))

    async def close(self) -> None:
        await self._pool.aclose()

    async def watch(self) -> None:
        """Look whether the engine answers, until cancelled."""
        while True:
            with suppress(BlobError):
                await self.check()
            if not self.attempts.problem:
                self._failed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._failed.wait()
            await asyncio.sleep(AWAY_CHECK_SECONDS)

    def key(self, name: str, number: int) -> str:
        assert NAME.fullmatch(name), "only names of ours become keys"
        return f"{self.location.prefix}{name}.{number:05d}"

    async def put(self, key: str, spool: Spool) -> None:
        """Write a piece. Raises BlobError."""
        headers = {"Content-MD5": spool.content_md5, "Content-Type": "application/octet-stream"}

        async def put() -> None:
            stored = answers.md5_of(await self._bucket.put(key, spool.chunks(), spool.size, headers))
            if stored and stored != spool.md5.hex():
                raise answers.unreadable(self._endpoint.origin, "another digest than was sent")

        await self.attempts.run(put)

    async def delete_key(self, key: str) -> None:
        """Deleting what does not exist succeeds. Raises BlobError."""
        with suppress(EndpointError):
            await self.attempts.run(lambda: self._bucket.delete(key), (MISSING,))

    async def _read_piece(self, key: str, first: int, length: int) -> bytes | None:
        """Return these bytes, fewer where the piece ends; None: there is no such piece."""
        try:
            return await self.attempts.run(
                lambda: read_range(self._bucket, key, first, length), (MISSING, *_BEYOND)
            )
        except EndpointError as error:
            return None if error.code == MISSING else b""

    async def _listed(self, prefix: str) -> AsyncIterator[Listed]:
        """Yield the objects below a prefix, their keys without it."""
        whole, page = self.location.prefix + prefix, None
        while page is None or page.next_token:
            page = await self._page(whole, page.next_token if page else "")
            for each in page.objects:
                yield each

    async def _page(self, prefix: str, token: str) -> answers.Page:
        return await self.attempts.run(lambda: self._bucket.list(prefix, "", token))

    # The owner of the blobs

    async def _ensure_ours(self) -> None:
        """Raises BlobsAway unless the engine was seen to have the blobs of this store since it answers."""
        if not self._is_checked:
            async with self._checking:
                if not self._is_checked:
                    await self.check()

    async def check(self) -> None:
        """Compare the mark of the location, or make it in a new one. Raises BlobsAway."""
        found, wanted = await self._mark(), self._ownership.owner
        if found is None and not self._ownership.is_claimed:
            await self._claim()
            found = await self._mark()
        if found != wanted:
            why = "is that of another store" if found else "is missing: it is another bucket, or was emptied"
            self.attempts.note(f"The mark {self.location.name}/{_MARK} {why}.")
            raise away()
        if not self._ownership.is_claimed:
            await self._ownership.on_claimed()
            self._ownership.is_claimed = True
        self._is_checked = True

    async def _mark(self) -> str | None:
        found = await self._read_piece(self.location.prefix + _MARK, 0, _MOST_MARK_BYTES)
        return None if found is None else found.decode("ascii", "replace").strip()

    async def _claim(self) -> None:
        """Make an empty location this store's. Raises BlobsAway."""
        if (await self._page(self.location.prefix, "")).objects:
            self.attempts.note(f"{self.location.name} is not empty: name a prefix without objects.")
            raise away()
        key, mark = self.location.prefix + _MARK, self._ownership.owner.encode()

        def put(headers: Mapping[str, str]) -> Awaitable[object]:
            return self._bucket.put(key, mark, len(mark), headers)

        try:
            await self.attempts.run(
                lambda: put({"If-None-Match": "*"}), ("PreconditionFailed", "NotImplemented")
            )
        except EndpointError as error:
            if error.code == "NotImplemented":  # an engine without conditions
                await self.attempts.run(lambda: put({}))
            # Else another store was faster, which the comparison finds.

    def _note_failure(self) -> None:
        self._is_checked = False
        self._failed.set()

    def _read_key_again(self) -> None:
        """Use the key that the file has now: the old one may have been replaced."""
        with suppress(ValueError, OSError):
            endpoint = self.location.connection()
            if endpoint != self._endpoint:
                self._endpoint = endpoint
                self._bucket = self._connected()

    def _connected(self) -> S3Bucket:
        http = HttpEndpoint(self._endpoint, self._pool, patience=self._patience, agent="neocloud-blobs")
        return S3Bucket(http)


class _NewObject:
    """One piece is filled while the one before is sent."""

    def __init__(self, blobs: S3Blobs, name: str) -> None:
        self._blobs, self._name = blobs, name
        self._spool = Spool(blobs.folder, blobs.executor)
        self._begun = 0
        self._sending: asyncio.Task[None] | None = None
        self._is_finished = False

    async def write(self, chunk: bytes | memoryview) -> None:
        view = memoryview(chunk)
        while view:
            part = view[: PIECE_BYTES - self._spool.size]
            view = view[len(part) :]
            await self._spool.add(part)
            if self._spool.size == PIECE_BYTES:
                await self._send()

    async def finish(self) -> None:
        if self._spool.size or not self._begun:
            await self._send()
        await self._sent()
        self._spool.close()
        self._is_finished = True

    async def abort(self) -> None:
        if self._is_finished:
            return
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
            if not self._sending.cancelled():
                self._sending.exception()
        self._spool.close()
        begun, self._begun = self._begun, 0
        for number in range(begun):
            await self._blobs.delete_key(self._blobs.key(self._name, number))

    async def _send(self) -> None:
        """Begin to send what is in the spool, after the piece before."""
        await self._sent()
        spool, self._spool = self._spool, Spool(self._blobs.folder, self._blobs.executor)
        key = self._blobs.key(self._name, self._begun)
        self._begun += 1
        self._sending = asyncio.create_task(self._put(key, spool))

    async def _put(self, key: str, spool: Spool) -> None:
        try:
            await self._blobs.put(key, spool)
        finally:
            spool.close()

    async def _sent(self) -> None:
        """Wait for the piece that is being sent. Raises BlobError."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
            self._sending.result()
