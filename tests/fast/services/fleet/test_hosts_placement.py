"""While hosts are drained nothing new is placed, running workloads continue, and accepted ones wait."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from nebius.aio.service_error import RequestError
from neocloud.messages.neocloud.inference.v1 import Replica

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.readers import ServiceRegistry
from neocloud.emulator.fakes import FakeModelServerClient, FakeSlurm
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services.fleet import HostNodes, ensure_host_pool
from neocloud.services.inference.reconcile.model_server import ModelServerClient
from neocloud.services.slurm.access import SlurmFactory
from neocloud.testing.waiting import until
from tests import control_plane
from tests.fast.services.ai.cloud import cloud_in_process
from tests.fast.services.ai.test_endpoints import create as create_endpoint
from tests.fast.services.ai.test_endpoints import spec as endpoint_spec
from tests.fast.services.ai.test_jobs import create as create_workload
from tests.fast.services.compute.cloud import boot_disk, instance_spec, machine_cloud
from tests.fast.services.fleet.hosts import FakeHosts, is_known, set_drained, written_as_drained
from tests.fast.services.inference.cloud import POD_SHAPE, FakeCloud, write_model
from tests.fast.services.slurm.cloud import FakeCloud as SlurmCloud
from tests.fast.services.tuning.cloud import add_model, create_job
from tests.fast.services.tuning.cloud import fake_cloud as tuning_cloud

NODES = "neocloud.fleet.v1.NodeService"


def hosts_of(folder: Path) -> ServiceRegistry:
    return ServiceRegistry().add(HostNodes, FakeHosts(folder / "agents"))


async def test_a_machine_is_refused_or_waits_and_one_that_runs_goes_on(tmp_path: Path) -> None:
    async with machine_cloud(tmp_path) as cloud:
        store, parent = cloud.running.store, cloud.tenant_id
        running = await cloud.machine("one")
        stopped = await cloud.machine("two", boot_disk=boot_disk("two-boot"))
        await cloud.call("InstanceService/Stop", id=stopped.metadata.id)
        await cloud.until(stopped.metadata.id, "STOPPED")
        await set_drained(store, "gpu-1", parent=parent)
        pod = cloud.pod(running.metadata.id)
        metadata = {"parent_id": cloud.project_id, "name": "three"}
        spec = instance_spec(boot_disk=boot_disk("three-boot"))
        refused = await cloud.refusal("InstanceService/Create", metadata=metadata, spec=spec)
        assert refused.code is Code.RESOURCE_EXHAUSTED and "new firmware" in refused.message
        refused = await cloud.refusal("InstanceService/Start", id=stopped.metadata.id)
        assert "nothing new is started" in refused.message
        await set_drained(store, "gpu-1", hosts=("gpu-1", "gpu-2"), parent=parent)
        three = await cloud.create("Instance", "three", spec)  # another host takes work
        await cloud.until(three, "RUNNING")
        assert cloud.pod(running.metadata.id) is pod
        assert (await cloud.get("Instance", running.metadata.id)).status.state == running.status.state


async def says_that_it_waits(cloud: control_plane.Cloud, made: str) -> bool:
    rows = await cloud.running.store.read(lambda tx: tx.list_operations(resource_id=made)[0])
    return any("started once a host takes new work" in each.progress for each in rows)


async def refused_then_waiting(
    cloud: control_plane.Cloud, create: Callable[[str], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return the id of what was accepted just before its host was drained, once the drain has ended. Before,
    it waited without a pod, and another one was refused."""
    store = cloud.running.store
    await ensure_host_pool(store, SystemClock())
    await until(lambda: is_known(store, "gpu-1"), seconds=20)
    await cloud.call(f"{NODES}/Drain", id="gpu-1", reason="new firmware")
    await until(lambda: written_as_drained(store, "gpu-1"), seconds=20)
    with pytest.raises((grpc.aio.AioRpcError, RequestError), match="new firmware"):
        await create("refused")
    monkeypatch.setattr("neocloud.services.compute.hosts.RETRY_SECONDS", 0.1)
    monkeypatch.setattr("neocloud.services.compute.public._refuse_on_drained_hosts", lambda *_: None)
    made = await create("accepted")

    await until(lambda: says_that_it_waits(cloud, made), seconds=20)
    assert not [*cloud.engine.world.pods_of(made)]
    await cloud.call(f"{NODES}/Release", id="gpu-1")
    return made


async def test_a_machine_that_was_accepted_just_before_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.services.compute.hosts.RETRY_SECONDS", 0.1)
    async with machine_cloud(tmp_path) as cloud:
        store, parent = cloud.running.store, cloud.tenant_id
        await set_drained(store, "gpu-1", parent=parent)
        monkeypatch.setattr("neocloud.services.compute.public._refuse_on_drained_hosts", lambda *_: None)
        made = await cloud.create("Instance", "one", instance_spec())
        await until(lambda: says_that_it_waits(cloud, made), seconds=20)
        assert cloud.pod(made) is None
        await set_drained(store, parent=parent)
        await cloud.until(made, "RUNNING")


async def test_a_workload_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cloud_in_process(tmp_path, overrides=hosts_of(tmp_path)) as cloud:

        async def create(name: str) -> str:
            return await create_workload(cloud, name, container_command="true")

        await cloud.until(await refused_then_waiting(cloud, create, monkeypatch), "COMPLETED")


async def test_an_endpoint_whose_pod_is_lost_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neocloud.services.fleet.node_agents.ASK_AGAIN", 0.2)
    monkeypatch.setattr("neocloud.services.fleet.reconcile.hosts.RESYNC_SECONDS", 0.2)
    engine = FakeEngine(cpus=8, memory_mib=32 * 1024)
    async with cloud_in_process(tmp_path, engine, overrides=hosts_of(tmp_path)) as cloud:
        made = await create_endpoint(cloud, endpoint_spec())
        await cloud.until(made, "RUNNING")
        store = cloud.running.store
        await ensure_host_pool(store, SystemClock())
        await until(lambda: is_known(store, "gpu-1"), seconds=20)
        await cloud.call(f"{NODES}/Drain", id="gpu-1", reason="new firmware")
        await until(lambda: written_as_drained(store, "gpu-1"), seconds=20)
    assert engine.world.take(cloud.reference(made)) is not None, "while the control plane is down"
    async with cloud_in_process(tmp_path, engine, overrides=hosts_of(tmp_path)) as cloud:
        await until(lambda: [*engine.world.pods_of(made)], seconds=20)
        assert await written_as_drained(cloud.running.store, "gpu-1")


async def test_fine_tuning_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tuning_cloud(tmp_path, others=hosts_of(tmp_path)) as cloud:
        model = await add_model(cloud)
        made = await refused_then_waiting(cloud, lambda name: create_job(cloud, model), monkeypatch)
        await until(lambda: cloud.pod(made) is not None, seconds=20)


async def test_a_cluster_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 1}
    world = FakeWorld()
    slurm = FakeSlurm(world)
    async with control_plane.cloud_in_process(
        tmp_path,
        FakeEngine(world, responder=slurm.respond),
        overrides=hosts_of(tmp_path).add(SlurmFactory, slurm.connect),
        images={"slurm": {"name": "slurm"}},
    ) as running:
        cloud = SlurmCloud(**vars(running), slurm=slurm)

        async def create(name: str) -> str:
            return await cloud.create("Cluster", name, {"node_sets": [workers]})

        made = await refused_then_waiting(cloud, create, monkeypatch)
        await until(lambda: [*cloud.engine.world.pods_of(made)], seconds=20)


async def test_a_new_replica_waits_and_the_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.services.fleet.node_agents.ASK_AGAIN", 0.2)
    monkeypatch.setattr("neocloud.services.fleet.reconcile.hosts.RESYNC_SECONDS", 0.2)
    hosts, engines = FakeHosts(tmp_path / "agents"), FakeModelServerClient()
    overrides = ServiceRegistry().add(ModelServerClient, engines).add(HostNodes, hosts)
    home = tmp_path / "home"
    async with control_plane.cloud_in_process(
        home, overrides=overrides, images={"jail": {"name": "jail"}}, model_folders=(home / "opened",)
    ) as running:
        cloud = FakeCloud(**vars(running), engines=engines)
        await ensure_host_pool(cloud.running.store, SystemClock())

        async def spec_of(name: str) -> dict[str, Any]:
            folder = write_model(cloud.models / name)
            model = await cloud.create("Model", name, {"source": {"folder": str(folder)}})
            await cloud.until(model, "READY")
            return {"model_id": model, **POD_SHAPE, "scaling": {"min_replicas": 1, "max_replicas": 1}}

        spec = await spec_of("more")
        first = await cloud.create("Deployment", "bank", await spec_of("bank"))
        await cloud.until(first, "READY")

        async def is_in_service() -> bool:
            found = await cloud.call(f"{NODES}/List")
            return any(each.phase == "in_service" for each in found.items)

        await until(is_in_service, seconds=30)
        await cloud.call(f"{NODES}/Drain", id="gpu-1", reason="new firmware")
        await until(lambda: written_as_drained(cloud.running.store, "gpu-1"), seconds=30)
        metadata = {"parent_id": cloud.project_id, "name": "more"}
        refused = await cloud.refusal("DeploymentService/Create", metadata=metadata, spec=spec)
        assert refused.code is Code.RESOURCE_EXHAUSTED and "new firmware" in refused.message
        monkeypatch.setattr("neocloud.services.compute.public._refuse_on_drained_hosts", lambda *_: None)
        second = await cloud.create("Deployment", "more", spec)  # accepted just before the drain
        waiting = await cloud.when(second, lambda each: "new firmware" in each.status.message)
        assert [each.state for each in waiting.status.replicas] == [Replica.PENDING]
        assert cloud.pods(second) == [] and cloud.pods(first) == ["replica-0"]
        cloud.engine.kill(Reference("Pod", first, "replica-0"))
        await cloud.when(first, lambda each: each.status.replicas and each.status.replicas[0].restarts)
        await cloud.until(first, "READY")  # what runs continues, also when it is restarted
        await cloud.call(f"{NODES}/Release", id="gpu-1")
        await cloud.until(second, "READY")
