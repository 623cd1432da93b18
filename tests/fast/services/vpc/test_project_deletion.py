"""A project that holds only the network made with it is deleted, and the network with it. IAM-01."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neocloud.core.contract import Code
from neocloud.core.store.protocol import Resource
from tests.control_plane import Cloud, cloud_in_process

PROJECTS = "nebius.iam.v2.ProjectService"
VPC = "nebius.vpc.v1"


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with cloud_in_process(tmp_path) as running:
        yield running


async def new_project(cloud: Cloud) -> tuple[str, list[Resource]]:
    """A project, and what was made with it, once its network is ready."""
    metadata = {"parent_id": cloud.tenant_id, "name": "research"}
    project = (await cloud.call(f"{PROJECTS}/Create", metadata=metadata, spec={})).resource_id
    held = list(await cloud.running.store.read(lambda tx: tx.children(project)))
    network = next(row for row in held if row.kind == f"{VPC}.Network")
    await cloud.until(network.id, "READY")
    return project, held


async def test_an_empty_project_goes_with_its_network(cloud: Cloud) -> None:
    project, held = await new_project(cloud)
    assert {row.kind.rpartition(".")[2] for row in held} >= {"Network", "Subnet", "Pool"}
    operation = await cloud.call(f"{PROJECTS}/Delete", id=project)
    assert operation.status.code == 0
    assert await cloud.row(project) is None
    for row in held:
        await cloud.gone(row.id)
    left = await cloud.running.store.read(lambda tx: tx.children(project))
    assert not left
    again, _ = await new_project(cloud)
    assert again != project, "its name is free again"


@pytest.mark.parametrize(
    ("method", "name", "spec"),
    [
        ("nebius.compute.v1.FilesystemService", "data", {"type": "NETWORK_SSD", "size_gibibytes": 1}),
        (f"{VPC}.NetworkService", "own", {}),
        ("nebius.iam.v1.ServiceAccountService", "robot", {}),
    ],
)
async def test_a_project_that_holds_more_stays_whole(
    cloud: Cloud, method: str, name: str, spec: dict
) -> None:
    project, held = await new_project(cloud)
    metadata = {"parent_id": project, "name": name}
    await cloud.call(f"{method}/Create", metadata=metadata, spec=spec)
    refusal = await cloud.refusal(f"{PROJECTS}/Delete", id=project)
    assert refusal.code is Code.FAILED_PRECONDITION and f"still holds {name}" in refusal.message
    assert "default-network" not in refusal.message
    kept = [await cloud.row(row.id) for row in held]
    assert all(row is not None and row.deleted_at is None for row in kept)


async def test_an_address_in_use_keeps_the_project(cloud: Cloud) -> None:
    project, held = await new_project(cloud)
    subnet = next(row for row in held if row.kind == f"{VPC}.Subnet")
    spec = {"ipv4_private": {"subnet_id": subnet.id}}
    metadata = {"parent_id": project, "name": "address"}
    await cloud.call(f"{VPC}.AllocationService/Create", metadata=metadata, spec=spec)
    refusal = await cloud.refusal(f"{PROJECTS}/Delete", id=project)
    assert "address" in refusal.message
    assert await cloud.row(project) is not None
