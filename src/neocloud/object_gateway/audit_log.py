"""Events of requests to objects on their way to the audit log of the cloud.

An event is in memory for a second at most, then on the disk until the control plane has it: exactly once,
however often either of them is killed. A kill loses the events of the last second. Where more come than may
be kept, their number is kept. A tenant may have as many as there is room left: one that makes too many takes
half of the room, two of them take two thirds, so that events of others are kept.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.data_plane.rate_limits import Buckets, Rate
from neocloud.messages.neocloud.storage.v1 import ObjectEvent, ReportObjectEventsRequest
from neocloud.object_gateway.access import ControlPlane
from neocloud.object_store.errors import ObjectStoreError, StoreFull, StoreUnavailable
from neocloud.object_store.metadata.transaction import Transaction
from neocloud.object_store.store import ObjectStore

MOST_PER_SECOND = 200.0
"""Events of one tenant, for long; more for seconds. It is what one tenant can make the audit log grow by."""
MOST_IN_MEMORY, MOST_ON_DISK = 20_000, 100_000
_READ_TOGETHER = 1000
SENT_TOGETHER, SENT_BYTES = 100, 128 * 1024
"""Events of one request, as many as a request of the API may have."""
KEEP_SECONDS = 1.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0
LOST = "LostEvents"
logger = logging.getLogger(__name__)


class AuditLog:
    """An `Audit`. `record` is called in the thread of the event loop."""

    def __init__(self, store: ObjectStore, control_plane: ControlPlane, clock: Clock) -> None:
        self._database = store.engine.database
        self._control_plane, self._clock = control_plane, clock
        self._rates = Buckets(Rate(MOST_PER_SECOND), clock.monotonic)
        self._waiting: list[ObjectEvent] = []
        self._in_memory: Counter[str] = Counter()
        """How many of those that wait each tenant has."""
        self._lost: Counter[tuple[str, str, str]] = Counter()
        """Lost events of each bucket: its id, its name, its tenant."""
        self._held = self._count_on_disk()
        """How many events each tenant has, on the disk and in memory."""
        self._is_repeated = True
        self._noted, self._kept = asyncio.Event(), asyncio.Event()
        self._kept.set()  # for what the last process left

    def record(self, event: ObjectEvent) -> None:
        tenant = event.tenant_id
        has_room = _has_room(self._in_memory, tenant, MOST_IN_MEMORY) and self._has_room(tenant)
        if has_room and not self._rates.take(tenant):
            self._add(event)
        else:
            self._lost[event.bucket_id, event.bucket, event.tenant_id] += 1
        self._noted.set()

    async def run(self) -> None:
        """Run until cancelled; then keep what is in memory."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_all())
                group.create_task(self._send_all())
        finally:
            await self._keep()

    async def _keep_all(self) -> None:
        while True:
            await self._noted.wait()
            await self._clock.sleep(KEEP_SECONDS)
            self._noted.clear()
            await self._keep()

    async def _keep(self) -> None:
        """Write what is in memory to the disk; leave it there while the disk takes nothing."""
        self._add_lost()
        events, self._waiting = self._waiting, []
        self._in_memory.clear()
        if not events:
            return

        def work(tx: Transaction) -> None:
            for event in events:
                row = (event.SerializeToString(),)
                tx.connection.execute("INSERT INTO object_event (event) VALUES (?)", row)

        try:
            await self._database.write(work)
        except (StoreFull, StoreUnavailable) as error:
            logger.warning("Audit events of objects wait in memory: %s", error)
            self._waiting = events + self._waiting
            self._in_memory += _by_tenant(events)
            self._noted.set()
        else:
            self._kept.set()

    def _add(self, event: ObjectEvent) -> None:
        self._waiting.append(event)
        self._in_memory[event.tenant_id] += 1
        self._held[event.tenant_id] += 1

    def _has_room(self, tenant_id: str) -> bool:
        return _has_room(self._held, tenant_id, MOST_ON_DISK)

    def _add_lost(self) -> None:
        """Add an event with their number for each bucket whose tenant has room again."""
        for place in list(self._lost):
            _, _, tenant_id = place
            if self._has_room(tenant_id):
                self._add(self._lost_event(*place, self._lost.pop(place)))

    def _lost_event(self, bucket_id: str, bucket: str, tenant_id: str, number: int) -> ObjectEvent:
        logger.warning("%s audit events of the bucket %s are lost: there were too many", number, bucket)
        return ObjectEvent(
            id=contract.new_id("auditevent"),
            at=contract.timestamp(self._clock.now()),
            operation=LOST,
            bucket_id=bucket_id,
            bucket=bucket,
            tenant_id=tenant_id,
            lost_count=number,
        )

    async def _send_all(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while True:
            await self._kept.wait()
            self._kept.clear()
            try:
                while rows := self._oldest():
                    await self._send(rows)
                    wait = FIRST_WAIT_SECONDS
            except (ControlPlaneUnavailable, ObjectStoreError) as error:
                logger.info("Audit events of objects wait on the disk: %s", error)
                self._is_repeated = True
                self._kept.set()
                await self._clock.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _oldest(self) -> Sequence[tuple[int, bytes]]:
        """Return as many events as one request may have, and at least one unless there is none."""
        rows = self._after(0, SENT_TOGETHER)
        sizes = accumulate(len(event) for _, event in rows)
        return rows[: max(1, sum(size <= SENT_BYTES for size in sizes))]

    def _after(self, number: int, most: int) -> Sequence[tuple[int, bytes]]:
        statement = "SELECT number, event FROM object_event WHERE number > ? ORDER BY number LIMIT ?"
        return self._database.reading.execute(statement, (number, most)).fetchall()

    def _count_on_disk(self) -> Counter[str]:
        """Return how many events each tenant has there."""
        found: Counter[str] = Counter()
        last = 0
        while rows := self._after(last, _READ_TOGETHER):
            found += _by_tenant(ObjectEvent.FromString(event) for _, event in rows)
            last = rows[-1][0]
        return found

    async def _send(self, rows: Sequence[tuple[int, bytes]]) -> None:
        events = [ObjectEvent.FromString(event) for _, event in rows]
        await self._control_plane.report_object_events(
            ReportObjectEventsRequest(events=events, is_repeated=self._is_repeated)
        )
        last = rows[-1][0]

        def work(tx: Transaction) -> None:
            tx.connection.execute("DELETE FROM object_event WHERE number <= ?", (last,))

        await self._database.write(work)
        self._is_repeated = False
        self._held -= _by_tenant(events)
        if self._lost:  # there is room for their number now
            self._noted.set()


def _has_room(held: Counter[str], tenant_id: str, most: int) -> bool:
    return held[tenant_id] < most - held.total()


def _by_tenant(events: Iterable[ObjectEvent]) -> Counter[str]:
    return Counter(event.tenant_id for event in events)
