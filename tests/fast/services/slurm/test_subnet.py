"""A cluster whose nodes are on a subnet of the project (VPC-01, VPC-02, SLURM-11)."""

import json
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import grpc
import pytest

from neocloud.core import contract
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

ALLOCATION = "nebius.vpc.v1.Allocation"


@pytest.fixture
async def cloud(tmp_path):
    async with fake_cloud(tmp_path) as running:
        yield running


async def default_subnet(cloud: FakeCloud) -> Any:
    """Its row; the first server of a cloud makes one in each project."""
    rows = await cloud.running.store.read(lambda tx: tx.list("nebius.vpc.v1.Subnet")[0])
    return next(row for row in rows if row.name.startswith("default-subnet"))


async def create(cloud: FakeCloud, subnet_id: str, *, count: int = 2) -> Any:
    request = contract.message("neocloud.slurm.v1.CreateClusterRequest")()
    request.metadata.parent_id = cloud.running.first.project_id
    request.metadata.name = "bank"
    request.spec.subnet_id = subnet_id
    request.spec.node_sets.add(name="worker", platform="cpu-local", preset="1vcpu-4gb", count=count)
    operation = await cloud.call("ClusterService/Create", request)
    return await cloud.until(operation.resource_id, "READY")


async def allocations(cloud: FakeCloud, cluster: Any) -> dict[str, str]:
    rows = await cloud.running.store.read(lambda tx: tx.owned(cluster.metadata.id))
    status = contract.message("nebius.vpc.v1.AllocationStatus")
    return {
        row.name: status.FromString(row.status).details.allocated_cidr
        for row in rows
        if row.kind == ALLOCATION and row.deleted_at is None
    }


def interfaces(cloud: FakeCloud, cluster: Any) -> dict[str, dict[str, Any]]:
    return {
        reference.name: json.loads(
            pod.manifest.to_dict()["metadata"]["annotations"]["neocloud.dev/interface"]
        )
        for reference, pod in cloud.world.pods.items()
        if reference.namespace == cluster.metadata.id
    }


async def test_each_node_has_an_address_of_the_subnet(cloud):
    subnet = await default_subnet(cloud)
    cluster = await create(cloud, subnet.id)
    found = interfaces(cloud, cluster)
    assert set(found) == {"controller-0", "accounting-0", "login-0", "worker-0", "worker-1"}
    status = contract.message("nebius.vpc.v1.SubnetStatus").FromString(subnet.status)
    (cidr,) = status.ipv4_private_cidrs
    addresses = {IPv4Address(interface["address"]) for interface in found.values()}
    assert len(addresses) == len(found)
    assert all(address in IPv4Network(cidr) for address in addresses)
    assert {interface["subnet"] for interface in found.values()} == {subnet.id}
    owned = await allocations(cloud, cluster)
    assert owned["bank-worker-1"].partition("/")[0] == found["worker-1"]["address"]


async def test_a_node_keeps_its_address_and_a_retired_one_gives_it_back(cloud):
    cluster = await create(cloud, (await default_subnet(cloud)).id, count=2)
    before = interfaces(cloud, cluster)["worker-0"]
    update = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata=cluster.metadata, spec=cluster.spec
    )
    update.metadata.resource_version = 0
    update.spec.node_sets[0].count = 1
    await cloud.call("ClusterService/Update", update)
    await until(lambda: set(cloud.slurm.records[cluster.metadata.id]) == {"worker-0"})
    await cloud.until(cluster.metadata.id, "READY")
    await until(lambda: allocations(cloud, cluster), holds=lambda owned: "bank-worker-1" not in owned)
    assert interfaces(cloud, cluster)["worker-0"] == before


async def test_a_deleted_cluster_leaves_no_address_and_no_security_group(cloud):
    cluster = await create(cloud, (await default_subnet(cloud)).id, count=1)
    request = contract.message("neocloud.slurm.v1.DeleteClusterRequest")(id=cluster.metadata.id)
    await cloud.call("ClusterService/Delete", request)
    await cloud.gone(cluster.metadata.id)
    assert not await cloud.running.store.read(lambda tx: tx.owned(cluster.metadata.id))


@pytest.mark.parametrize("subnet_id", ["vpcsubnet-e00nothere", "project-e00nothere"])
async def test_a_subnet_that_is_not_there_is_refused(cloud, subnet_id):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await create(cloud, subnet_id)
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
