"""Custom verbs of endpoints and jobs (start, stop, restart, cancel), and the view that hides secrets.

A verb stores its request in the runtime state and changes the state in the same transaction, so that the next
read does not return the old one.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from neocloud.core import contract, wire
from neocloud.core.readers import TransactionReader
from neocloud.core.service import Call, Method, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.ai.v1 import (
    CancelJobRequest,
    Endpoint,
    Job,
    JobSpec,
    RestartEndpointRequest,
    RestartJobRequest,
    StartEndpointRequest,
    StopEndpointRequest,
)
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.services.ai.rules import demands
from neocloud.services.ai.types import (
    ENDED,
    ENDPOINT,
    JOB,
    EndpointState,
    JobState,
    RuntimeState,
    Workload,
    read_runtime_state,
    write_runtime_state,
)
from neocloud.services.compute.public import check_capacity

_ENDPOINTS, _JOBS = "nebius.ai.v1.EndpointService", "nebius.ai.v1.JobService"

WorkloadRequest = (
    StartEndpointRequest | StopEndpointRequest | RestartEndpointRequest | CancelJobRequest | RestartJobRequest
)
Change = Callable[[Resource, RuntimeState], tuple[RuntimeState, str] | None]
"""Returns the new runtime state and the next state; None when no change is needed."""


def _start(row: Resource, runtime: RuntimeState) -> tuple[RuntimeState, str] | None:
    if not runtime.is_stopped and row.state not in (EndpointState.ERROR, EndpointState.STOPPED):
        return None
    return RuntimeState(round=runtime.round + 1), EndpointState.STARTING


def _stop(row: Resource, runtime: RuntimeState) -> tuple[RuntimeState, str] | None:
    if runtime.is_stopped and row.state == EndpointState.STOPPED:
        return None
    return replace(runtime, is_stopped=True), EndpointState.STOPPING


def _restart_endpoint(row: Resource, runtime: RuntimeState) -> tuple[RuntimeState, str] | None:
    return RuntimeState(round=runtime.round + 1), EndpointState.STARTING


def _cancel(row: Resource, runtime: RuntimeState) -> tuple[RuntimeState, str] | None:
    if runtime.outcome or row.state in ENDED:
        raise contract.bad_state(row.id, f"{row.name or row.id} has ended already ({row.state}).")
    return replace(runtime, is_stopped=True), JobState.CANCELLING


def _restart_job(row: Resource, runtime: RuntimeState) -> tuple[RuntimeState, str] | None:
    if not runtime.outcome and row.state not in ENDED:
        raise contract.bad_state(row.id, f"{row.name or row.id} is {row.state}; cancel it first.")
    attempts = JobSpec.FromString(row.spec).restart_attempts
    return RuntimeState(round=runtime.round + 1, attempts_left=attempts), JobState.STARTING


def _method(service: str, kind: str, verb: str, permission: str, change: Change) -> Method[WorkloadRequest]:
    path = f"{service}/{verb}"

    async def handler(call: Call, request: WorkloadRequest) -> Write[Operation]:
        inventory = await call.dependencies.engine.capabilities()

        def work(tx: Transaction) -> NewOperation:
            row = row_to_change(tx, kind, request.id, _noun(kind))
            changed = change(row, read_runtime_state(tx, row.id) or _first(row))
            if changed is None:
                return NewOperation(row, _title(row))
            runtime, state = changed
            if not runtime.is_stopped:
                now, provided = call.dependencies.clock.now(), call.dependencies.provided
                reader = TransactionReader(tx, now, inventory=inventory, provided=provided)
                workload: Workload = wire.resource_message(row)
                demanded, may_preempt = demands(workload.spec), not workload.spec.preemptible
                check_capacity(reader, row, demanded, [], may_wait=True, may_preempt=may_preempt)
            write_runtime_state(tx, row.id, runtime)
            return _changed(tx, call, row, state)

        return Write(work)

    return Method(path, handler, permission, target=lambda request: request.id, is_change=True)


def _first(row: Resource) -> RuntimeState:
    attempts = JobSpec.FromString(row.spec).restart_attempts if row.kind == JOB else 0
    return RuntimeState(attempts_left=attempts)


def _changed(tx: Transaction, call: Call, row: Resource, state: str) -> NewOperation:
    changed = replace(
        row,
        status=wire.with_state(row.kind, row.status, state),
        state=state,
        updated_at=call.dependencies.clock.now(),
        # A new version, so that the operation waits for a run that has read the new runtime state.
        resource_version=row.resource_version + 1,
    )
    tx.update(changed)
    return NewOperation(changed, _title(row), is_done=False)


def _noun(kind: str) -> str:
    return kind.rpartition(".")[2].lower()


def _title(row: Resource) -> str:
    return f"{_noun(row.kind)} {row.name}"


METHODS = (
    _method(_ENDPOINTS, ENDPOINT, "Start", "ai.endpoints.start", _start),
    _method(_ENDPOINTS, ENDPOINT, "Stop", "ai.endpoints.stop", _stop),
    _method(_ENDPOINTS, ENDPOINT, "Restart", "ai.endpoints.restart", _restart_endpoint),
    _method(_JOBS, JOB, "Cancel", "ai.jobs.cancel", _cancel),
    _method(_JOBS, JOB, "Restart", "ai.jobs.restart", _restart_job),
)


def without_secrets(workload: Endpoint | Job, tx: Transaction, now: datetime) -> None:
    """Remove the values of variables and the contents of files from the message that readers get."""
    for variable in workload.spec.environment_variables:
        variable.ClearField("value")
    for file in workload.spec.injected_files:
        file.ClearField("content")
