"""Dependencies of reading and writing bodies: metadata, blobs, keys, threads, room, and the blobs in use."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from neocloud.object_store.blobs.driver import BlobDriver, BlobError, BlobsAway, BlobsFull
from neocloud.object_store.blobs.sealing import KEY_BYTES, KeySealer
from neocloud.object_store.errors import InvalidRequest, StoreBusy, StoreFull, StoreUnavailable
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.transaction import BucketRow, no_such_bucket, quota_exceeded
from neocloud.object_store.types import BucketState

STEP_BYTES = 64 * 1024**2
"""Reserved at a time for a body of unknown length."""


class QuotaReservations:
    """Room in buckets with a quota, reserved for bodies that are being received.

    Reserved and committed bytes together never exceed the quota, so bodies that come at the same time are
    refused when they begin. The transaction checks again. Used in the thread of the event loop alone.
    """

    def __init__(self, used: Callable[[int], int]) -> None:
        """`used` returns the bytes that a bucket holds."""
        self._used = used
        self._reserved: dict[int, int] = {}

    def reserve(self, bucket: int, limit: int, length: int | None, freed: int) -> "Reservation":
        """Reserve for a body that replaces `freed` bytes. A limit of 0 is none. Raises QuotaExceeded."""
        reservation = Reservation(self, bucket, limit)
        if limit:
            left = limit - self._used(bucket) - self._reserved.get(bucket, 0) + freed
            wanted = min(STEP_BYTES, left) if length is None else length
            if wanted > left or (length is None and left <= 0):
                raise quota_exceeded(limit)
            reservation.add(max(0, wanted - freed))
            reservation.covered = wanted
        return reservation

    def left(self, bucket: int, limit: int) -> int:
        return limit - self._used(bucket) - self._reserved.get(bucket, 0)

    def change(self, bucket: int, size: int) -> None:
        total = self._reserved.get(bucket, 0) + size
        if total:
            self._reserved[bucket] = total
        else:
            self._reserved.pop(bucket, None)


class Reservation:
    """Room for one body; `release` it after the commit."""

    def __init__(self, reservations: QuotaReservations, bucket: int, limit: int) -> None:
        self._all = reservations
        self._bucket = bucket
        self._limit = limit
        self._size = 0
        self.covered = 0
        """The length that the body may have."""

    def add(self, size: int) -> None:
        self._all.change(self._bucket, size)
        self._size += size

    def cover(self, length: int) -> None:
        """Extend it for a body that has become longer. Raises QuotaExceeded."""
        if not self._limit or length <= self.covered:
            return
        more = min(max(STEP_BYTES, length - self.covered), self._all.left(self._bucket, self._limit))
        if self.covered + more < length:
            raise quota_exceeded(self._limit)
        self.add(more)
        self.covered += more

    def release(self) -> None:
        self._all.change(self._bucket, -self._size)
        self._size = 0


_Result = TypeVar("_Result")


def _no_pins() -> Counter[int]:
    return Counter()


def _no_tasks() -> set[asyncio.Future[Any]]:
    return set()


@dataclass(frozen=True)
class Engine:
    database: Database
    blobs: BlobDriver
    sealer: KeySealer
    executor: Executor
    """Threads that hash and encrypt."""
    reservations: QuotaReservations
    pins: Counter[int] = field(default_factory=_no_pins)
    """How often a content is being read; its blob is not deleted meanwhile."""
    tasks: set[asyncio.Future[Any]] = field(default_factory=_no_tasks)
    """Commits in progress, which are finished though their callers may be gone."""

    def bucket(self, bucket_id: str) -> BucketRow:
        """Return an active bucket. Raises NoSuchBucket."""
        row = self.database.buckets.find(bucket_id)
        if row is None or row.bucket.state is not BucketState.ACTIVE:
            raise no_such_bucket()
        return row

    def key_sealer(self, customer_key: bytes | None) -> KeySealer:
        """Raises InvalidRequest for a key of another length."""
        if customer_key is None:
            return self.sealer
        if len(customer_key) != KEY_BYTES:
            raise InvalidRequest(f"A key of the client has {KEY_BYTES} bytes.")
        return KeySealer(customer_key)

    async def in_thread(self, call: Callable[[], _Result]) -> _Result:
        return await self.start_thread(call)

    def start_thread(self, call: Callable[[], _Result]) -> "asyncio.Future[_Result]":
        return asyncio.get_running_loop().run_in_executor(self.executor, call)

    def pin(self, contents: Iterable[int]) -> None:
        self.pins.update(contents)

    def unpin(self, contents: Iterable[int]) -> None:
        self.pins.subtract(contents)
        for content in [each for each in contents if self.pins[each] <= 0]:
            self.pins.pop(content, None)

    async def finish(self, task: "asyncio.Future[_Result]") -> _Result:
        """Wait for a task that continues if the caller is cancelled."""
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # delivered to the caller, if there still is one


def explained(error: BlobError) -> StoreFull | StoreUnavailable:
    if isinstance(error, BlobsFull):
        return StoreFull("The disk of the object store is full. Nothing was stored or lost. Free some space.")
    if isinstance(error, BlobsAway):
        return StoreBusy(f"{error} Nothing was acknowledged. Try again later.")
    return StoreUnavailable(f"{error} Nothing was acknowledged. Try again.")
