"""Write what a pass found: status, operations, who has to look next. One transaction, under the lease."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from neocloud.core import contract, operations
from neocloud.core.contract import ApiError
from neocloud.core.operations import ProgressStep
from neocloud.core.reconcile import deletion
from neocloud.core.reconcile.dependents import enqueue_dependents
from neocloud.core.reconcile.one_pass import Verdict
from neocloud.core.reconcile.reconciler import FINALIZER, Failed
from neocloud.core.store.protocol import Lease, Resource, Transaction


@dataclass(frozen=True)
class Finding:
    """A verdict together with what it speaks of."""

    resource: Resource
    """As it was when the lease was taken."""
    lease: Lease
    verdict: Verdict
    progress: tuple[ProgressStep, ...]


def settle(tx: Transaction, kinds: deletion.Kinds, finding: Finding, now: datetime) -> None:
    """Raises LeaseLost when the finding is out of date."""
    tx.check_lease(finding.lease)
    row = tx.get(finding.resource.id)
    assert row is not None, "A leased row is there: its lease goes with it."
    outcome = finding.verdict.outcome
    is_gone = row.deleted_at is not None and finding.resource.deleted_at is not None and outcome.is_done
    finalizers = tuple(name for name in row.finalizers if not is_gone or name != FINALIZER)
    if is_gone and not finalizers:
        deletion.delete(tx, kinds, row, now)
        return
    _write(tx, kinds, row, finding, finalizers, now)
    if not _is_overtaken(row, finding):
        _tell_operations(tx, finding, now)


def _is_overtaken(row: Resource, finding: Finding) -> bool:
    """A request (stop, start) set the state during the pass, which knew nothing of it."""
    return row.deleted_at is None and row.state != finding.resource.state


def give_back(tx: Transaction, lease: Lease, now: datetime) -> None:
    """Leave the resource as it is, to be looked at again at once."""
    tx.commit_result(
        lease,
        status=None,
        state=None,
        observed_version=None,
        finalizers=None,
        due_at=now,
        attempts=lease.attempts,
        now=now,
    )


def _write(
    tx: Transaction,
    kinds: deletion.Kinds,
    row: Resource,
    finding: Finding,
    finalizers: tuple[str, ...],
    now: datetime,
) -> None:
    verdict, settled = finding.verdict, finding.verdict.settled
    if row.deleted_at is not None and finding.resource.deleted_at is None:
        settled = None  # its deletion was asked for during the pass, and that is the state it is in
    elif _is_overtaken(row, finding):
        settled = None
    status = None if settled is None else settled.status.SerializeToString(deterministic=True)
    state = None if settled is None else settled.state
    tx.commit_result(
        finding.lease,
        status=status,
        state=state,
        observed_version=finding.resource.resource_version if verdict.outcome.is_done else None,
        finalizers=finalizers,
        due_at=None if verdict.delay_seconds is None else now + timedelta(seconds=verdict.delay_seconds),
        attempts=finding.lease.attempts + 1 if verdict.had_error else 0,
        now=now,
    )
    if status is None or state is None or (status, state) == (row.status, row.state):
        return
    if row.owner_id:
        tx.enqueue(row.owner_id, now)
    enqueue_dependents(tx, kinds, [row, replace(row, status=status, state=state)], now)


def _tell_operations(tx: Transaction, finding: Finding, now: datetime) -> None:
    resource, outcome = finding.resource, finding.verdict.outcome
    text = str(outcome.failed) if outcome.failed else outcome.waiting
    operations.report_progress(tx, resource.id, finding.progress, text, now)
    version = resource.resource_version
    if outcome.failed is not None:
        error = _as_api_error(resource.id, outcome.failed)
        operations.finish_for(tx, resource.id, now, observed_version=version, error=error)
    elif outcome.is_done:
        operations.finish_for(tx, resource.id, now, observed_version=version)


def _as_api_error(resource_id: str, failed: Failed) -> ApiError:
    error = contract.bad_state(resource_id, str(failed))
    for detail in error.details:
        detail.code = failed.reason
    return ApiError(failed.code, error.message, error.details)
