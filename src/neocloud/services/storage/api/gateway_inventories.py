"""The methods by which the object gateway learns of inventories and reports them. They require its key."""

from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.storage.v1 import InventorySpec
from neocloud.messages.neocloud.storage.v1 import (
    GatewayInventory,
    ListGatewayInventoriesRequest,
    ListGatewayInventoriesResponse,
    ReportInventoriesRequest,
    ReportInventoriesResponse,
)
from neocloud.services.iam.types import tenant_of
from neocloud.services.storage.api.gateway import (
    SERVICE,
    all_rows,
    newer_list,
    require_object_gateway,
    with_version,
)
from neocloud.services.storage.gateway_link import InventoryBoard, InventoryChanges
from neocloud.services.storage.types import INVENTORY, read_actor


async def list_inventories(
    call: Call, request: ListGatewayInventoriesRequest
) -> ListGatewayInventoriesResponse:
    require_object_gateway(call)
    changes = call.dependencies.provided.get(InventoryChanges)
    return await newer_list(call, changes, request.version, request.wait_seconds, read_inventories)


def read_inventories(tx: Transaction) -> ListGatewayInventoriesResponse:
    answer = ListGatewayInventoriesResponse()
    answer.inventories.extend(_inventory(tx, row) for row in all_rows(tx, INVENTORY))
    return with_version(answer)


def _inventory(tx: Transaction, row: Resource) -> GatewayInventory:
    return GatewayInventory(
        id=row.id,
        generation=row.resource_version,
        is_removed=row.deleted_at is not None,
        source_bucket_id=row.parent_id,
        subject_id=read_actor(tx, row.id),
        tenant_id=tenant_of(row.parent_id, tx.get) or "",
        spec=InventorySpec.FromString(row.spec),
    )


async def report_inventories(call: Call, request: ReportInventoriesRequest) -> ReportInventoriesResponse:
    require_object_gateway(call)
    board = call.dependencies.provided.get(InventoryBoard)
    changed = board.report(request)

    def work(tx: Transaction) -> set[str]:
        """Return the ids of those that are no inventories, any more."""
        known = {each for each in changed if _is_inventory(tx.get(each))}
        for inventory_id in sorted(known):
            tx.enqueue(inventory_id, call.dependencies.clock.now())
        return changed - known

    if changed:
        board.forget(await call.dependencies.store.write(work))
    return ReportInventoriesResponse()


def _is_inventory(row: Resource | None) -> bool:
    return row is not None and row.kind == INVENTORY


METHODS = (
    Method(f"{SERVICE}/ListInventories", list_inventories, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ReportInventories", report_inventories, None, is_internal=True, is_checked=False),
)
"""Not validated by the server, as the methods in gateway.py."""
