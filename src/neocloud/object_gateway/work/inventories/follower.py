"""Follows the inventories of the control plane: runs and forgets them, and reports them as they are."""

from collections.abc import Sequence

from neocloud.core.clock import Clock
from neocloud.messages.neocloud.storage.v1 import GatewayInventory, ReportInventoriesRequest
from neocloud.object_gateway.access import ControlPlane
from neocloud.object_gateway.work.inventories.records import Records
from neocloud.object_gateway.work.inventories.runner import InventoryRunner, Slots
from neocloud.object_gateway.work.work_reconciler import WAIT_SECONDS, WorkReconciler
from neocloud.object_store.store import ObjectStore

REPORTED_TOGETHER = 200


class InventoryFollower(WorkReconciler[GatewayInventory]):
    def __init__(self, store: ObjectStore, control_plane: ControlPlane, clock: Clock) -> None:
        super().__init__(clock, noun="Inventories", reported_together=REPORTED_TOGETHER)
        self._store, self._control_plane = store, control_plane
        self._records = Records(store.engine.database)
        self._slots = Slots()

    async def _list(self, version: str) -> tuple[str, Sequence[GatewayInventory]]:
        answer = await self._control_plane.list_inventories(version, WAIT_SECONDS)
        return answer.version, answer.inventories

    def _recorded(self) -> set[str]:
        return {*self._records.ids()}

    async def _apply(self, desired: GatewayInventory) -> None:
        if desired.is_removed:
            await self._remove(desired)
            return
        await self._records.apply(desired.id, desired.generation)
        runner = self._runner(desired)
        if desired.spec.enabled:
            self._start(desired.id, runner.run)
        else:
            await runner.forget()

    async def _forget(self, work_id: str) -> None:
        await self._remove(GatewayInventory(id=work_id))

    async def _remove(self, desired: GatewayInventory) -> None:
        await self._runner(desired).forget()
        await self._records.remove(desired.id)

    def _runner(self, desired: GatewayInventory) -> InventoryRunner:
        return InventoryRunner(
            desired, self._store, self._control_plane, self._records, self._clock, self._slots, self._report
        )

    async def _report_some(self, ids: Sequence[str]) -> None:
        request = ReportInventoriesRequest()
        for inventory_id in ids:
            found = self._records.report(inventory_id)
            desired = self._known.get(inventory_id)
            if found is not None:
                request.inventories.append(found)
            elif desired is not None and desired.is_removed:
                request.inventories.add(
                    id=inventory_id, applied_generation=desired.generation, is_removed=True
                )
        await self._control_plane.report_inventories(request)
