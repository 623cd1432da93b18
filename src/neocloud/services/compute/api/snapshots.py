"""What a caller may do with snapshots beyond the standard verbs: list those of one disk."""

from typing import Any

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.compute.v1 import DiskSnapshotSpec as SnapshotSpec
from neocloud.messages.nebius.compute.v1 import (
    ListDiskSnapshotsByDiskRequest,
    ListDiskSnapshotsByDiskResponse,
)
from neocloud.messages.nebius.compute.v1 import ListDiskSnapshotsByDiskResponse as ListByDiskResponse
from neocloud.services.compute.resources.disk import SNAPSHOT

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000


async def list_by_disk(
    call: Call, request: ListDiskSnapshotsByDiskRequest
) -> ListDiskSnapshotsByDiskResponse:
    scope = f"{SNAPSHOT}/{request.disk_id}"
    size = contract.page_size(request, default=DEFAULT_PAGE_SIZE, most=MAX_PAGE_SIZE)
    after = contract.page_after(request.page_token, scope)

    def read(tx: Transaction) -> list[Any]:
        disk = tx.get(request.disk_id)
        rows = tx.list(SNAPSHOT, parent_id=disk.parent_id)[0] if disk else ()
        mine = [row for row in rows if SnapshotSpec.FromString(row.spec).source_disk_id == request.disk_id]
        return [wire.resource_message(row) for row in mine]

    found = await call.dependencies.store.read(read)
    ids = [item.metadata.id for item in found]
    first = ids.index(after) + 1 if after in ids else 0
    page = found[first : first + size]
    has_more = first + len(page) < len(found)
    token = contract.page_token(page[-1].metadata.id, scope) if has_more else ""
    return ListByDiskResponse(items=page, next_page_token=token)


METHODS = (
    Method(
        "nebius.compute.v1.DiskSnapshotService/ListByDisk",
        list_by_disk,
        "compute.disks.get",
        target=lambda request: request.disk_id,
    ),
)
