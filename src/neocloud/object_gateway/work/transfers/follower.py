"""Follows the transfers of the control plane: runs, stops and forgets them, and reports them as they are."""

import asyncio
from collections.abc import Sequence

from neocloud.core.clock import Clock
from neocloud.messages.neocloud.storage.v1 import GatewayTransfer, ReportTransfersRequest, TransferReport
from neocloud.object_gateway.access import ControlPlane
from neocloud.object_gateway.work.transfers.records import Phase, Records
from neocloud.object_gateway.work.transfers.runner import TransferNetwork, TransferRunner
from neocloud.object_gateway.work.work_reconciler import WAIT_SECONDS, WorkReconciler
from neocloud.object_store.store import ObjectStore

REPORTED_TOGETHER = 30
MOST_ITERATIONS = 4
"""How many iterations of one tenant's transfers run at a time; others wait."""
_Mode = GatewayTransfer.Mode
_STOP, _REMOVE = _Mode.Value("STOP"), _Mode.Value("REMOVE")
_REMOVED = TransferReport.Phase.Value("REMOVED")


class TransferFollower(WorkReconciler[GatewayTransfer]):
    def __init__(
        self,
        store: ObjectStore,
        control_plane: ControlPlane,
        clock: Clock,
        network: TransferNetwork,
    ) -> None:
        super().__init__(clock, noun="Transfers", reported_together=REPORTED_TOGETHER)
        self._records = Records(store.engine.database)
        self._control_plane, self._network = control_plane, network
        self._slots: dict[str, asyncio.Semaphore] = {}
        """Slots by tenant, so that slow endpoints of one tenant keep no other waiting."""

    async def _list(self, version: str) -> tuple[str, Sequence[GatewayTransfer]]:
        answer = await self._control_plane.list_transfers(version, WAIT_SECONDS)
        return answer.version, answer.transfers

    def _recorded(self) -> set[str]:
        return {*self._records.ids()}

    async def _apply(self, desired: GatewayTransfer) -> None:
        slots = self._slots.setdefault(desired.tenant_id, asyncio.Semaphore(MOST_ITERATIONS))
        runner = TransferRunner(desired, self._network, self._records, self._clock, slots, self._report)
        if desired.mode == _REMOVE:
            await runner.abort_uploads()
            await self._records.remove(desired.id)
            return
        is_stopped = desired.mode == _STOP
        if is_stopped:
            await runner.abort_uploads()  # first: what is reported as stopped has left no upload
        row = await self._records.apply(desired.id, desired.generation, desired.run, is_stopped=is_stopped)
        if row.phase == Phase.RUNNING:
            self._start(desired.id, runner.run)

    async def _forget(self, work_id: str) -> None:
        await self._records.remove(work_id)

    async def _report_some(self, ids: Sequence[str]) -> None:
        now, request = self._clock.now(), ReportTransfersRequest()
        for transfer_id in ids:
            found = self._records.report(transfer_id, now)
            desired = self._known.get(transfer_id)
            if found is not None:
                request.transfers.append(found)
            elif desired is not None and desired.mode == _REMOVE:
                request.transfers.add(id=transfer_id, applied_generation=desired.generation, phase=_REMOVED)
        await self._control_plane.report_transfers(request)
        ended = [
            (each.id, done.sequence_number) for each in request.transfers for done in each.ended_iterations
        ]
        if ended:
            await self._records.note_reported(ended)
