"""From one attempt to the next, which goes on from the newest checkpoint: after a stop, and after a loss."""

from dataclasses import replace

from neocloud.core.reconcile.reconciler import POLL_SECONDS, Failed, RetryLater
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.tuning.reconcile.scope import Scope
from neocloud.services.tuning.runtime_state import JobRecord, read_record, write_record
from neocloud.services.tuning.types import Reason

MOST_LOSSES = 3
"""So often in a row may what runs it go away without having got further."""


async def keep_record(store: Store, scope: Scope, record: JobRecord) -> None:
    """Unless somebody asked for something else meanwhile."""

    def write(tx: Transaction) -> None:
        if read_record(tx, scope.job_id) == scope.record:
            write_record(tx, scope.job_id, record)

    await store.write(write)


async def next_attempt(store: Store, scope: Scope, record: JobRecord) -> None:
    """Raises RetryLater: what the folder said belongs to the attempt before."""
    following = replace(record, attempt=record.attempt + 1, slurm_jobs=())
    await keep_record(store, scope, following)
    raise RetryLater(f"attempt {following.attempt} is being started", delay_seconds=POLL_SECONDS)


async def lost(store: Store, scope: Scope, what: str, reason: str) -> None:
    """Its pod or job went away without an outcome. Raises RetryLater, or Failed when that is no accident."""
    got_further = scope.last_step > scope.record.lost_step
    times = 1 if got_further else scope.record.lost + 1
    if times > MOST_LOSSES:
        raise Failed(
            Reason.WORKER_LOST,
            f"The {what} ended {times} times without getting further ({reason}). It may need more memory:"
            " start another job on something larger, or resume this one.",
        )
    scope.folder.tell(scope.context.now.timestamp(), f"The {what} was lost ({reason}).", "warn")
    await next_attempt(store, scope, replace(scope.record, lost=times, lost_step=scope.last_step))
