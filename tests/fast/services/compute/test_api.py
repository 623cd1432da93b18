"""Platforms as clients see them, on a machine with two cores and no GPU."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.core.contract import ApiError
from neocloud.core.readers import ServiceRegistry
from neocloud.core.service import Call
from neocloud.core.usage import CapacityUses
from neocloud.engines.base import Accelerator
from neocloud.engines.fake import FakeEngine
from neocloud.services.compute.api.lookups import (
    get_platform_by_name,
    list_by_disk,
    list_platforms,
    list_public,
)
from neocloud.services.compute.api.maintenance import list_active
from neocloud.services.compute.public import platforms

ListRequest = contract.message("nebius.compute.v1.ListPlatformsRequest")
GetByNameRequest = contract.message("nebius.common.v1.GetByNameRequest")
H100 = tuple(Accelerator("nvidia", "NVIDIA H100 80GB HBM3", 81559, index) for index in range(8))


def call(engine: FakeEngine) -> Call:
    provided = ServiceRegistry().add(CapacityUses, CapacityUses())
    around = SimpleNamespace(engine=engine, provided=provided, store=NothingStored())
    return Call(None, "r", {}, around)  # pyright: ignore[reportArgumentType]


class NothingStored:
    """A store without resources, which nothing asks for where no service holds capacity."""

    async def read(self, work: Callable[[Any], Any]) -> Any:
        return work(None)


SMALL = call(FakeEngine(cpus=2, memory_mib=24 * 1024))
LARGE = call(FakeEngine(cpus=192, memory_mib=2048 * 1024, accelerators=H100))


async def platform(name: str, on: Call):
    return await get_platform_by_name(on, GetByNameRequest(parent_id="project-e00a", name=name))


async def test_all_platforms_are_listed_with_their_presets() -> None:
    answer = await list_platforms(SMALL, ListRequest(parent_id="project-e00a", page_size=999))
    assert [item.metadata.name for item in answer.items] == list(platforms())
    (l40s,) = [item for item in answer.items if item.metadata.name == "gpu-l40s-d"]
    (preset,) = [preset for preset in l40s.spec.presets if preset.name == "2gpu-64vcpu-384gb"]
    resources = preset.resources
    assert (resources.gpu_count, resources.vcpu_count, resources.memory_gibibytes) == (2, 64, 384)
    assert l40s.spec.gpu_memory_gigabytes == 48
    assert all(contract.is_id(item.metadata.id) for item in answer.items)


async def test_the_list_comes_in_pages() -> None:
    names, token = [], ""
    while True:
        request = ListRequest(parent_id="project-e00a", page_size=3, page_token=token)
        answer = await list_platforms(SMALL, request)
        names += [item.metadata.name for item in answer.items]
        token = answer.next_page_token
        if not token:
            break
    assert names == list(platforms())


@pytest.mark.parametrize(
    ("handler", "request_name"),
    [
        (list_platforms, "ListPlatformsRequest"),
        (list_active, "ListMaintenanceEventsRequest"),
        (list_public, "ListPublicRequest"),
        (list_by_disk, "ListDiskSnapshotsByDiskRequest"),
    ],
)
async def test_a_negative_page_is_refused(handler, request_name: str) -> None:
    request = contract.message(f"nebius.compute.v1.{request_name}")(page_size=-1)
    with pytest.raises(ApiError, match="page_size is -1; must be 1 to"):
        await handler(SMALL, request)


async def test_each_preset_says_whether_this_machine_can_give_it() -> None:
    labels = (await platform("cpu-local", SMALL)).metadata.labels
    assert labels["neocloud.dev/fits-this-machine"] == "yes"
    assert labels["neocloud.dev/preset.1vcpu-4gb"] == "fits"
    assert labels["neocloud.dev/preset.8vcpu-32gb"] == "1 x 32 = 32 GiB of memory, 24 GiB are available"
    labels = (await platform("gpu-h100-sxm", SMALL)).metadata.labels
    assert labels["neocloud.dev/fits-this-machine"] == "no"
    assert "8 GPUs of type h100, 0 are available" in labels["neocloud.dev/preset.8gpu-128vcpu-1600gb"]


async def test_a_gpu_server_gives_the_platform_of_its_gpus() -> None:
    labels = (await platform("gpu-h100-sxm", LARGE)).metadata.labels
    assert labels["neocloud.dev/preset.8gpu-128vcpu-1600gb"] == "fits"
    assert (await platform("gpu-h200-sxm", LARGE)).metadata.labels["neocloud.dev/fits-this-machine"] == "no"
    assert (await platform("gpu-local", LARGE)).metadata.labels["neocloud.dev/fits-this-machine"] == "yes"


async def test_an_unknown_platform_is_not_found() -> None:
    with pytest.raises(ApiError, match="no platform 'gpu-b300'"):
        await platform("gpu-b300", SMALL)
