# pyright: strict
"""Dependencies of reading and writing bodies: metadata, blobs, keys, threads, and the blobs being read."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from neocloud.object_store.blobs.driver import BlobDriver, BlobError, BlobsAway, BlobsFull
from neocloud.object_store.blobs.sealing import KEY_BYTES, KeySealer
from neocloud.object_store.bodies.quota_reservations import QuotaReservations
from neocloud.object_store.errors import InvalidRequest, StoreBusy, StoreFull, StoreUnavailable
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.transaction import BucketRow, no_such_bucket
from neocloud.object_store.types import BucketState

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
