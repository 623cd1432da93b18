"""Maintenance events: who runs the cloud plans them, callers see those of their instances.

An event is a row whose parent is the instance, so it is seen by who sees the instance and goes with it.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.services.compute.resources.instance import (
    INSTANCE,
    MAINTENANCE_EVENT,
    MAINTENANCE_EVENT_ID_PREFIX,
    InstanceStatus,
)

MaintenanceEvent = contract.message(MAINTENANCE_EVENT)
EventSpec = contract.message("nebius.compute.v1.MaintenanceEventSpec")
EventStatus = contract.message("nebius.compute.v1.MaintenanceEventStatus")
ListResponse = contract.message("nebius.compute.v1.ListMaintenanceEventsResponse")
SERVICE = "nebius.compute.v1.MaintenanceService"
MAX_PAGE_SIZE = 1000


async def plan_maintenance(
    store: Store, instance_id: str, *, now: datetime, deadline: datetime, reason: str, is_planned: bool = True
) -> str:
    """Make an event for an instance and show it there; its id. For those who run the cloud."""

    def work(tx: Transaction) -> str:
        instance = tx.get(instance_id)
        if instance is None or instance.kind != INSTANCE:
            raise contract.not_found("instance", instance_id)
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
        _show(tx, instance, event_id)
        return event_id

    return await store.write(work)


async def finish_maintenance(store: Store, event_id: str, now: datetime) -> None:
    def work(tx: Transaction) -> None:
        row = tx.get(event_id)
        if row is None or row.kind != MAINTENANCE_EVENT:
            raise contract.not_found("maintenance event", event_id)
        status = EventStatus.FromString(row.status)
        status.finished_at.FromDatetime(now)
        tx.update(_with_status(row, status))
        instance = tx.get(row.parent_id)
        if instance is not None:
            _show(tx, instance, "")

    await store.write(work)


async def get_by_instance(call: Call, request: Any) -> Any:
    active = await call.dependencies.store.read(lambda tx: _active(tx, request.instance_id))
    if not active:
        raise contract.not_found("maintenance event of instance", request.instance_id)
    return active[-1]


async def list_active(call: Call, request: Any) -> Any:
    scope = f"{MAINTENANCE_EVENT}:{request.parent_id}"
    after = contract.page_after(request.page_token, scope)

    def read(tx: Transaction) -> list[Any]:
        instances = tx.list(INSTANCE, parent_id=request.parent_id)[0]
        return [event for row in instances for event in _active(tx, row.id)]

    found = await call.dependencies.store.read(read)
    ids = [event.id for event in found]
    first = ids.index(after) + 1 if after in ids else 0
    page = found[first : first + min(request.page_size or MAX_PAGE_SIZE, MAX_PAGE_SIZE)]
    has_more = first + len(page) < len(found)
    return ListResponse(
        items=page, next_page_token=contract.page_token(page[-1].id, scope) if has_more else ""
    )


def _active(tx: Transaction, instance_id: str) -> list[Any]:
    rows = tx.list(MAINTENANCE_EVENT, parent_id=instance_id)[0]
    events = [_message(row) for row in rows]
    return [event for event in events if not event.status.HasField("finished_at")]


def _message(row: Resource) -> Any:
    return MaintenanceEvent(
        id=row.id, spec=EventSpec.FromString(row.spec), status=EventStatus.FromString(row.status)
    )


def _with_status(row: Resource, status: Any) -> Resource:
    return replace(row, status=status.SerializeToString())


def _show(tx: Transaction, instance: Resource, event_id: str) -> None:
    status = InstanceStatus.FromString(instance.status)
    status.maintenance_event_id = event_id
    tx.update(_with_status(instance, status))


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
