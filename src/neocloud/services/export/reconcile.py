"""Reconcile export rules: write an object for each period that has ended, one after another.

Written periods are counted by the end of the last one in the status, so a rule continues where it was after
a kill. An object that was written and not counted is written again, which changes nothing: the content of a
period that has ended is always the same, and it is put only where no object is, or one of these bytes.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import IO

from neocloud.core import contract, wire
from neocloud.core.contract import ApiError
from neocloud.core.reconcile.background import BackgroundWork
from neocloud.core.reconcile.reconciler import (
    POLL_SECONDS,
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.messages.neocloud.export.v1 import ExportRule, ExportRuleSpec, ExportRuleStatus
from neocloud.services.audit.public import AuditLog
from neocloud.services.billing.public import FocusBills
from neocloud.services.export.rules import folder_of
from neocloud.services.export.types import (
    AUDIT_LOG,
    PERMISSIONS,
    RULE,
    ExportState,
    Period,
    StateEnum,
    period_with,
    read_actor,
)
from neocloud.services.iam.types import SignedRequests
from neocloud.services.storage.public import AccessProblem, ObjectLocation, ObjectWrites, Unwritable

SETTLE = timedelta(minutes=15)
"""After the end of a period, until all that belongs to it is in the store."""
MOST_AT_A_TIME = 2
"""Rules whose objects are written at the same time; each takes a thread of the control plane."""
LARGEST_BYTES = 1024**3
"""Limit of an object."""
ANSWER_SECONDS = 30.0
"""Until a gateway that did not answer is asked again."""
FAILED_SECONDS = 300.0
"""Until what failed is tried again, e.g. because a right was taken away."""
LONGEST_WAIT_SECONDS = 3600.0
_REASONS: Mapping[AccessProblem, str] = {
    AccessProblem.FORBIDDEN: "DestinationForbidden",
    AccessProblem.MISSING: "DestinationMissing",
    AccessProblem.FULL: "DestinationFull",
    AccessProblem.OCCUPIED: "DestinationOccupied",
}


@dataclass
class ExportScope:
    context: Context
    rule: ExportRule
    status: ExportRuleStatus
    problem: str = ""
    """Why the gateway did not write."""
    has_written: bool = False

    @property
    def rule_id(self) -> str:
        return self.context.resource.id

    @property
    def next_period(self) -> Period:
        last = self.status.written_until if self.status.HasField("written_until") else self.rule.spec.start
        return period_with(self.rule.spec.schedule, contract.to_datetime(last))

    @property
    def goes_on_failing(self) -> bool:
        return self.context.resource.state == ExportState.FAILED and not self.has_written

    @property
    def wait_seconds(self) -> float:
        """Return how long it is until the next period can be written."""
        due = self.next_period.end + SETTLE
        return max((due - self.context.now).total_seconds(), 0.0)


class ExportRuleReconciler:
    kind = RULE

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._work = BackgroundWork[Period](MOST_AT_A_TIME)

    async def scope(self, context: Context) -> ExportScope:
        rule = wire.message(context.resource, ExportRule)
        return ExportScope(context, rule, ExportRuleStatus.FromString(context.resource.status))

    def steps(self, scope: ExportScope) -> Sequence[Step[ExportScope]]:
        return (Step("Write what is due", self._write_due),)

    def delete_steps(self, scope: ExportScope) -> Sequence[Step[ExportScope]]:
        return (Step("Stop writing", self._stop),)

    def status(self, scope: ExportScope, result: ReconcileResult) -> ReconcileResult:
        status, state = scope.status, ExportState.ACTIVE
        if scope.context.resource.deleted_at is not None:
            state = ExportState.DELETING
        elif result.error is not None or (result.waiting and scope.goes_on_failing):
            state = ExportState.FAILED
        status.state = StateEnum.Value(state)
        status.reconciling = not result.is_done
        kept = status.message if state == ExportState.FAILED else scope.problem
        status.message = str(result.error) if result.error else kept
        wait = FAILED_SECONDS if result.error else min(scope.wait_seconds, LONGEST_WAIT_SECONDS)
        return result.with_status(status, state, wait)

    async def _write_due(self, scope: ExportScope) -> None:
        """Begin to write the next period, or count it as written. Raises RetryLater until no more is due."""
        running = self._work.find(scope.rule_id)
        if running is None:
            if scope.wait_seconds == 0:
                self._start(scope)
                raise RetryLater("an object is being written", delay_seconds=POLL_SECONDS)
            return
        if not running.task.done():
            raise RetryLater("an object is being written", delay_seconds=POLL_SECONDS)
        self._work.cancel(scope.rule_id)
        try:
            _require_written(running.task)
        except RetryLater as error:
            scope.problem = str(error)
            raise
        if running.label == scope.next_period:
            scope.status.written_until.FromDatetime(running.label.end)
            scope.status.last_object = f"{_folder(scope)}{running.label.object_name(scope.rule.spec.content)}"
            scope.has_written = True
        if scope.wait_seconds == 0:
            raise RetryLater("the next object is due", delay_seconds=0)

    async def _stop(self, scope: ExportScope) -> None:
        self._work.cancel(scope.rule_id)

    def _start(self, scope: ExportScope) -> None:
        rule_id, spec, period, folder = scope.rule_id, scope.rule.spec, scope.next_period, _folder(scope)

        async def write() -> None:
            await self._require_right(rule_id, spec)
            with tempfile.TemporaryFile(dir=self._dependencies.settings.home) as file:
                await self._fill(file, spec, period)
                writes = self._dependencies.provided.get(ObjectWrites)
                await writes.put_once(rule_id, folder, period.object_name(spec.content), file)

        self._work.start(rule_id, period, write)

    async def _require_right(self, rule_id: str, spec: ExportRuleSpec) -> None:
        """Raise Failed unless the account of the rule may still read the source."""
        permission = PERMISSIONS[spec.content]
        requests = self._dependencies.provided.get(SignedRequests)
        may_read = await self._dependencies.store.read(
            lambda tx: requests.account_has(tx, read_actor(tx, rule_id), permission, spec.source_id)
        )
        if not may_read:
            raise Failed(
                "SourceForbidden",
                f"The account that made this may not read {spec.source_id} any more. Restore its right"
                f" ({permission}), or make it again with another account.",
            )

    async def _fill(self, file: IO[bytes], spec: ExportRuleSpec, period: Period) -> None:
        size = 0
        async for text in self._content(spec, period):
            block = text.encode()
            size += len(block)
            if size > LARGEST_BYTES:
                raise Failed(
                    "TooLarge",
                    f"The period from {period.start:%Y-%m-%d %H:%M} has more than {LARGEST_BYTES:,} bytes."
                    " Export by the hour, or each project by itself.",
                )
            await asyncio.to_thread(file.write, block)

    async def _content(self, spec: ExportRuleSpec, period: Period) -> AsyncIterator[str]:
        provided = self._dependencies.provided
        if spec.content == AUDIT_LOG:
            async for line in provided.get(AuditLog).lines(spec.source_id, period.start, period.end):
                yield line
        else:
            yield await provided.get(FocusBills)(spec.source_id, period.start, period.end)


def _folder(scope: ExportScope) -> ObjectLocation:
    folder = folder_of(scope.rule.spec)
    assert folder is not None, "Else the rules refused it."
    return folder


def _require_written(task: asyncio.Task[None]) -> None:
    """Raise Failed or RetryLater unless it was written."""
    try:
        task.result()
    except ApiError as error:
        raise Failed(
            "SourceMissing", f"The source of the due period cannot be read: {error.message}"
        ) from error
    except Unwritable as error:
        if error.problem not in _REASONS:
            raise RetryLater(str(error), delay_seconds=ANSWER_SECONDS) from error
        raise Failed(_REASONS[error.problem], str(error)) from error
