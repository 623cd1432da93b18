# pyright: strict
"""Reconcile registries: wait until the gateway has applied what is listed, and removed what is to go.

The gateway follows the list of buckets, of which a registry is one, and reports what it has applied; nothing
is sent to it from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocloud.core.reconcile.reconciler import (
    DAEMON_POLL_SECONDS,
    RETRY_SECONDS,
    Context,
    Failed,
    Reconciler,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.registry.v1 import RegistryStatus
from neocloud.messages.neocloud.storage.v1 import BucketReport
from neocloud.services.registry.types import (
    REGISTRY,
    Mode,
    State,
    address,
    read_removals,
    write_removals,
)
from neocloud.services.storage.public import GatewayNotifier, GatewayReports

_QUICK_SECONDS = 10.0
"""The gateway applies a change within milliseconds; after this long the reconciler looks less often."""
_SERVE = Mode.Value("SERVE")


@dataclass(frozen=True)
class Scope:
    context: Context

    @property
    def row(self) -> Resource:
        return self.context.resource

    @property
    def poll_seconds(self) -> float:
        age = (self.context.now - self.row.updated_at).total_seconds()
        return DAEMON_POLL_SECONDS if age < _QUICK_SECONDS else RETRY_SECONDS


class RegistryReconciler:
    kind = REGISTRY

    def __init__(self, dependencies: Dependencies) -> None:
        self._store = dependencies.store
        self._reports = dependencies.provided.get(GatewayReports)
        self._gateway = dependencies.provided.get(GatewayNotifier)

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
        report = self._report(scope)
        wanted, applied = scope.row.resource_version, report.applied_generation
        if applied > wanted:
            await self._overtake(scope, applied)
        if report.problem:
            raise Failed("GatewayRefused", f"The object gateway cannot serve it: {report.problem}")
        if applied != wanted or report.applied != _SERVE:
            raise RetryLater("the object gateway has not applied it yet", delay_seconds=scope.poll_seconds)

    async def _overtake(self, scope: Scope, applied: int) -> None:
        """Go beyond the version that the gateway has: this database is an older backup."""

        def work(tx: Transaction) -> None:
            row = tx.get(scope.row.id)
            if row is not None and row.resource_version <= applied:
                tx.update(replace(row, resource_version=applied + 1))

        await self._store.write(work)
        self._gateway.notify()
        raise RetryLater("the object gateway has a newer version; this one replaces it", delay_seconds=0.0)

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
        report = self._reports.find(scope.row.id)
        if report is None or not report.is_purged:
            raise RetryLater("the object gateway removes its images", delay_seconds=scope.poll_seconds)

    def _report(self, scope: Scope) -> BucketReport:
        report = self._reports.find(scope.row.id)
        if report is None:
            why = (
                "does not know it yet" if self._reports.is_reporting else "does not report; see `neo status`"
            )
            raise RetryLater(f"the object gateway {why}", delay_seconds=scope.poll_seconds)
        return report


def reconcilers(dependencies: Dependencies) -> Sequence[Reconciler[Scope]]:
    return (RegistryReconciler(dependencies),)
