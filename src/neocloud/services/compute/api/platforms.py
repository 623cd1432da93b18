"""Platforms: the presets of machines, and which of them fit this machine."""

from collections.abc import Iterable

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.fleet.inventory import Inventory
from neocloud.messages.nebius.common.v1 import GetByNameRequest
from neocloud.messages.nebius.compute.v1 import ListPlatformsRequest, ListPlatformsResponse
from neocloud.messages.nebius.compute.v1 import Platform as PlatformMessage
from neocloud.messages.nebius.compute.v1 import Preset as PresetMessage
from neocloud.services.compute.capacity_check import shortages
from neocloud.services.compute.catalogue import Platform, Preset, platforms

FITS_LABEL = "neocloud.dev/fits-this-machine"
"""On a platform: "yes" when at least one preset fits."""
PRESET_LABEL_PREFIX = "neocloud.dev/preset."
"""On a platform, one for each preset: "fits", or what the machine has too little of."""
MAX_PAGE_SIZE = 1000


async def list_platforms(call: Call, request: ListPlatformsRequest) -> ListPlatformsResponse:
    """Return a page of the catalogue, which is short enough for one page by default."""
    scope = f"platforms/{request.parent_id}"
    after = contract.page_after(request.page_token, scope)
    size = contract.page_size(request, default=MAX_PAGE_SIZE, most=MAX_PAGE_SIZE)
    inventory = await _inventory(call)
    names = list(platforms())
    first = names.index(after) + 1 if after in names else 0
    found = names[first : first + size]
    has_more = first + len(found) < len(names)
    return ListPlatformsResponse(
        items=[platform_message(platforms()[name], request.parent_id, inventory) for name in found],
        next_page_token=contract.page_token(found[-1], scope) if has_more else "",
    )


async def get_platform_by_name(call: Call, request: GetByNameRequest) -> PlatformMessage:
    found = platforms().get(request.name)
    if found is None:
        raise contract.not_found("platform", request.name)
    return platform_message(found, request.parent_id, await _inventory(call))


async def _inventory(call: Call) -> Inventory:
    return Inventory.of(await call.dependencies.engine.capabilities())


def platform_message(platform: Platform, parent_id: str, inventory: Inventory) -> PlatformMessage:
    lacking = {preset.name: shortages(inventory, [(preset, 1)]) for preset in platform.presets.values()}
    labels = {f"{PRESET_LABEL_PREFIX}{name}": "; ".join(found) or "fits" for name, found in lacking.items()}
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
