"""Maintenance that an operator has announced: when what happens, and what happens to the instances.

They are announced it, stopped at its time, and started after it.

While maintenance is under way, the id of the event is in the stored status of each affected instance. Such an
instance cannot be started, and holds its capacity also while it is stopped, so that it can be started again.
Every function may be repeated.
"""

from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from neocloud.core import contract, operations
from neocloud.core.contract import ApiError
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.compute.v1 import (
    InstanceRecoveryPolicy,
    InstanceSpec,
    InstanceStatus,
    MaintenanceEventStatus,
)
from neocloud.messages.neocloud.operator.v1 import MaintenanceSpec
from neocloud.services.compute.preemption import insert_event, write_audit_event
from neocloud.services.compute.types import (
    MAINTENANCE_EVENT,
    InstanceState,
    InstanceStateEnum,
    StopReason,
    read_runtime_state,
    write_runtime_state,
)

MAINTENANCE = "neocloud.operator.v1.Maintenance"


class MaintenanceState(StrEnum):
    ANNOUNCED = "ANNOUNCED"
    DRAINING = "DRAINING"
    UNDER_WAY = "UNDER_WAY"
    DELETING = "DELETING"


def state_at(spec: MaintenanceSpec, now: datetime) -> MaintenanceState:
    start = contract.to_datetime(spec.start_at)
    if now >= start:
        return MaintenanceState.UNDER_WAY
    is_draining = not spec.instance_id and now >= start - spec.drain_before.ToTimedelta()
    return MaintenanceState.DRAINING if is_draining else MaintenanceState.ANNOUNCED


def next_change(spec: MaintenanceSpec, now: datetime) -> datetime | None:
    """Return when the next state begins; None for the last one."""
    start = contract.to_datetime(spec.start_at)
    times = [start] if spec.instance_id else [start - spec.drain_before.ToTimedelta(), start]
    return next((each for each in times if each > now), None)


def of_host(row: Resource, now: datetime) -> tuple[MaintenanceSpec, MaintenanceState] | None:
    """Return spec and state of maintenance of the whole host that has not ended; None for any other row."""
    if row.kind != MAINTENANCE or row.deleted_at is not None:
        return None
    spec = MaintenanceSpec.FromString(row.spec)
    return None if spec.instance_id else (spec, state_at(spec, now))


STOPPED = "Stopped for maintenance: "
STARTED = "Started after maintenance: "
_ANNOUNCED = "maintenance/announced/"


def announce(
    tx: Transaction, row: Resource, maintenance_id: str, *, now: datetime, start: datetime, reason: str
) -> str:
    """Return the id of the instance's event of this maintenance, inserted where there is none."""
    space = f"{_ANNOUNCED}{maintenance_id}"
    event_id = next((each for each, holder in tx.reservations(space).items() if holder == row.id), "")
    if not event_id:
        event_id = insert_event(tx, row.id, now=now, deadline=start, reason=reason, is_planned=True)
        tx.reserve(space, event_id, row.id)
    return event_id


def stop(tx: Transaction, row: Resource, event_id: str, now: datetime, reason: str) -> None:
    """Stop the instance where it is to run, and let nobody start it."""
    status = InstanceStatus.FromString(row.status)
    if status.maintenance_event_id == event_id:
        return
    status.maintenance_event_id = event_id
    runtime = read_runtime_state(tx, row.id)
    state = row.state
    if not runtime.stop_reason and not InstanceSpec.FromString(row.spec).stopped:
        write_runtime_state(tx, row.id, replace(runtime, stop_reason=StopReason.MAINTENANCE))
        state, status.reconciling = InstanceState.STOPPING, True
        status.state = InstanceStateEnum.Value(state)
        operations.abort_unfinished(tx, row.id, now, f"{STOPPED}{reason}")
        write_audit_event(tx, row, now, action="stopForMaintenance", message=f"{STOPPED}{reason}")
    tx.update(replace(row, state=state, status=status.SerializeToString(), updated_at=now))


def finish(tx: Transaction, maintenance_id: str, now: datetime, reason: str) -> set[str]:
    """Finish the events of a maintenance, and start the instances that recover by their policy.

    Return the ids of those that are started.
    """
    started: set[str] = set()
    space = f"{_ANNOUNCED}{maintenance_id}"
    for event_id, instance_id in tx.reservations(space).items():
        tx.release(space, event_id)
        event, row = tx.get(event_id), tx.get(instance_id)
        if event is not None:
            shown = MaintenanceEventStatus.FromString(event.status)
            shown.finished_at.FromDatetime(now)
            tx.update(replace(event, status=shown.SerializeToString()))
        if row is not None and is_under_maintenance(row) and _release(tx, row, now, reason):
            started.add(instance_id)
    return started


def _release(tx: Transaction, row: Resource, now: datetime, reason: str) -> bool:
    """Return whether the instance is started again."""
    spec, status = InstanceSpec.FromString(row.spec), InstanceStatus.FromString(row.status)
    status.maintenance_event_id = ""
    runtime, state = read_runtime_state(tx, row.id), row.state
    starts = (
        runtime.stop_reason is StopReason.MAINTENANCE
        and spec.recovery_policy != InstanceRecoveryPolicy.Value("FAIL")
        and row.deleted_at is None
        and not spec.stopped
    )
    if starts:
        write_runtime_state(tx, row.id, replace(runtime, stop_reason=StopReason.NONE))
        state, status.reconciling = InstanceState.STARTING, True
        status.state = InstanceStateEnum.Value(state)
        write_audit_event(tx, row, now, action="startAfterMaintenance", message=f"{STARTED}{reason}")
    tx.update(replace(row, state=state, status=status.SerializeToString(), updated_at=now))
    return starts


def is_under_maintenance(row: Resource) -> bool:
    return bool(InstanceStatus.FromString(row.status).maintenance_event_id)


def refusal(tx: Transaction, row: Resource) -> ApiError:
    """Return the error for a request to start an instance that is under maintenance."""
    event = tx.get(InstanceStatus.FromString(row.status).maintenance_event_id)
    reason = ""
    if event is not None and event.kind == MAINTENANCE_EVENT:
        reason = f" ({MaintenanceEventStatus.FromString(event.status).maintenance_reason})"
    after = "Start it when that has ended."
    if InstanceSpec.FromString(row.spec).recovery_policy != InstanceRecoveryPolicy.Value("FAIL"):
        after = "It is started again when that has ended, unless you stopped it."
    return contract.bad_state(row.id, f"{row.id} is under maintenance{reason}. {after}")
