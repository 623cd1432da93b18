# pyright: strict
"""Follows the inventories of the control plane: runs and forgets them, and reports them as they are."""

import asyncio
import logging
from collections.abc import Sequence

from neocloud.core.clock import Clock
from neocloud.messages.neocloud.storage.v1 import (
    GatewayInventory,
    ListGatewayInventoriesResponse,
    ReportInventoriesRequest,
)
from neocloud.objects.access import ControlPlane, ControlPlaneUnavailable
from neocloud.objects.errors import ObjectStoreError
from neocloud.objects.inventories.records import Records
from neocloud.objects.inventories.runner import InventoryRunner, Slots
from neocloud.objects.store import ObjectStore

WAIT_SECONDS = 20
REPORT_SECONDS = 10.0
AWAY_SECONDS = 1.0
"""Between attempts while the control plane is away."""
REPORTED_TOGETHER = 200
"""Inventories in one request, which is bounded as every request is."""
logger = logging.getLogger(__name__)


class InventoryFollower:
    def __init__(self, store: ObjectStore, control_plane: ControlPlane, clock: Clock) -> None:
        self._store, self._control_plane, self._clock = store, control_plane, clock
        self._records = Records(store.engine.database)
        self._known: dict[str, GatewayInventory] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._slots = Slots()
        self._reporting = asyncio.Lock()

    async def run(self) -> None:
        """Follow and report until cancelled. A run in progress then goes on at the next start."""
        loops = [asyncio.create_task(self._follow()), asyncio.create_task(self._report_periodically())]
        try:
            await asyncio.gather(*loops)
        finally:
            running = [*loops, *self._running.values()]
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _follow(self) -> None:
        version = ""
        while True:
            try:
                answer = await self._control_plane.list_inventories(version, WAIT_SECONDS)
            except ControlPlaneUnavailable:
                await self._clock.sleep(AWAY_SECONDS)
                continue
            if answer.version == version:
                continue
            try:
                await self._apply(answer)
                version = answer.version
            except Exception:  # the border of the loop: an error in one round must not end all rounds
                logger.exception("Inventories could not be applied")
                version = ""
                await self._clock.sleep(AWAY_SECONDS)
            await self._report()

    async def _apply(self, answer: ListGatewayInventoriesResponse) -> None:
        listed = {each.id: each for each in answer.inventories}
        for inventory_id in {*self._records.ids(), *self._known} - listed.keys():
            await self._remove(GatewayInventory(id=inventory_id))
            self._known.pop(inventory_id, None)
        for wished in listed.values():
            if self._known.get(wished.id) != wished:
                await self._apply_one(wished)

    async def _apply_one(self, wished: GatewayInventory) -> None:
        if wished.is_removed:
            await self._remove(wished)
        else:
            await self._end(wished.id)
            await self._records.apply(wished.id, wished.generation)
            runner = self._runner(wished)
            if wished.spec.enabled:
                task = self._running[wished.id] = asyncio.create_task(runner.run())
                task.add_done_callback(_note_end)
            else:
                await runner.forget()
        self._known[wished.id] = wished

    async def _remove(self, wished: GatewayInventory) -> None:
        await self._end(wished.id)
        await self._runner(wished).forget()
        await self._records.remove(wished.id)

    def _runner(self, wished: GatewayInventory) -> InventoryRunner:
        return InventoryRunner(
            wished, self._store, self._control_plane, self._records, self._clock, self._slots, self._report
        )

    async def _end(self, inventory_id: str) -> None:
        task = self._running.pop(inventory_id, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _report_periodically(self) -> None:
        while True:
            await self._clock.sleep(REPORT_SECONDS)
            await self._report()

    async def _report(self) -> None:
        """Report all inventories. What cannot be reported now is with the next report."""
        async with self._reporting:
            ids = sorted({*self._records.ids(), *self._known})
            try:
                for start in range(0, len(ids), REPORTED_TOGETHER):
                    await self._report_some(ids[start : start + REPORTED_TOGETHER])
            except ControlPlaneUnavailable:
                pass  # the follower of buckets says so in the log
            except ObjectStoreError as error:
                logger.warning("Inventories could not be reported: %s", error)

    async def _report_some(self, ids: Sequence[str]) -> None:
        request = ReportInventoriesRequest()
        for inventory_id in ids:
            found = self._records.report(inventory_id)
            wished = self._known.get(inventory_id)
            if found is not None:
                request.inventories.append(found)
            elif wished is not None and wished.is_removed:
                request.inventories.add(
                    id=inventory_id, applied_generation=wished.generation, is_removed=True
                )
        await self._control_plane.report_inventories(request)


def _note_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("An inventory ended; it goes on at the next start of the gateway", exc_info=error)
