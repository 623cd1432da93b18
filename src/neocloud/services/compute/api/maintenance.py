"""Maintenance events of instances: plan and finish one, list those that are under way; preemption.

Operators (`compute/maintenance.py`) and the emulator's faults plan and finish events; no method of the
published API does. A preemption (`preemption.py`) is an event too, until its instance is started again. An
event is a row whose parent is the instance: callers who may read the instance see it, and it is deleted with
the instance.
"""

from dataclasses import replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.nebius.compute.v1 import (
    GetMaintenanceEventByInstanceRequest,
    InstanceSpec,
    ListMaintenanceEventsRequest,
    ListMaintenanceEventsResponse,
    MaintenanceEvent,
)
from neocloud.messages.nebius.compute.v1 import ListMaintenanceEventsResponse as ListResponse
from neocloud.messages.nebius.compute.v1 import MaintenanceEventSpec as EventSpec
from neocloud.messages.nebius.compute.v1 import MaintenanceEventStatus as EventStatus
from neocloud.services.compute.preemption import insert_event, preempt_instance
from neocloud.services.compute.types import (
    INSTANCE,
    MAINTENANCE_EVENT,
    InstanceState,
    read_runtime_state,
)


def active_maintenance(tx: Transaction, instance_id: str) -> list[MaintenanceEvent]:
    """Return the instance's maintenance events that are not finished, oldest first."""
    events = [
        MaintenanceEvent(
            id=row.id, spec=EventSpec.FromString(row.spec), status=EventStatus.FromString(row.status)
        )
        for row in tx.list(MAINTENANCE_EVENT, parent_id=instance_id)[0]
    ]
    return [event for event in events if not event.status.HasField("finished_at")]


async def plan_maintenance(
    store: Store, instance_id: str, *, now: datetime, deadline: datetime, reason: str, is_planned: bool = True
) -> str:
    """Create a maintenance event of an instance and return its id."""

    def work(tx: Transaction) -> str:
        live_instance(tx, instance_id)
        return insert_event(tx, instance_id, now=now, deadline=deadline, reason=reason, is_planned=is_planned)

    return await store.write(work)


async def finish_maintenance(store: Store, event_id: str, now: datetime) -> None:
    """Mark a maintenance event as finished. Raises NOT_FOUND."""

    def work(tx: Transaction) -> None:
        row = tx.get(event_id)
        if row is None or row.kind != MAINTENANCE_EVENT:
            raise contract.not_found("maintenance event", event_id)
        status = EventStatus.FromString(row.status)
        status.finished_at.FromDatetime(now)
        tx.update(replace(row, status=status.SerializeToString()))

    await store.write(work)


async def preempt(store: Store, instance_id: str, now: datetime) -> None:
    """Stop a preemptible instance until its owner starts it again.

    The caller enqueues the instance.
    """

    def work(tx: Transaction) -> None:
        row = live_instance(tx, instance_id)
        if not InstanceSpec.FromString(row.spec).HasField("preemptible"):
            raise contract.bad_state(
                row.id,
                f"{row.id} is not preemptible. Set spec.preemptible first.",
            )
        runtime = read_runtime_state(tx, row.id)
        if runtime.stop_reason or row.state == InstanceState.STOPPED:
            raise contract.bad_state(row.id, f"{row.id} does not run. Start it before you preempt it.")
        preempt_instance(tx, row, now)

    await store.write(work)


def live_instance(tx: Transaction, instance_id: str) -> Resource:
    """Return the row of an instance that is not being deleted. Raises NOT_FOUND."""
    row = tx.get(instance_id)
    if row is None or row.kind != INSTANCE or row.deleted_at is not None:
        raise contract.not_found("instance", instance_id)
    return row


SERVICE = "nebius.compute.v1.MaintenanceService"
MAX_PAGE_SIZE = 1000


async def get_by_instance(call: Call, request: GetMaintenanceEventByInstanceRequest) -> MaintenanceEvent:
    active = await call.dependencies.store.read(lambda tx: active_maintenance(tx, request.instance_id))
    if not active:
        raise contract.not_found("maintenance event of instance", request.instance_id)
    return active[-1]


async def list_active(call: Call, request: ListMaintenanceEventsRequest) -> ListMaintenanceEventsResponse:
    scope = f"{MAINTENANCE_EVENT}:{request.parent_id}"
    after = contract.page_after(request.page_token, scope)
    size = contract.page_size(request, default=MAX_PAGE_SIZE, most=MAX_PAGE_SIZE)

    def read(tx: Transaction) -> list[MaintenanceEvent]:
        instances = tx.list(INSTANCE, parent_id=request.parent_id)[0]
        return [event for row in instances for event in active_maintenance(tx, row.id)]

    found = await call.dependencies.store.read(read)
    ids = [event.id for event in found]
    first = ids.index(after) + 1 if after in ids else 0
    page = found[first : first + size]
    has_more = first + len(page) < len(found)
    return ListResponse(
        items=page, next_page_token=contract.page_token(page[-1].id, scope) if has_more else ""
    )


METHODS = (
    Method(
        f"{SERVICE}/GetByInstance",
        get_by_instance,
        "compute.instances.get",
        target=lambda request: request.instance_id,
    ),
    Method(
        f"{SERVICE}/ListActive",
        list_active,
        "compute.instances.list",
        target=lambda request: request.parent_id,
    ),
)
