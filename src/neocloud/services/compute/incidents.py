"""What happens to instances that their owners did not ask for: preemption and maintenance.

For those who run the cloud, and for the emulator's faults; no caller of the API reaches it. Who calls wakes
the worker afterwards.
"""

from dataclasses import replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.nebius.compute.v1 import InstanceSpec, InstanceStatus
from neocloud.messages.nebius.compute.v1 import MaintenanceEventSpec as EventSpec
from neocloud.messages.nebius.compute.v1 import MaintenanceEventStatus as EventStatus
from neocloud.services.compute.reconcile.record import read_runtime_state, write_runtime_state
from neocloud.services.compute.resources.instance import (
    INSTANCE,
    MAINTENANCE_EVENT,
    MAINTENANCE_EVENT_ID_PREFIX,
    InstanceState,
    InstanceStateEnum,
    StopReason,
)


async def preempt(store: Store, instance_id: str, now: datetime) -> None:
    """Take a preemptible instance's machine away: it is stopped until its owner starts it again."""

    def work(tx: Transaction) -> None:
        row = _instance(tx, instance_id)
        if not InstanceSpec.FromString(row.spec).HasField("preemptible"):
            raise contract.bad_state(
                row.id, f"{row.id} is not preemptible; only such machines are taken away."
            )
        runtime = read_runtime_state(tx, row.id)
        if runtime.stop_reason or row.state == InstanceState.STOPPED:
            raise contract.bad_state(row.id, f"{row.id} does not run; there is nothing to take away.")
        write_runtime_state(tx, row.id, replace(runtime, stop_reason=StopReason.PREEMPTED))
        status = InstanceStatus.FromString(row.status)
        status.state, status.reconciling = InstanceStateEnum.Value(InstanceState.STOPPING), True
        tx.update(
            replace(row, state=InstanceState.STOPPING, status=status.SerializeToString(), updated_at=now)
        )

    await store.write(work)


async def plan_maintenance(
    store: Store, instance_id: str, *, now: datetime, deadline: datetime, reason: str, is_planned: bool = True
) -> str:
    """Make an event for an instance, which shows it from then on; its id."""

    def work(tx: Transaction) -> str:
        _instance(tx, instance_id)
        event_id = contract.new_id(MAINTENANCE_EVENT_ID_PREFIX)
        status = EventStatus(
            maintenance_id=event_id, created_at=now, sla_deadline_ts=deadline, maintenance_reason=reason
        )
        row = Resource(
            id=event_id,
            kind=MAINTENANCE_EVENT,
            parent_id=instance_id,
            name=event_id,
            created_at=now,
            updated_at=now,
            spec=EventSpec(is_planned=is_planned).SerializeToString(),
            status=status.SerializeToString(),
            owner_id=instance_id,
        )
        tx.insert(row)
        return event_id

    return await store.write(work)


async def finish_maintenance(store: Store, event_id: str, now: datetime) -> None:
    def work(tx: Transaction) -> None:
        row = tx.get(event_id)
        if row is None or row.kind != MAINTENANCE_EVENT:
            raise contract.not_found("maintenance event", event_id)
        status = EventStatus.FromString(row.status)
        status.finished_at.FromDatetime(now)
        tx.update(replace(row, status=status.SerializeToString()))

    await store.write(work)


def _instance(tx: Transaction, instance_id: str) -> Resource:
    row = tx.get(instance_id)
    if row is None or row.kind != INSTANCE or row.deleted_at is not None:
        raise contract.not_found("instance", instance_id)
    return row
