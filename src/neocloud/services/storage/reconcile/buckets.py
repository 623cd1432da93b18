# pyright: strict
"""Reconcile buckets: wait until the gateway has applied what is listed, and purge deleted ones in time.

The gateway follows the list of buckets and reports what it has applied; nothing is sent to it from here. A
bucket that is to be deleted is hidden first, so that nothing is put into it any more. Only then it is known
whether it is empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocloud.core import operations
from neocloud.core.reconcile.reconciler import (
    DAEMON_POLL_SECONDS,
    RETRY_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.storage.v1 import BucketSpec, BucketStatus, InsecureEndpoint
from neocloud.messages.neocloud.storage.v1 import BucketReport
from neocloud.services.storage.gateway_link import BucketBoard, BucketChanges
from neocloud.services.storage.types import (
    BUCKET,
    Deletion,
    Mode,
    State,
    mark_for_purge,
    mode_of,
    read_deletion,
    show_deletion,
)

QUICK_SECONDS = 10.0
"""The gateway applies a change within milliseconds; after this long the reconciler looks less often."""


@dataclass(frozen=True)
class Scope:
    context: Context
    spec: BucketSpec
    status: BucketStatus
    mode: Mode
    deletion: Deletion | None

    @property
    def row(self) -> Resource:
        return self.context.resource

    @property
    def poll_seconds(self) -> float:
        age = (self.context.now - self.row.updated_at).total_seconds()
        return DAEMON_POLL_SECONDS if age < QUICK_SECONDS else RETRY_SECONDS

    @property
    def seconds_left(self) -> float:
        """Until a bucket that is scheduled for deletion is purged."""
        purge_at = self.deletion.purge_at if self.deletion else self.context.now
        return (purge_at - self.context.now).total_seconds()


class BucketReconciler:
    kind = BUCKET

    def __init__(self, dependencies: Dependencies) -> None:
        self._store = dependencies.store
        self._changes = dependencies.provided.get(BucketChanges)
        self._board = dependencies.provided.get(BucketBoard)
        self._region = dependencies.settings.region

    async def scope(self, context: Context) -> Scope:
        row = context.resource
        deletion = await self._store.read(lambda tx: read_deletion(tx, row.id))
        spec, status = BucketSpec.FromString(row.spec), BucketStatus.FromString(row.status)
        return Scope(context, spec, status, mode_of(row), deletion)

    def steps(self, scope: Scope) -> Sequence[Step[Scope]]:
        if scope.row.state == State.SCHEDULED_FOR_DELETION:
            return (Step("Hide it from clients", self._apply), Step("Purge it in time", self._schedule))
        return (Step("Apply it to the gateway", self._apply),)

    def delete_steps(self, scope: Scope) -> Sequence[Step[Scope]]:
        return (Step("Remove its objects", self._purge),)

    def status(self, scope: Scope, result: ReconcileResult) -> ReconcileResult:
        row, status, state = scope.row, scope.status, State(scope.row.state)
        report = self._board.find(row.id)
        if state is not State.SCHEDULED_FOR_DELETION:
            unfinished = State.UPDATING if row.observed_version else State.CREATING
            state = State.ACTIVE if result.is_done else unfinished
        status.state = BucketStatus.State.Value(state)
        status.suspension_state = BucketStatus.SuspensionState.Value("NOT_SUSPENDED")
        status.bucket_type = BucketStatus.BucketType.Value("REGULAR")
        status.region, status.domain_name = self._region, self._board.endpoint or status.domain_name
        status.insecure_endpoint.mode = InsecureEndpoint.Mode.Value("DISABLED")
        rules = scope.spec.bucket_policy.rules
        status.anonymous_access_enabled = any(rule.WhichOneof("subject") == "anonymous" for rule in rules)
        show_deletion(status, scope.deletion)
        if report is not None:
            del status.counters[:]
            status.counters.extend(report.counters)
        is_protected = report is not None and report.is_protected  # its next report will say when it is not
        is_timed = state is State.SCHEDULED_FOR_DELETION and not (is_protected and scope.seconds_left <= 0)
        resync = max(scope.seconds_left, 0.0) if is_timed else None
        return result.with_status(status, state, resync)

    async def _apply(self, scope: Scope) -> None:
        """Wait until the gateway has applied this version of the bucket."""
        report = self._report(scope)
        wanted, applied = scope.row.resource_version, report.applied_generation
        if applied > wanted:
            await self._overtake(scope, applied)
        if report.problem:
            raise Failed("GatewayRefused", f"The object gateway cannot serve it: {report.problem}")
        if applied != wanted or report.applied != scope.mode:
            raise RetryLater("the object gateway has not applied it yet", delay_seconds=scope.poll_seconds)

    async def _overtake(self, scope: Scope, applied: int) -> None:
        """Go beyond the version that the gateway has: this database is an older backup."""

        def work(tx: Transaction) -> None:
            row = tx.get(scope.row.id)
            if row is not None and row.resource_version <= applied:
                tx.update(replace(row, resource_version=applied + 1))

        await self._store.write(work)
        self._changes.notify()
        raise RetryLater("the object gateway has a newer version; this one replaces it", delay_seconds=0.0)

    async def _schedule(self, scope: Scope) -> None:
        """End the request to delete it, and purge it when its time has come or nothing is in it. While object
        lock protects what is in it, it is kept."""
        report = self._report(scope)
        is_due = scope.seconds_left <= 0 and not report.is_protected
        is_kept = scope.deletion is not None and scope.deletion.is_kept_when_empty
        is_not_needed = not is_kept and report.is_empty

        def work(tx: Transaction) -> None:
            row, now = tx.get(scope.row.id), scope.context.now
            if row is None or row.state != State.SCHEDULED_FOR_DELETION or row.deleted_at is not None:
                return
            if row.resource_version != scope.row.resource_version:
                return  # the request was changed meanwhile
            if is_due or is_not_needed:
                mark_for_purge(tx, row, now)
            else:
                _finish(tx, row.id, scope.context)

        await self._store.write(work)
        self._changes.notify()

    async def _purge(self, scope: Scope) -> None:
        report = self._board.find(scope.row.id)
        if report is None or not report.is_purged:
            problem = report.problem if report is not None else ""
            why = f"the object gateway cannot remove its objects yet: {problem}" if problem else ""
            raise RetryLater(
                why or "the object gateway removes its objects", delay_seconds=scope.poll_seconds
            )

    def _report(self, scope: Scope) -> BucketReport:
        report = self._board.find(scope.row.id)
        if report is None:
            why = "does not know it yet" if self._board.is_reporting else "does not report; see `neo status`"
            raise RetryLater(f"the object gateway {why}", delay_seconds=scope.poll_seconds)
        return report


def _finish(tx: Transaction, bucket_id: str, context: Context) -> None:
    """End the requests to delete a bucket that is kept for a while: it is gone for clients."""
    for operation in tx.list_operations(resource_id=bucket_id, unfinished=True)[0]:
        if operations.is_delete(operation):
            tx.update_operation(operations.finish(operation, context.now))
