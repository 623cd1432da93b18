"""Maintenance events: who runs the cloud plans them, callers see those of their instances.

An event is a row whose parent is the instance, so it is seen by who sees the instance and goes with it.
"""

from typing import Any

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.compute.v1 import (
    GetMaintenanceEventByInstanceRequest,
    ListMaintenanceEventsRequest,
    ListMaintenanceEventsResponse,
    MaintenanceEvent,
)
from neocloud.messages.nebius.compute.v1 import ListMaintenanceEventsResponse as ListResponse
from neocloud.services.compute.maintenance import active_maintenance
from neocloud.services.compute.types import INSTANCE, MAINTENANCE_EVENT

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

    def read(tx: Transaction) -> list[Any]:
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
