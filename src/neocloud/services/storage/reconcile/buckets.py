"""Reconcile buckets: wait until the gateway has applied what is listed, and purge deleted ones in time.

The gateway follows the list of buckets and reports what it has applied; nothing is sent to it from here. A
bucket that is to be deleted is hidden first, so that nothing is put into it any more. Only then it is known
whether it is empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core import operations
from neocloud.core.reconcile.reconciler import (
    IDLE_RESYNC_SECONDS,
    POLL_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.engines.calls import engine_call
from neocloud.messages.nebius.storage.v1 import BucketSpec, BucketStatus, InsecureEndpoint
from neocloud.services.storage.gateway_link import BucketBoard, BucketChanges
from neocloud.services.storage.public import Filesystems, GatewayWait, poll_seconds
from neocloud.services.storage.reconcile.inventories import mark_inventories
from neocloud.services.storage.types import (
    BUCKET,
    BucketState,
    Deletion,
    Mode,
    mark_for_purge,
    mode_of,
    read_deletion,
    read_folder,
    show_deletion,
    write_folder,
)


@dataclass(frozen=True)
class BucketScope:
    context: Context
    spec: BucketSpec
    status: BucketStatus
    mode: Mode
    deletion: Deletion | None

    @property
    def row(self) -> Resource:
        return self.context.resource

    @property
    def seconds_left(self) -> float:
        """Until a bucket that is scheduled for deletion is purged."""
        purge_at = self.deletion.purge_at if self.deletion else self.context.now
        return (purge_at - self.context.now).total_seconds()


class BucketReconciler:
    kind = BUCKET

    def __init__(self, dependencies: Dependencies) -> None:
        self._store = dependencies.store
        self._engine = dependencies.engine
        self._changes = dependencies.provided.get(BucketChanges)
        self._board = dependencies.provided.get(BucketBoard)
        self._filesystems = dependencies.provided.get(Filesystems)
        self._wait = GatewayWait(self._store, self._board, self._changes)
        self._region = dependencies.settings.region

    async def scope(self, context: Context) -> BucketScope:
        row = context.resource
        deletion = await self._store.read(lambda tx: read_deletion(tx, row.id))
        spec, status = BucketSpec.FromString(row.spec), BucketStatus.FromString(row.status)
        return BucketScope(context, spec, status, mode_of(row), deletion)

    def steps(self, scope: BucketScope) -> Sequence[Step[BucketScope]]:
        if scope.row.state == BucketState.SCHEDULED_FOR_DELETION:
            return (Step("Hide it from clients", self._apply), Step("Purge it in time", self._schedule))
        return (
            Step("Show its filesystem to the gateway", self._show_filesystem),
            Step("Apply it to the gateway", self._apply),
        )

    def delete_steps(self, scope: BucketScope) -> Sequence[Step[BucketScope]]:
        return (
            Step("Delete its inventories", self._delete_inventories),
            Step("Remove its objects", self._purge),
        )

    def status(self, scope: BucketScope, result: ReconcileResult) -> ReconcileResult:
        row, status, state = scope.row, scope.status, BucketState(scope.row.state)
        report = self._board.find(row.id)
        if state is not BucketState.SCHEDULED_FOR_DELETION:
            unfinished = BucketState.UPDATING if row.observed_version else BucketState.CREATING
            state = BucketState.ACTIVE if result.is_done else unfinished
        status.state = BucketStatus.State.Value(state)
        status.suspension_state = BucketStatus.SuspensionState.Value("NOT_SUSPENDED")
        is_filesystem = scope.spec.HasField("filesystem_bucket")
        status.bucket_type = BucketStatus.BucketType.Value("FILESYSTEM" if is_filesystem else "REGULAR")
        status.region, status.domain_name = self._region, self._board.endpoint or status.domain_name
        status.insecure_endpoint.mode = InsecureEndpoint.Mode.Value("DISABLED")
        rules = scope.spec.bucket_policy.rules
        status.anonymous_access_enabled = any(rule.WhichOneof("subject") == "anonymous" for rule in rules)
        show_deletion(status, scope.deletion)
        if report is not None:
            del status.counters[:]
            status.counters.extend(report.counters)
        is_protected = report is not None and report.is_protected  # its next report will say when it is not
        is_timed = state is BucketState.SCHEDULED_FOR_DELETION and not (
            is_protected and scope.seconds_left <= 0
        )
        resync = max(scope.seconds_left, 0.0) if is_timed else None
        if state is BucketState.ACTIVE and is_filesystem:
            resync = IDLE_RESYNC_SECONDS  # the filesystem may have been unmounted
        return result.with_status(status, state, resync)

    async def _show_filesystem(self, scope: BucketScope) -> None:
        """Let the engine mount the filesystem of a filesystem bucket, and tell the gateway where it is."""
        if not scope.spec.HasField("filesystem_bucket"):
            return
        bucket, filesystem_id = scope.row, scope.spec.filesystem_bucket.filesystem_id
        filesystem = await scope.context.get(filesystem_id)
        claim = self._filesystems.claim(filesystem, bucket.parent_id) if filesystem is not None else None
        if filesystem is None or claim is None:
            raise Failed("FilesystemLost", f"The filesystem {filesystem_id} is gone. Delete the bucket.")
        if not self._filesystems.is_created(filesystem):
            raise RetryLater(f"{filesystem_id} is CREATING", delay_seconds=POLL_SECONDS)
        folder = await engine_call(self._engine.shared_folder(claim), waiting=f"{filesystem_id} is not shown")

        def work(tx: Transaction) -> bool:
            is_new = tx.get(bucket.id) is not None and read_folder(tx, bucket.id) != folder
            if is_new:
                write_folder(tx, bucket.id, folder)
            return is_new

        if await self._store.write(work):
            self._changes.notify()

    async def _apply(self, scope: BucketScope) -> None:
        """Wait until the gateway has applied this version of the bucket."""
        await self._wait.until_applied(scope.context, scope.mode)

    async def _schedule(self, scope: BucketScope) -> None:
        """End the request to delete it, and purge it when its time has come or nothing is in it. While object
        lock protects what is in it, it is kept."""
        report = self._wait.report(scope.context)
        is_due = scope.seconds_left <= 0 and not report.is_protected
        is_kept = scope.deletion is not None and scope.deletion.is_kept_when_empty
        is_not_needed = not is_kept and report.is_empty

        def work(tx: Transaction) -> None:
            row, now = tx.get(scope.row.id), scope.context.now
            if row is None or row.state != BucketState.SCHEDULED_FOR_DELETION or row.deleted_at is not None:
                return
            if row.resource_version != scope.row.resource_version:
                return  # the request was changed meanwhile
            if is_due or is_not_needed:
                mark_for_purge(tx, row, now)
            else:
                _finish(tx, row.id, scope.context)

        await self._store.write(work)
        self._changes.notify()

    async def _delete_inventories(self, scope: BucketScope) -> None:
        bucket_id, now = scope.row.id, scope.context.now
        if await self._store.write(lambda tx: mark_inventories(tx, bucket_id, now)):
            why = "the object gateway stops its inventories"
            raise RetryLater(why, delay_seconds=poll_seconds(scope.context))

    async def _purge(self, scope: BucketScope) -> None:
        self._wait.until_purged(scope.context, "objects")


def _finish(tx: Transaction, bucket_id: str, context: Context) -> None:
    """End the requests to delete a bucket that is kept for a while: it is gone for clients."""
    for operation in tx.list_operations(resource_id=bucket_id, unfinished=True)[0]:
        if operations.is_delete(operation):
            tx.update_operation(operations.finish(operation, context.now))
