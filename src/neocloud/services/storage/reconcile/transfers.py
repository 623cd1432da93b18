"""Reconcile transfers: wait until the gateway has applied what is listed, and show what it reports.

The gateway follows the list of transfers and runs them; nothing is sent to it from here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core.reconcile.reconciler import Context, ReconcileResult, RetryLater, Step
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.storage.v1 import TransferStatus
from neocloud.messages.neocloud.storage.v1 import TransferReport
from neocloud.services.storage.gateway_link import TransferBoard
from neocloud.services.storage.public import poll_seconds, require_applied
from neocloud.services.storage.types import TRANSFER, Run, TransferState, read_run

_Phase = TransferReport.Phase
RUNNING, FINISHED, FAILED = (_Phase.Value(each) for each in ("RUNNING", "FINISHED", "FAILED"))
_REMOVED = _Phase.Value("REMOVED")


@dataclass(frozen=True)
class TransferScope:
    context: Context
    run: Run
    report: TransferReport | None

    @property
    def row(self) -> Resource:
        return self.context.resource

    @property
    def poll_seconds(self) -> float:
        return poll_seconds(self.context)


class TransferReconciler:
    kind = TRANSFER

    def __init__(self, dependencies: Dependencies) -> None:
        self._store = dependencies.store
        self._board = dependencies.provided.get(TransferBoard)

    async def scope(self, context: Context) -> TransferScope:
        transfer_id = context.resource.id
        run = await self._store.read(lambda tx: read_run(tx, transfer_id))
        return TransferScope(context, run, self._board.find(transfer_id))

    def steps(self, scope: TransferScope) -> Sequence[Step[TransferScope]]:
        applied = Step("Apply it to the gateway", self._apply)
        return (applied, Step("Stop it", self._stop)) if scope.run.is_stopped else (applied,)

    def delete_steps(self, scope: TransferScope) -> Sequence[Step[TransferScope]]:
        return (Step("Stop it and forget it", self._remove),)

    def status(self, scope: TransferScope, result: ReconcileResult) -> ReconcileResult:
        status, report = TransferStatus.FromString(scope.row.status), scope.report
        state = _state(scope.run, report, TransferState(scope.row.state))
        if scope.row.deleted_at is not None:
            state = TransferState.DELETING
        status.state = TransferStatus.State.Value(state)
        status.suspension_state = TransferStatus.SuspensionState.Value("NOT_SUSPENDED")
        status.ClearField("error")
        if report is not None:
            if report.HasField("error") and state in (TransferState.FAILING, TransferState.FAILED):
                status.error.CopyFrom(report.error)
            if report.HasField("last_iteration"):
                status.last_iteration.CopyFrom(report.last_iteration)
        return result.with_status(status, state)

    async def _apply(self, scope: TransferScope) -> None:
        require_applied(scope.context, scope.report.applied_generation if scope.report else None)

    async def _stop(self, scope: TransferScope) -> None:
        if scope.report is not None and scope.report.phase == RUNNING:
            why = "the object gateway ends the iteration in progress"
            raise RetryLater(why, delay_seconds=scope.poll_seconds)

    async def _remove(self, scope: TransferScope) -> None:
        if scope.report is None or scope.report.phase != _REMOVED:
            raise RetryLater("the object gateway stops it", delay_seconds=scope.poll_seconds)


def _state(run: Run, report: TransferReport | None, before: TransferState) -> TransferState:
    """Return the state that follows from the desired and the reported state."""
    if run.is_stopped:
        has_stopped = report is not None and report.run >= run.number and report.phase != RUNNING
        return TransferState.STOPPED if has_stopped else TransferState.STOPPING
    if report is None:
        return before  # nothing is known since the start of the control plane
    if report.run < run.number:
        return TransferState.ACTIVE
    if report.phase == FAILED:
        return TransferState.FAILED
    if report.phase == FINISHED:
        return TransferState.STOPPED
    return TransferState.FAILING if report.failures else TransferState.ACTIVE
