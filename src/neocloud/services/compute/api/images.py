"""Images beyond the standard verbs: find the newest of a family, list those that came with the cloud."""

from collections.abc import Sequence

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.messages.nebius.compute.v1 import (
    GetImageLatestByFamilyRequest,
    Image,
    ListImagesResponse,
    ListPublicRequest,
)
from neocloud.services.compute.resources.disk import IMAGE, PUBLIC_IMAGES_PARENT
from neocloud.services.compute.rules.disk_spec import newest_of_family

SERVICE = "nebius.compute.v1.ImageService"
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000


async def get_latest_by_family(call: Call, request: GetImageLatestByFamilyRequest) -> Image:
    """Of the project that is named, else of those that came with the cloud."""
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


METHODS = (
    Method(
        f"{SERVICE}/GetLatestByFamily",
        get_latest_by_family,
        "compute.images.get",
        target=lambda request: request.parent_id or PUBLIC_IMAGES_PARENT,
    ),
    Method(f"{SERVICE}/ListPublic", list_public, ""),
)
