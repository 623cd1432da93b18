"""Reconcile inventories: wait until the gateway has applied what is listed, and show what it reports.

The gateway follows the list of inventories and writes the reports; nothing is sent to it from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from neocloud.core import operations
from neocloud.core.reconcile.reconciler import Context, ReconcileResult, RetryLater, Step
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.storage.v1 import InventoryStatus
from neocloud.messages.neocloud.storage.v1 import InventoryReport
from neocloud.services.storage.gateway_link import InventoryBoard
from neocloud.services.storage.public import poll_seconds, require_applied
from neocloud.services.storage.types import INVENTORY

DELETING = "DELETING"


def mark_inventories(tx: Transaction, bucket_id: str, now: datetime) -> bool:
    """Delete the inventories of a bucket, as Delete does; return whether any is left."""
    found = tx.list(INVENTORY, parent_id=bucket_id)[0]
    for row in found:
        if row.deleted_at is None:
            operations.abort_unfinished(tx, row.id, now, f"Deleted together with {bucket_id}.")
            tx.update(replace(row, deleted_at=now, updated_at=now, state=DELETING))
    return bool(found)


@dataclass(frozen=True)
class InventoryScope:
    context: Context
    report: InventoryReport | None

    @property
    def row(self) -> Resource:
        return self.context.resource

    @property
    def poll_seconds(self) -> float:
        return poll_seconds(self.context)


class InventoryReconciler:
    kind = INVENTORY

    def __init__(self, dependencies: Dependencies) -> None:
        self._board = dependencies.provided.get(InventoryBoard)

    async def scope(self, context: Context) -> InventoryScope:
        return InventoryScope(context, self._board.find(context.resource.id))

    def steps(self, scope: InventoryScope) -> Sequence[Step[InventoryScope]]:
        return (Step("Apply it to the gateway", self._apply),)

    def delete_steps(self, scope: InventoryScope) -> Sequence[Step[InventoryScope]]:
        return (Step("Stop it and forget it", self._remove),)

    def status(self, scope: InventoryScope, result: ReconcileResult) -> ReconcileResult:
        status, report = InventoryStatus.FromString(scope.row.status), scope.report
        if report is not None:
            status.error_code = report.status.error_code
            if report.status.HasField("last_success"):
                status.last_success.CopyFrom(report.status.last_success)
        return result.with_status(status, scope.row.state)

    async def _apply(self, scope: InventoryScope) -> None:
        require_applied(scope.context, scope.report.applied_generation if scope.report else None)

    async def _remove(self, scope: InventoryScope) -> None:
        if scope.report is None or not scope.report.is_removed:
            raise RetryLater("the object gateway stops it", delay_seconds=scope.poll_seconds)
