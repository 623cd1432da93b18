"""Verbs of images and snapshots beyond the standard six: lists and the latest image of a family."""

from collections.abc import Sequence

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.messages.nebius.compute.v1 import (
    DiskSnapshot,
    GetImageLatestByFamilyRequest,
    Image,
    ListDiskSnapshotsByDiskRequest,
    ListDiskSnapshotsByDiskResponse,
    ListImagesResponse,
    ListPublicRequest,
)
from neocloud.messages.nebius.compute.v1 import DiskSnapshotSpec as SnapshotSpec
from neocloud.messages.nebius.compute.v1 import ListDiskSnapshotsByDiskResponse as ListByDiskResponse
from neocloud.services.compute.rules.disk import newest_of_family
from neocloud.services.compute.types import IMAGE, PUBLIC_IMAGES_PARENT, SNAPSHOT

IMAGE_SERVICE = "nebius.compute.v1.ImageService"
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000


async def get_latest_by_family(call: Call, request: GetImageLatestByFamilyRequest) -> Image:
    """Return the newest image of a family in the named project, else of those that came with the cloud."""
    if not request.image_family:
        raise contract.bad_field("image_family", "is required, for example ubuntu24.04-driverless")
    parent_id = request.parent_id or PUBLIC_IMAGES_PARENT

    def read(tx: Transaction) -> Sequence[Resource]:
        return tx.list(IMAGE, parent_id=parent_id)[0]

    newest = newest_of_family(await call.dependencies.store.read(read), request.image_family)
    if newest is None:
        raise contract.not_found("image of family", request.image_family)
    return wire.resource_message(newest)


async def list_public(call: Call, request: ListPublicRequest) -> ListImagesResponse:
    scope = f"{IMAGE}:{PUBLIC_IMAGES_PARENT}"
    size = contract.page_size(request, default=DEFAULT_PAGE_SIZE, most=MAX_PAGE_SIZE)
    page = Page(size=size, after=contract.page_after(request.page_token, scope, numbers=1))
    has_region = request.region in ("", call.dependencies.settings.region)

    def read(tx: Transaction) -> tuple[Sequence[Resource], str]:
        return tx.list(IMAGE, parent_id=PUBLIC_IMAGES_PARENT, page=page) if has_region else ((), "")

    rows, after = await call.dependencies.store.read(read)
    return ListImagesResponse(
        items=[wire.resource_message(row) for row in rows], next_page_token=contract.page_token(after, scope)
    )


async def list_by_disk(
    call: Call, request: ListDiskSnapshotsByDiskRequest
) -> ListDiskSnapshotsByDiskResponse:
    scope = f"{SNAPSHOT}/{request.disk_id}"
    size = contract.page_size(request, default=DEFAULT_PAGE_SIZE, most=MAX_PAGE_SIZE)
    after = contract.page_after(request.page_token, scope)

    def read(tx: Transaction) -> list[DiskSnapshot]:
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
        f"{IMAGE_SERVICE}/GetLatestByFamily",
        get_latest_by_family,
        "compute.images.get",
        target=lambda request: request.parent_id or PUBLIC_IMAGES_PARENT,
    ),
    Method(f"{IMAGE_SERVICE}/ListPublic", list_public, ""),
    Method(
        "nebius.compute.v1.DiskSnapshotService/ListByDisk",
        list_by_disk,
        "compute.disks.get",
        target=lambda request: request.disk_id,
    ),
)
