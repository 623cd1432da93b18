"""Reconcile registries: wait until the gateway has applied what is listed, and removed what is to go.

The gateway follows the list of buckets, of which a registry is one, and reports what it has applied; nothing
is sent to it from here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core import contract, wire
from neocloud.core.reconcile.reconciler import Context, Reconciler, ReconcileResult, Step
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import AuditEvent, Resource, Transaction
from neocloud.messages.nebius.registry.v1 import RegistryStatus
from neocloud.messages.neocloud.storage.v1 import RemovedImages
from neocloud.services.iam.types import lineage
from neocloud.services.registry.types import (
    REGISTRY,
    REGISTRY_SERVICE,
    Mode,
    RegistryState,
    address,
    noted_removals,
    read_removals,
    write_noted_removals,
    write_removals,
)
from neocloud.services.storage.public import GatewayNotifier, GatewayReports, GatewayWait

_SERVE = Mode.Value("SERVE")


@dataclass(frozen=True)
class RegistryScope:
    context: Context

    @property
    def row(self) -> Resource:
        return self.context.resource


class RegistryReconciler:
    kind = REGISTRY

    def __init__(self, dependencies: Dependencies) -> None:
        self._store = dependencies.store
        self._reports = dependencies.provided.get(GatewayReports)
        gateway = dependencies.provided.get(GatewayNotifier)
        self._wait = GatewayWait(self._store, self._reports, gateway)

    async def scope(self, context: Context) -> RegistryScope:
        return RegistryScope(context)

    def steps(self, scope: RegistryScope) -> Sequence[Step[RegistryScope]]:
        return (
            Step("Apply it to the gateway", self._apply),
            Step("Forget removed images", self._forget_removals),
            Step("Note what rules removed", self._note_removed),
        )

    def delete_steps(self, scope: RegistryScope) -> Sequence[Step[RegistryScope]]:
        return (Step("Remove its images", self._purge),)

    def status(self, scope: RegistryScope, result: ReconcileResult) -> ReconcileResult:
        row, report = scope.row, self._reports.find(scope.row.id)
        status, state = RegistryStatus.FromString(row.status), RegistryState(row.state)
        if state is RegistryState.CREATING and result.is_done:
            state = RegistryState.ACTIVE
        status.state = RegistryStatus.State.Value(state)
        status.registry_fqdn = address(self._reports.endpoint, row.id) or status.registry_fqdn
        if report is not None:
            status.images_count = report.image_count
        return result.with_status(status, state)

    async def _apply(self, scope: RegistryScope) -> None:
        """Wait until the gateway has applied this version of the registry."""
        await self._wait.until_applied(scope.context, _SERVE)

    async def _forget_removals(self, scope: RegistryScope) -> None:
        """Drop the requests to remove images that the gateway has removed."""
        applied = scope.row.resource_version

        def work(tx: Transaction) -> None:
            found = read_removals(tx, scope.row.id)
            left = [each for each in found if each.generation > applied]
            if len(left) != len(found):
                write_removals(tx, scope.row.id, left)

        if await self._store.read(lambda tx: read_removals(tx, scope.row.id)):
            await self._store.write(work)

    async def _note_removed(self, scope: RegistryScope) -> None:
        """Write an audit event of the images that rules removed since the last one."""
        report = self._reports.find(scope.row.id)
        if report is None or not report.HasField("removed_images"):
            return
        found = report.removed_images

        def work(tx: Transaction) -> None:
            number = found.total - noted_removals(tx, scope.row.id)
            if number > 0:
                write_noted_removals(tx, scope.row.id, found.total)
                write_removal_event(tx, scope.row, number, found)

        if await self._store.read(lambda tx: noted_removals(tx, scope.row.id)) < found.total:
            await self._store.write(work)

    async def _purge(self, scope: RegistryScope) -> None:
        self._wait.until_purged(scope.context, "images")


def write_removal_event(tx: Transaction, row: Resource, number: int, found: RemovedImages) -> None:
    """Write what rules removed, for the tenant of the registry, without a caller and a request behind it."""
    rows = list(lineage(row.id, tx.get))
    hierarchy = [[each.id, each.name, wire.noun(each.kind, each.id)] for each in reversed(rows)]
    shown = ", ".join(found.last)
    others = f" and {number - len(found.last):,} others" if number > len(found.last) else ""
    tx.audit(
        AuditEvent(
            id=contract.new_id("auditevent"),
            at=contract.to_datetime(found.last_at),
            subject="",
            method=f"{REGISTRY_SERVICE}/RemoveImages",
            parent_id=row.parent_id,
            resource_id=row.id,
            request_id="",
            code=int(contract.Code.OK),
            message=f"Removed by the rules of the registry: {shown}{others}",
            tenant_id=rows[-1].parent_id or rows[-1].id,
            hierarchy=json.dumps(hierarchy, ensure_ascii=False),
            resource_kind=wire.noun(REGISTRY, row.id),
            resource_name=row.name,
            service="registry",
            action="remove_images",
            type="ai.neocloud.registry.remove-images",
            status="DONE",
        )
    )


def reconcilers(dependencies: Dependencies) -> Sequence[Reconciler[RegistryScope]]:
    return (RegistryReconciler(dependencies),)
