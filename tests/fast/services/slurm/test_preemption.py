"""Clusters, jobs and deployments share the machine with instances, and preempt those that are preemptible."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.core.readers import ServiceRegistry
from neocloud.emulator.fake_machines import FakeMachines
from neocloud.emulator.fakes import FakeSlurm
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services.slurm.access import SlurmFactory
from tests import control_plane
from tests.control_plane import Cloud
from tests.fast.services.compute.cloud import FAMILY, IMAGE_BYTES, boot_disk, instance_spec

SPOT = {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}
DISK = {"type": "NETWORK_SSD", "size_bytes": 10 << 30}
IMAGE = "localhost/neocloud/tool:1"
JOB = {"image": IMAGE, "platform": "cpu-local", "preset": "1vcpu-8gb", "disk": DISK}


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    """A machine of 12 GiB."""
    world = FakeWorld()
    engine = FakeEngine(world, responder=FakeMachines(world).respond, memory_mib=12 * 1024)
    machine = {"name": FAMILY, "family": FAMILY, "title": "Test", "minimum_bytes": IMAGE_BYTES}
    async with control_plane.cloud_in_process(
        tmp_path,
        engine,
        overrides=ServiceRegistry().add(SlurmFactory, FakeSlurm(world).connect),
        images={
            "slurm": {"name": "slurm"},
            "launcher": {"name": "launcher:test"},
            "tool": {"name": IMAGE},
            f"machine/{FAMILY}": machine,
        },
        starting_seconds=0,
    ) as running:
        yield running


async def create(cloud: Cloud, service: str, name: str, spec: Any) -> str:
    metadata = {"parent_id": cloud.project_id, "name": name}
    return (await cloud.call(f"{service}/Create", metadata=metadata, spec=spec)).resource_id


async def preemptible_machine(cloud: Cloud) -> str:
    subnets = (await cloud.call("nebius.vpc.v1.SubnetService/List", parent_id=cloud.project_id)).items
    interface = {"name": "eth0", "subnet_id": subnets[0].metadata.id, "ip_address": {}}
    resources = {"platform": "cpu-local", "preset": "1vcpu-8gb"}
    content = instance_spec(
        resources=resources, network_interfaces=[interface], boot_disk=boot_disk(), **SPOT
    )
    identifier = await create(cloud, "nebius.compute.v1.InstanceService", "spot", content)
    await cloud.until(identifier, "RUNNING")
    return identifier


async def test_a_cluster_preempts_a_machine_also_when_it_grows(cloud: Cloud) -> None:
    workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 1}
    service = "neocloud.slurm.v1.ClusterService"
    cluster_id = await create(cloud, service, "lab", {"node_sets": [workers]})
    await cloud.until(cluster_id, "READY")
    spot = await preemptible_machine(cloud)
    request = {"metadata": {"id": cluster_id}, "spec": {"node_sets": [{**workers, "count": 2}]}}
    await cloud.call(f"{service}/Update", request)
    await cloud.until(spot, "STOPPED")
    await cloud.when(cluster_id, lambda found: len(found.status.nodes) == 2, "READY")


async def test_the_owner_of_a_preempted_machine_finds_it_in_the_audit_log(cloud: Cloud) -> None:
    spot = await preemptible_machine(cloud)
    workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-8gb", "count": 1}
    await create(cloud, "neocloud.slurm.v1.ClusterService", "lab", {"node_sets": [workers]})
    await cloud.until(spot, "STOPPED")
    now = datetime.now(UTC)
    request = {
        "parent_id": cloud.tenant_id,
        "start": (now - timedelta(hours=1)).isoformat(),
        "end": (now + timedelta(minutes=1)).isoformat(),
        "region": "eu-north1",
        "filter": "action = 'preempt'",
    }
    (event,) = (await cloud.call("nebius.audit.v2.AuditEventService/List", request)).items
    assert (event.resource.metadata.id, event.resource.metadata.name) == (spot, "spot")
    assert "lab" not in str(event)


async def test_what_a_quota_refuses_preempts_nothing(cloud: Cloud) -> None:
    spot = await preemptible_machine(cloud)
    metadata = {"parent_id": cloud.project_id, "name": "slurm.cluster.count"}
    limit = {"limit": 0, "region": "eu-north1"}
    await cloud.call("nebius.quotas.v1.QuotaAllowanceService/Create", metadata=metadata, spec=limit)
    workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-8gb", "count": 1}
    refusal = await cloud.refusal(
        "neocloud.slurm.v1.ClusterService/Create",
        metadata={"parent_id": cloud.project_id, "name": "lab"},
        spec={"node_sets": [workers]},
    )
    assert "slurm.cluster.count" in str(refusal.details) + refusal.message
    row = await cloud.row(spot)
    assert row is not None and row.state == "RUNNING"


async def test_a_job_preempts_a_machine_unless_it_is_preemptible_itself(cloud: Cloud) -> None:
    spot = await preemptible_machine(cloud)
    service = "nebius.ai.v1.JobService"
    metadata = {"parent_id": cloud.project_id, "name": "spot-job"}
    spot_job = {**JOB, "preemptible": True, "pricing_model": {"follows_spot_price": {}}}
    refusal = await cloud.refusal(f"{service}/Create", metadata=metadata, spec=spot_job)
    assert "You asked for" in refusal.message
    job_id = await create(cloud, service, "nightly", {**JOB, "container_command": "true"})
    await cloud.until(job_id, "COMPLETED")
    await cloud.until(spot, "STOPPED")


async def test_a_quota_that_is_exceeded_is_told_before_a_machine_that_is_full(cloud: Cloud) -> None:
    """Nobody makes room for what would be refused in any case."""

    async def refused(preset: str) -> str:
        workers = {"name": "worker", "platform": "cpu-local", "preset": preset, "count": 4}
        refusal = await cloud.refusal(
            "neocloud.slurm.v1.ClusterService/Create",
            metadata={"parent_id": cloud.project_id, "name": "lab"},
            spec={"node_sets": [workers]},
        )
        return refusal.message

    assert "cannot hold" in await refused("1vcpu-8gb")
    metadata = {"parent_id": cloud.project_id, "name": "slurm.cluster.count"}
    limit = {"limit": 0, "region": "eu-north1"}
    await cloud.call("nebius.quotas.v1.QuotaAllowanceService/Create", metadata=metadata, spec=limit)
    message = await refused("1vcpu-8gb")
    assert "slurm.cluster.count" in message and "cannot hold" not in message
