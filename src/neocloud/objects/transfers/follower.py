# pyright: strict
"""Follows the transfers of the control plane: runs, stops and forgets them, and reports them as they are."""

import asyncio
import logging
from collections.abc import Sequence

from neocloud.core.clock import Clock
from neocloud.messages.neocloud.storage.v1 import (
    GatewayTransfer,
    ListGatewayTransfersResponse,
    ReportTransfersRequest,
    TransferReport,
)
from neocloud.objects.access import ControlPlane, ControlPlaneUnavailable
from neocloud.objects.errors import ObjectStoreError
from neocloud.objects.store import ObjectStore
from neocloud.objects.transfers.records import Phase, Records
from neocloud.objects.transfers.runner import TransferNetwork, TransferRunner

WAIT_SECONDS = 20
REPORT_SECONDS = 10.0
AWAY_SECONDS = 1.0
"""Between attempts while the control plane is away."""
REPORTED_TOGETHER = 30
"""Transfers in one request, which is bounded as every request is."""
MOST_ITERATIONS = 4
"""How many iterations of one tenant's transfers run at a time; others wait."""
_Mode = GatewayTransfer.Mode
_STOP, _REMOVE = _Mode.Value("STOP"), _Mode.Value("REMOVE")
_REMOVED = TransferReport.Phase.Value("REMOVED")
logger = logging.getLogger(__name__)


class TransferFollower:
    def __init__(
        self,
        store: ObjectStore,
        control_plane: ControlPlane,
        clock: Clock,
        network: TransferNetwork,
    ) -> None:
        self._records = Records(store.engine.database)
        self._control_plane, self._clock, self._network = control_plane, clock, network
        self._known: dict[str, GatewayTransfer] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        """Slots by tenant, so that slow endpoints of one tenant keep no other waiting."""
        self._reporting = asyncio.Lock()

    async def run(self) -> None:
        """Follow and report until cancelled. What is in progress then goes on at the next start."""
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
                answer = await self._control_plane.list_transfers(version, WAIT_SECONDS)
            except ControlPlaneUnavailable:
                await self._clock.sleep(AWAY_SECONDS)
                continue
            if answer.version == version:
                continue
            try:
                await self._apply(answer)
                version = answer.version
            except Exception:  # the border of the loop: an error in one round must not end all rounds
                logger.exception("Transfers could not be applied")
                version = ""
                await self._clock.sleep(AWAY_SECONDS)
            await self._report()

    async def _apply(self, answer: ListGatewayTransfersResponse) -> None:
        listed = {each.id: each for each in answer.transfers}
        for transfer_id in {*self._records.ids(), *self._known} - listed.keys():
            await self._end(transfer_id)
            await self._records.remove(transfer_id)
            self._known.pop(transfer_id, None)
        changed = [each for each in listed.values() if self._known.get(each.id) != each]
        await asyncio.gather(*(self._apply_one(each) for each in changed))

    async def _apply_one(self, wished: GatewayTransfer) -> None:
        await self._end(wished.id)
        slots = self._slots.setdefault(wished.tenant_id, asyncio.Semaphore(MOST_ITERATIONS))
        runner = TransferRunner(wished, self._network, self._records, self._clock, slots, self._report)
        if wished.mode == _REMOVE:
            await runner.abort_uploads()
            await self._records.remove(wished.id)
        else:
            is_stopped = wished.mode == _STOP
            row = await self._records.apply(wished.id, wished.generation, wished.run, is_stopped=is_stopped)
            if is_stopped:
                await runner.abort_uploads()
            elif row.phase == Phase.RUNNING:
                task = self._running[wished.id] = asyncio.create_task(runner.run())
                task.add_done_callback(_note_end)
        self._known[wished.id] = wished

    async def _end(self, transfer_id: str) -> None:
        task = self._running.pop(transfer_id, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _report_periodically(self) -> None:
        while True:
            await self._clock.sleep(REPORT_SECONDS)
            await self._report()

    async def _report(self) -> None:
        """Report all transfers. What cannot be reported now is with the next report."""
        async with self._reporting:
            ids = sorted({*self._records.ids(), *self._known})
            try:
                for start in range(0, len(ids), REPORTED_TOGETHER):
                    await self._report_some(ids[start : start + REPORTED_TOGETHER])
            except ControlPlaneUnavailable:
                pass  # the follower of buckets says so in the log
            except ObjectStoreError as error:
                logger.warning("Transfers could not be reported: %s", error)

    async def _report_some(self, ids: Sequence[str]) -> None:
        now, request = self._clock.now(), ReportTransfersRequest()
        for transfer_id in ids:
            found = self._records.report(transfer_id, now)
            wished = self._known.get(transfer_id)
            if found is not None:
                request.transfers.append(found)
            elif wished is not None and wished.mode == _REMOVE:
                request.transfers.add(id=transfer_id, applied_generation=wished.generation, phase=_REMOVED)
        await self._control_plane.report_transfers(request)
        ended = [
            (each.id, done.sequence_number) for each in request.transfers for done in each.ended_iterations
        ]
        if ended:
            await self._records.note_reported(ended)


def _note_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A transfer ended; it goes on at the next start of the gateway", exc_info=error)
