"""One iteration of a transfer: lists both buckets, copies and deletes, and remembers how far it is."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from neocloud.core.clock import Clock
from neocloud.object_gateway.work.transfers.copying import ATTEMPTS, FIRST_WAIT_SECONDS, Copier, Copy
from neocloud.object_gateway.work.transfers.plan import Action, Pair, Strategy, listed, pairs
from neocloud.object_gateway.work.transfers.records import Records
from neocloud.object_gateway.work.transfers.types import MARK
from neocloud.object_store.errors import ObjectStoreError
from neocloud.s3_client.client import S3Bucket
from neocloud.s3_client.types import EndpointError

PARALLEL = 8
"""Objects at a time, of one transfer."""
BATCH, MOST_SKIPPED = 64, 10_000
"""So many actions, or keys that need none, before the position is stored."""
MOST_FAILED = 100
"""Objects that cannot be copied, before the iteration gives up."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Places:
    """The source and destination of a transfer."""

    source: S3Bucket
    destination: S3Bucket
    source_prefix: str
    destination_prefix: str
    strategy: Strategy
    touches_unmanaged: bool


class Iteration:
    def __init__(self, transfer_id: str, places: Places, records: Records, clock: Clock) -> None:
        self._id, self._places, self._records, self._clock = transfer_id, places, records, clock
        self._copier = Copier(transfer_id, places.source, places.destination, records, clock)
        self._slots = asyncio.Semaphore(PARALLEL)
        self._failed = 0
        self._first: EndpointError | None = None
        self._broken: ObjectStoreError | None = None

    async def run(self, position: str) -> None:
        """Do all after this key. Raises EndpointError, also where single objects could not be copied, and
        ObjectStoreError where the position cannot be stored."""
        places = self._places
        found = pairs(
            listed(places.source, places.source_prefix, position, self._retry),
            listed(places.destination, places.destination_prefix, position, self._retry),
        )
        batch: list[tuple[Action, Pair]] = []
        skipped = 0
        async for pair in found:
            action = places.strategy.action(pair)
            batch += [(action, pair)] if action is not Action.SKIP else []
            skipped += action is Action.SKIP
            if len(batch) >= BATCH or skipped >= MOST_SKIPPED:
                await self._do(batch)
                await self._records.advance(self._id, pair.key)
                batch, skipped = [], 0
        await self._do(batch)
        if self._first is not None:
            raise self._first

    async def _do(self, batch: Sequence[tuple[Action, Pair]]) -> None:
        async with asyncio.TaskGroup() as group:
            for action, pair in batch:
                group.create_task(self._try(action, pair))
        if self._broken is not None:
            raise self._broken
        if self._first is not None and self._failed >= MOST_FAILED:
            raise self._first

    async def _try(self, action: Action, pair: Pair) -> None:
        async with self._slots:
            if self._failed >= MOST_FAILED or self._broken is not None:
                return
            try:
                await self._act(action, pair)
            except EndpointError as error:
                self._failed += 1
                text = f"{pair.key[:100]!r}: {error.text}"
                named = EndpointError(
                    error.origin, error.code, text, status=error.status, is_transient=error.is_transient
                )
                self._first = self._first or named
            except ObjectStoreError as error:
                self._broken = error

    async def _act(self, action: Action, pair: Pair) -> None:
        places = self._places
        key = places.destination_prefix + pair.key
        if action is not Action.COPY and not await self._may_touch(key):
            return
        if action is Action.DELETE:
            await self._delete(key, pair)
        elif pair.source is not None:
            etag = pair.destination.etag if pair.destination is not None else ""
            if await self._copier.copy(Copy(pair.source, places.source_prefix + pair.key, key, etag)):
                await self._records.count(self._id, objects=1, size=pair.source.size)

    async def _may_touch(self, key: str) -> bool:
        """Return whether a transfer wrote the object, or this one may touch others."""
        if self._places.touches_unmanaged:
            return True
        head = await self._retry(lambda: self._places.destination.head(key))
        return head is not None and MARK in head

    async def _delete(self, key: str, pair: Pair) -> None:
        """Delete an object that the list of the source does not have, if the source says so again."""
        places = self._places
        in_source = await self._retry(lambda: places.source.head(places.source_prefix + pair.key))
        if in_source is not None or pair.destination is None:
            return
        etag = pair.destination.etag
        try:
            await self._retry(lambda: places.destination.delete(key, etag))
        except EndpointError as error:
            if error.status not in (404, 412):
                raise
            return
        await self._records.count(self._id, deleted=1)

    async def _retry(self, call: Callable[[], Awaitable[_Result]]) -> _Result:
        wait = FIRST_WAIT_SECONDS
        for _ in range(ATTEMPTS - 1):
            try:
                return await call()
            except EndpointError as error:
                if not error.is_transient:
                    raise
            await self._clock.sleep(wait)
            wait *= 2
        return await call()
