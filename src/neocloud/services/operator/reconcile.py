"""Carry out maintenance: announce it, stop the instances at its time, and start them when it is deleted.

Slurm clusters drain and resume their workers by themselves; they are enqueued when the state changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from neocloud.core import contract, wire
from neocloud.core.reconcile.reconciler import (
    CHILD_POLL_SECONDS,
    RESYNC_SECONDS,
    Context,
    ReconcileResult,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.neocloud.operator.v1 import Maintenance, MaintenanceStatus
from neocloud.services.compute.public import (
    MAINTENANCE,
    MaintenanceState,
    announce_maintenance,
    finish_maintenance,
    maintenance_state,
    next_change,
    stop_for_maintenance,
)
from neocloud.services.compute.types import INSTANCE, InstanceState
from neocloud.services.slurm.types import CLUSTER

_AT_REST = frozenset({InstanceState.STOPPED, InstanceState.ERROR})


@dataclass
class MaintenanceScope:
    context: Context
    maintenance: Maintenance
    state: MaintenanceState
    instances: Sequence[Resource] = ()
    """The affected ones, as the steps have left them."""
    clusters: Sequence[str] = ()
    woken: set[str] = field(default_factory=set[str])


class MaintenanceReconciler:
    kind = MAINTENANCE

    def __init__(self, dependencies: Dependencies) -> None:
        self._store: Store = dependencies.store

    async def scope(self, context: Context) -> MaintenanceScope:
        maintenance = wire.message(context.resource, Maintenance)
        state = maintenance_state(maintenance.spec, context.now)
        is_deleting = context.resource.deleted_at is not None
        scope = MaintenanceScope(context, maintenance, MaintenanceState.DELETING if is_deleting else state)
        scope.clusters = [row.id for row in await context.list(CLUSTER)]
        return scope

    def steps(self, scope: MaintenanceScope) -> Sequence[Step[MaintenanceScope]]:
        announce = Step("Announce it to the owners", self._announce)
        if scope.state != MaintenanceState.UNDER_WAY:
            return (announce,)
        return (announce, Step("Stop the instances", self._stop))

    def delete_steps(self, scope: MaintenanceScope) -> Sequence[Step[MaintenanceScope]]:
        return (Step("Start the instances", self._finish),)

    async def _announce(self, scope: MaintenanceScope) -> None:
        await self._store.write(lambda tx: self._events(tx, scope))
        scope.instances = await self._store.read(lambda tx: _affected(tx, scope.maintenance))

    async def _stop(self, scope: MaintenanceScope) -> None:
        def stop(tx: Transaction) -> None:
            events = self._events(tx, scope)
            for row in _affected(tx, scope.maintenance):
                stop_for_maintenance(
                    tx, row, events[row.id], scope.context.now, scope.maintenance.spec.reason
                )

        await self._store.write(stop)
        scope.instances = await self._store.read(lambda tx: _affected(tx, scope.maintenance))

    async def _finish(self, scope: MaintenanceScope) -> None:
        spec, now = scope.maintenance.spec, scope.context.now
        identifier = scope.maintenance.metadata.id
        scope.woken |= await self._store.write(
            lambda tx: finish_maintenance(tx, identifier, now, spec.reason)
        )

    def _events(self, tx: Transaction, scope: MaintenanceScope) -> dict[str, str]:
        """Return the id of the event of each affected instance."""
        spec, identifier = scope.maintenance.spec, scope.maintenance.metadata.id
        start = contract.to_datetime(spec.start_at)
        return {
            row.id: announce_maintenance(
                tx, row, identifier, now=scope.context.now, start=start, reason=spec.reason
            )
            for row in _affected(tx, scope.maintenance)
        }

    def status(self, scope: MaintenanceScope, result: ReconcileResult) -> ReconcileResult:
        running = [row.id for row in scope.instances if row.state not in _AT_REST]
        is_under_way = scope.state == MaintenanceState.UNDER_WAY
        status = MaintenanceStatus(
            state=MaintenanceStatus.State.Value(scope.state),
            instance_count=len(scope.instances),
            running_instance_ids=running if is_under_way else (),
        )
        is_deleting = scope.state == MaintenanceState.DELETING
        changes = is_deleting or scope.state != scope.context.resource.state
        wakes = frozenset({*scope.woken, *(scope.clusters if changes else ())})
        seconds = CHILD_POLL_SECONDS if is_under_way and running else RESYNC_SECONDS
        later = next_change(scope.maintenance.spec, scope.context.now)
        if later is not None:
            seconds = min(seconds, (later - scope.context.now).total_seconds())
        ended = result.with_status(status, scope.state, seconds)
        return replace(ended, wakes=wakes)


def _affected(tx: Transaction, maintenance: Maintenance) -> Sequence[Resource]:
    only = maintenance.spec.instance_id
    rows = [row for row in (tx.get(only),) if row is not None] if only else tx.list(INSTANCE)[0]
    return [row for row in rows if row.kind == INSTANCE and row.deleted_at is None]
