"""While hosts are drained nothing new is placed, what runs goes on, and what was accepted waits."""

from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.inference.v1 import Replica

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.readers import ServiceRegistry
from neocloud.emulator.fakes import FakeModelServerClient
from neocloud.engines.base import Reference
from neocloud.services.fleet import HostNodes, ensure_host_pool
from neocloud.services.inference.reconcile.model_server import ModelServerClient
from neocloud.testing.waiting import until
from tests import control_plane
from tests.services.compute.cloud import boot_disk, instance_spec, machine_cloud
from tests.services.fleet.hosts import FakeHosts, set_drained, written_as_drained
from tests.services.inference.cloud import POD_SHAPE, FakeCloud, write_model

NODES = "neocloud.fleet.v1.NodeService"


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


async def test_what_was_accepted_just_before_waits_and_starts_after_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.services.compute.hosts.RETRY_SECONDS", 0.1)
    async with machine_cloud(tmp_path) as cloud:
        store, parent = cloud.running.store, cloud.tenant_id
        await set_drained(store, "gpu-1", parent=parent)
        monkeypatch.setattr("neocloud.services.compute.public._refuse_on_drained_hosts", lambda *_: None)
        made = await cloud.create("Instance", "one", instance_spec())

        async def waits() -> bool:
            rows = await store.read(lambda tx: tx.list_operations(resource_id=made)[0])
            return any("started once a host takes new work" in each.progress for each in rows)

        await until(waits, seconds=20)
        assert cloud.pod(made) is None
        await set_drained(store, parent=parent)
        await cloud.until(made, "RUNNING")


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
        await cloud.until(first, "READY")  # what runs goes on, also when it is restarted
        await cloud.call(f"{NODES}/Release", id="gpu-1")
        await cloud.until(second, "READY")
