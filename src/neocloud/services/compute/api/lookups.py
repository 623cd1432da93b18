"""Lists and lookups: platforms and which of them fit this machine, images and snapshots."""

from collections.abc import Iterable, Sequence

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.core.usage import CapacityUses
from neocloud.messages.nebius.common.v1 import GetByNameRequest
from neocloud.messages.nebius.compute.v1 import (
    DiskSnapshot,
    GetImageLatestByFamilyRequest,
    Image,
    ListDiskSnapshotsByDiskRequest,
    ListDiskSnapshotsByDiskResponse,
    ListImagesResponse,
    ListPlatformsRequest,
    ListPlatformsResponse,
    ListPublicRequest,
)
from neocloud.messages.nebius.compute.v1 import DiskSnapshotSpec as SnapshotSpec
from neocloud.messages.nebius.compute.v1 import ListDiskSnapshotsByDiskResponse as ListByDiskResponse
from neocloud.messages.nebius.compute.v1 import Platform as PlatformMessage
from neocloud.messages.nebius.compute.v1 import Preset as PresetMessage
from neocloud.services.compute.capacity import Demand, Inventory, nodes_that_fit, shortages
from neocloud.services.compute.catalogue import Platform, Preset, platforms
from neocloud.services.compute.rules.volumes import newest_of_family
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


FITS_LABEL = "neocloud.dev/fits-this-machine"
"""On a platform: "yes" when at least one preset fits."""
PRESET_LABEL_PREFIX = "neocloud.dev/preset."
"""On a platform, one for each preset: "fits", or what the machine has too little of."""
FREE_LABEL_PREFIX = "neocloud.dev/free."
"""On a platform, one for each preset that fits: how many more of it fit now."""


async def list_platforms(call: Call, request: ListPlatformsRequest) -> ListPlatformsResponse:
    """Return a page of the catalogue, which is short enough for one page by default."""
    scope = f"platforms/{request.parent_id}"
    after = contract.page_after(request.page_token, scope)
    size = contract.page_size(request, default=MAX_PAGE_SIZE, most=MAX_PAGE_SIZE)
    inventory, held = await _inventory(call), await _held(call)
    names = list(platforms())
    first = names.index(after) + 1 if after in names else 0
    found = names[first : first + size]
    has_more = first + len(found) < len(names)
    return ListPlatformsResponse(
        items=[platform_message(platforms()[name], request.parent_id, inventory, held) for name in found],
        next_page_token=contract.page_token(found[-1], scope) if has_more else "",
    )


async def get_platform_by_name(call: Call, request: GetByNameRequest) -> PlatformMessage:
    found = platforms().get(request.name)
    if found is None:
        raise contract.not_found("platform", request.name)
    return platform_message(found, request.parent_id, await _inventory(call), await _held(call))


async def _inventory(call: Call) -> Inventory:
    return Inventory.of(await call.dependencies.engine.capabilities())


async def _held(call: Call) -> Sequence[Demand] | None:
    """Return what all resources hold of the machine; None where one has a shape that this release lacks."""
    uses = call.dependencies.provided.get(CapacityUses)

    def read(tx: Transaction) -> Sequence[Demand] | None:
        try:
            return [demand for _, demand in uses.demands({kind: tx.list(kind)[0] for kind in uses.kinds})]
        except LookupError:
            return None

    return await call.dependencies.store.read(read)


def platform_message(
    platform: Platform, parent_id: str, inventory: Inventory, held: Sequence[Demand] | None
) -> PlatformMessage:
    """Return a platform with labels of what fits; without those of what is free where `held` is not known."""
    lacking = {preset.name: shortages(inventory, [(preset, 1)]) for preset in platform.presets.values()}
    labels = {f"{PRESET_LABEL_PREFIX}{name}": "; ".join(found) or "fits" for name, found in lacking.items()}
    for preset in platform.presets.values():
        if held is not None and not lacking[preset.name]:
            labels[f"{FREE_LABEL_PREFIX}{preset.name}"] = str(nodes_that_fit(inventory, held, preset))
    labels[FITS_LABEL] = "yes" if any(not found for found in lacking.values()) else "no"
    message = PlatformMessage()
    message.metadata.id = f"computeplatform-e00-{platform.name}"
    message.metadata.parent_id = parent_id
    message.metadata.name = platform.name
    message.metadata.labels.update(labels)
    message.spec.human_readable_name = platform.title
    message.spec.short_human_readable_name = platform.title
    message.spec.gpu_memory_gigabytes = platform.gpu_memory_gb
    message.spec.presets.extend(_preset_messages(platform))
    message.status.allowed_for_preemptibles = True
    return message


def _preset_messages(platform: Platform) -> Iterable[PresetMessage]:
    for preset in platform.presets.values():
        yield _preset_message(preset, preset.name in platform.clustering_presets)


def _preset_message(preset: Preset, allows_clustering: bool) -> PresetMessage:
    message = PresetMessage(name=preset.name, allow_gpu_clustering=allows_clustering)
    message.resources.vcpu_count = preset.vcpu
    message.resources.memory_gibibytes = preset.memory_gib
    message.resources.gpu_count = preset.gpus
    return message


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
    Method(
        "nebius.compute.v1.PlatformService/List",
        list_platforms,
        "compute.platforms.list",
        target=lambda request: request.parent_id,
    ),
    Method(
        "nebius.compute.v1.PlatformService/GetByName",
        get_platform_by_name,
        "compute.platforms.get",
        target=lambda request: request.parent_id,
    ),
)
