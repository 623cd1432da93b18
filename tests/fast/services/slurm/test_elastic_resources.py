"""Resources that elastic node sets take and release: addresses of a subnet and GPUs. The GPUs are made up:
simulated.

The ledger of GPUs and the allocator are those of Podman's engine, around a fake one.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.slurm.backup import RESET, begun_with
from neocloud.core import contract
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine
from neocloud.engines.gpu_ledger import GpuLedger
from neocloud.engines.manifest import Manifest, Pod
from neocloud.engines.podman.containers import Row
from neocloud.engines.podman.gpus.allocator import GpuAllocator
from neocloud.engines.podman.gpus.passthrough import Passthrough
from neocloud.services.slurm.types import CLUSTER
from neocloud.testing.waiting import until
from tests.fast.engines.gpus.machine import Kernel
from tests.fast.engines.gpus.test_allocation import MIXED, Machine, specified
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud
from tests.fast.services.slurm.test_elastic import set_power, workers
from tests.fast.services.slurm.test_subnet import allocations, default_subnet, interfaces

H100 = {"platform": "gpu-h100-sxm", "preset": "1gpu-16vcpu-200gb"}
ELASTIC = {"min_count": 0, "idle_seconds": 60}
UpdateClusterRequest = contract.message("neocloud.slurm.v1.UpdateClusterRequest")


class GpuEngine(FakeEngine):
    """Gives pods the GPUs of `allocator`, and takes them back, where Podman's engine does."""

    allocator: GpuAllocator

    async def apply(self, objects: Sequence[Manifest]) -> bool:
        has_changed = False
        for manifest in objects:
            if isinstance(manifest, Pod):
                async with self.allocator.reserve(manifest, self.rows):
                    has_changed |= await super().apply([manifest])
            else:
                await super().apply([manifest])
        return has_changed

    async def remove(self, references: Sequence[Reference]) -> None:
        pods = [pod.manifest for each in references if (pod := self.world.pods.get(each))]
        await super().remove(references)
        for pod in pods:
            await self.allocator.release(pod)

    async def rows(self) -> Sequence[Row]:
        return [
            {
                "Id": each.name,
                "State": "running",
                "Pid": 1,
                "StartedAt": 1,
                "ExitCode": 0,
                "Labels": {"neocloud.namespace": each.namespace, "neocloud.pod": each.name},
            }
            for each in self.world.pods
        ]


@asynccontextmanager
async def cloud_with_gpus(home: Path) -> AsyncIterator[FakeCloud]:
    """A machine with two H100 and two L40S."""
    kernel = Kernel(home / "root")
    folder = specified(home / "cdi", range(4))
    machine, passthrough = Machine(kernel, MIXED), Passthrough(kernel.pci, home / "gpus.json")
    allocator = GpuAllocator(machine, passthrough, cdi_folders=[folder])

    def engine(*arguments: Any, **options: Any) -> FakeEngine:
        made = GpuEngine(*arguments, **options, accelerators=MIXED)
        made.allocator = allocator
        return made

    async with fake_cloud(home / "cloud", engine=engine) as cloud:
        await allocator.keep_in(GpuLedger(cloud.running.store.write), cloud.engine.rows)
        yield cloud


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[FakeCloud]:
    async with cloud_with_gpus(tmp_path) as running:
        yield running


async def with_gpus(cloud: FakeCloud) -> set[str]:
    """The pods that have GPUs by the ledger."""
    return {
        holder.rpartition("/")[2]
        for holder in (await GpuLedger(cloud.running.store.write).holders()).values()
    }


async def elastic_cluster(cloud: FakeCloud, **node_set: Any) -> Any:
    workers = {"name": "worker", "count": 2, "elastic": ELASTIC, **H100, **node_set}
    spec = {"node_sets": [workers], "subnet_id": (await default_subnet(cloud)).id}
    return await cloud.until(await cloud.create("Cluster", "bank", spec), "READY")


async def power_up(cloud: FakeCloud, cluster: Any, name: str) -> None:
    await set_power(cloud, cluster, name, "POWERING_UP")
    records = cloud.slurm.records[cluster.metadata.id]
    await until(lambda: records[name].states == {"IDLE"})


async def power_down(cloud: FakeCloud, cluster: Any, name: str) -> None:
    await set_power(cloud, cluster, name, "POWERED_DOWN")
    await until(lambda: name not in workers(cloud, cluster))


async def test_a_worker_takes_gpus_when_it_comes_and_gives_them_back_when_it_goes(cloud: FakeCloud) -> None:
    cluster = await elastic_cluster(cloud)
    assert await with_gpus(cloud) == set()
    for name in ("worker-1", "worker-0"):
        await power_up(cloud, cluster, name)
    assert await with_gpus(cloud) == {"worker-0", "worker-1"}
    await power_down(cloud, cluster, "worker-1")
    await until(lambda: with_gpus(cloud), holds=lambda found: found == {"worker-0"})
    await power_up(cloud, cluster, "worker-1")
    assert await with_gpus(cloud) == {"worker-0", "worker-1"}
    (pod,) = (each for each in cloud.world.pods_of(cluster.metadata.id) if each.reference.name == "worker-1")
    assert pod.manifest.gpu_type == "h100"


async def test_gpus_of_workers_that_are_powered_down_are_not_promised_to_others(cloud: FakeCloud) -> None:
    """Or a job would wait for what another took."""
    await elastic_cluster(cloud)
    wanted = {"name": "worker", "count": 1, **H100}
    parent = {"parent_id": cloud.project_id, "name": "other"}
    error = await cloud.refusal("ClusterService/Create", metadata=parent, spec={"node_sets": [wanted]})
    assert error.code is contract.Code.RESOURCE_EXHAUSTED and "h100" in error.message


async def test_a_worker_on_a_subnet_has_its_address_each_time_it_comes(cloud: FakeCloud) -> None:
    cluster = await elastic_cluster(cloud)
    reserved = await allocations(cloud, cluster)
    assert {"bank-worker-0", "bank-worker-1"} <= set(reserved), "also while they are powered down"
    await power_up(cloud, cluster, "worker-1")
    first = interfaces(cloud, cluster)["worker-1"]
    assert reserved["bank-worker-1"].partition("/")[0] == first["address"]
    await power_down(cloud, cluster, "worker-1")
    await power_up(cloud, cluster, "worker-0")
    await power_up(cloud, cluster, "worker-1")
    assert interfaces(cloud, cluster)["worker-1"] == first
    assert await allocations(cloud, cluster) == reserved


async def test_a_smaller_set_gives_the_address_of_a_powered_down_node_back(cloud: FakeCloud) -> None:
    cluster = await elastic_cluster(cloud)
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.node_sets[0].count = 1
    await cloud.call("ClusterService/Update", request)
    await until(lambda: allocations(cloud, cluster), holds=lambda owned: "bank-worker-1" not in owned)


async def test_a_restored_cluster_has_its_elastic_sets_as_they_were(cloud: FakeCloud) -> None:
    """It follows `neo slurm cluster restore`: first without workers, then as the backup has it."""
    elastic = {"min_count": 1, "idle_seconds": 90}
    saved = (await elastic_cluster(cloud, elastic=elastic)).spec
    kept = contract.from_dict(contract.message("neocloud.slurm.v1.ClusterSpec"), contract.to_dict(saved))
    (lost,) = await cloud.running.store.read(lambda tx: tx.list(CLUSTER)[0])
    await cloud.call("ClusterService/Delete", id=lost.id)
    await cloud.gone(lost.id)
    assert await with_gpus(cloud) == set()

    request = contract.message("neocloud.slurm.v1.CreateClusterRequest")(spec=begun_with(kept))
    request.metadata.parent_id, request.metadata.name = cloud.project_id, "bank"
    created = await cloud.call("ClusterService/Create", request)
    begun = await cloud.until(created.resource_id, "READY")
    assert workers(cloud, begun) == set() and not cloud.slurm.records[created.resource_id]

    update = UpdateClusterRequest(metadata={"id": created.resource_id}, spec=kept)
    await cloud.call("ClusterService/Update", update, headers={"x-resetmask": ",".join(RESET)})
    restored = await cloud.when(created.resource_id, lambda seen: len(seen.status.nodes) == 2, "READY")
    assert restored.spec == saved
    await until(lambda: workers(cloud, restored) == {"worker-0"})
    assert await with_gpus(cloud) == {"worker-0"}
    assert {"bank-worker-0", "bank-worker-1"} <= set(await allocations(cloud, restored))
