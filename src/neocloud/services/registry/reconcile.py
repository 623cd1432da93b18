# pyright: strict
"""Reconcile registries: wait until the gateway has applied what is listed, and removed what is to go.

The gateway follows the list of buckets, of which a registry is one, and reports what it has applied; nothing
is sent to it from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core.reconcile.reconciler import Context, Reconciler, ReconcileResult, Step
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.registry.v1 import RegistryStatus
from neocloud.services.registry.types import (
    REGISTRY,
    Mode,
    State,
    address,
    read_removals,
    write_removals,
)
from neocloud.services.storage.public import GatewayNotifier, GatewayReports, GatewayWait

_SERVE = Mode.Value("SERVE")


@dataclass(frozen=True)
class Scope:
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

    async def scope(self, context: Context) -> Scope:
        return Scope(context)

    def steps(self, scope: Scope) -> Sequence[Step[Scope]]:
        return (
            Step("Apply it to the gateway", self._apply),
            Step("Forget removed images", self._forget_removals),
        )

    def delete_steps(self, scope: Scope) -> Sequence[Step[Scope]]:
        return (Step("Remove its images", self._purge),)

    def status(self, scope: Scope, result: ReconcileResult) -> ReconcileResult:
        row, report = scope.row, self._reports.find(scope.row.id)
        status, state = RegistryStatus.FromString(row.status), State(row.state)
        if state is State.CREATING and result.is_done:
            state = State.ACTIVE
        status.state = RegistryStatus.State.Value(state)
        status.registry_fqdn = address(self._reports.endpoint, row.id) or status.registry_fqdn
        if report is not None:
            status.images_count = report.image_count
        return result.with_status(status, state)

    async def _apply(self, scope: Scope) -> None:
        """Wait until the gateway has applied this version of the registry."""
        await self._wait.until_applied(scope.context, _SERVE)

    async def _forget_removals(self, scope: Scope) -> None:
        """Drop the requests to remove images that the gateway has removed."""
        applied = scope.row.resource_version

        def work(tx: Transaction) -> None:
            found = read_removals(tx, scope.row.id)
            left = [each for each in found if each.generation > applied]
            if len(left) != len(found):
                write_removals(tx, scope.row.id, left)

        if await self._store.read(lambda tx: read_removals(tx, scope.row.id)):
            await self._store.write(work)

    async def _purge(self, scope: Scope) -> None:
        self._wait.until_purged(scope.context, "images")


def reconcilers(dependencies: Dependencies) -> Sequence[Reconciler[Scope]]:
    return (RegistryReconciler(dependencies),)
