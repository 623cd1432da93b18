"""Filesystems that jobs share with machines: CMP-13."""

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from neocloud.core import contract
from neocloud.engines.base import Reference
from neocloud.services.slurm.types import MODELS_MOUNT_PATH
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

shared = pytest.mark.asyncio(loop_scope="module")
FILESYSTEMS = "nebius.compute.v1.FilesystemService"


@pytest.fixture
async def cloud(tmp_path):
    async with fake_cloud(tmp_path) as running:
        yield running


@pytest_asyncio.fixture(scope="module")
async def refusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FakeCloud]:
    """A cloud with two filesystems, for requests that it refuses."""
    async with fake_cloud(tmp_path_factory.mktemp("refusing")) as running:
        for name in ("one", "two"):
            await new_filesystem(running, name)
        yield running


async def filesystems(cloud: FakeCloud) -> list[str]:
    return [each.metadata.id for each in (await compute(cloud, "List", parent_id=cloud.project_id)).items[:2]]


async def compute(cloud: FakeCloud, verb: str, **fields: Any) -> Any:
    rpc = contract.method(f"{FILESYSTEMS}/{verb}")
    call = cloud.channel.unary_unary(
        f"/{FILESYSTEMS}/{verb}",
        request_serializer=rpc.input.SerializeToString,
        response_deserializer=rpc.output.FromString,
    )
    metadata = (("authorization", f"Bearer {cloud.token}"),)
    return await call(contract.from_dict(rpc.input, fields), metadata=metadata)


async def new_filesystem(cloud: FakeCloud, name: str = "data") -> str:
    made = await compute(
        cloud,
        "Create",
        metadata={"parent_id": cloud.running.first.project_id, "name": name},
        spec={"type": "NETWORK_SSD", "size_gibibytes": 1},
    )
    return made.resource_id


async def create(cloud: FakeCloud, *mounted: tuple[str, str], name: str = "bank") -> Any:
    fields = {
        "metadata": {"parent_id": cloud.running.first.project_id, "name": name},
        "spec": {
            "node_sets": [{"name": "worker", "platform": "cpu-local", "preset": "1vcpu-1gb", "count": 1}],
            "filesystems": [{"filesystem_id": each, "mount_path": path} for each, path in mounted],
        },
    }
    request = contract.from_dict(contract.message("neocloud.slurm.v1.CreateClusterRequest"), fields)
    operation = await cloud.call("ClusterService/Create", request)
    return await cloud.until(operation.resource_id, "READY")


async def change(cloud: FakeCloud, cluster: Any) -> None:
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata=cluster.metadata, spec=cluster.spec
    )
    request.metadata.resource_version = 0
    await cloud.call("ClusterService/Update", request, headers={"x-resetmask": "spec.filesystems"})


def pod(cloud: FakeCloud, cluster: Any, name: str) -> Any:
    return cloud.world.pods[Reference("Pod", cluster.metadata.id, name)].manifest.to_dict()


def mounted_at(manifest: Any) -> dict[str, str]:
    """Claim to the place in the jail that the image gets; without the folder for models."""
    (container,) = manifest["spec"]["containers"]
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in manifest["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    paths = next(each["value"] for each in container.get("env", []) if each["name"] == "NODE_FILESYSTEMS")
    folders = {mount["mountPath"]: claims.get(mount["name"]) for mount in container["volumeMounts"]}
    return {
        str(folders[f"/run/neocloud/filesystems/{index}"]): path
        for index, path in enumerate(paths.split())
        if path != MODELS_MOUNT_PATH
    }


async def test_login_nodes_and_workers_mount_them_and_the_daemons_do_not(cloud):
    """Also one that is still being made when the cluster is asked for."""
    one, two = await new_filesystem(cloud, "one"), await new_filesystem(cloud, "two")
    cluster = await create(cloud, (one, "/mnt/data"), (two, "/srv"))
    for name in ("login-0", "worker-0"):
        manifest = pod(cloud, cluster, name)
        assert mounted_at(manifest) == {one: "/mnt/data", two: "/srv"}
        claims = json.loads(manifest["metadata"]["annotations"]["neocloud.dev/claims"])
        assert claims == {one: one, two: two}
    for name in ("controller-0", "accounting-0"):
        assert one not in json.dumps(pod(cloud, cluster, name))


async def test_a_filesystem_in_use_stays_until_the_cluster_lets_it_go(cloud):
    filesystem = await new_filesystem(cloud)
    cluster = await create(cloud, (filesystem, "/mnt/data"))
    seen = await compute(cloud, "Get", id=filesystem)
    assert list(seen.status.read_write_attachments) == [cluster.metadata.id]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await compute(cloud, "Delete", id=filesystem)
    assert cluster.metadata.id in str(refused.value.details())
    del cluster.spec.filesystems[:]
    await change(cloud, cluster)
    await compute(cloud, "Delete", id=filesystem)
    await cloud.gone(filesystem)
    assert "neocloud.dev/claims" not in json.dumps(pod(cloud, cluster, "worker-0"))


async def test_a_deleted_cluster_lets_its_filesystems_go(cloud):
    filesystem = await new_filesystem(cloud)
    cluster = await create(cloud, (filesystem, "/mnt/data"))
    delete = contract.message("neocloud.slurm.v1.DeleteClusterRequest")(id=cluster.metadata.id)
    await cloud.call("ClusterService/Delete", delete)
    await cloud.gone(cluster.metadata.id)
    assert await cloud.running.store.read(lambda tx: tx.get(filesystem))
    await compute(cloud, "Delete", id=filesystem)
    await cloud.gone(filesystem)


async def test_one_can_be_added_later(cloud):
    cluster = await create(cloud)
    filesystem = await new_filesystem(cloud)
    cluster.spec.filesystems.add(filesystem_id=filesystem, mount_path="/mnt/data")
    await change(cloud, cluster)
    await until(lambda: "/mnt/data" in json.dumps(pod(cloud, cluster, "worker-0")))
    assert mounted_at(pod(cloud, cluster, "worker-0")) == {filesystem: "/mnt/data"}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "mnt",
        "/",
        "/mnt/../etc",
        "/mnt/",
        "/mnt//x",
        "/mnt/a b",
        "/etc/slurm",
        "/lib64",
        "/opt/slurm",
        "/home",
    ],
)
@shared
async def test_a_path_that_would_break_the_node_is_refused(refusing: FakeCloud, path: str) -> None:
    one, _ = await filesystems(refusing)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await create(refusing, (one, path))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("paths", [("/mnt", "/mnt"), ("/mnt", "/mnt/data"), ("/mnt/data", "/mnt")])
@shared
async def test_two_paths_are_apart(refusing: FakeCloud, paths: tuple[str, str]) -> None:
    one, two = await filesystems(refusing)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await create(refusing, (one, paths[0]), (two, paths[1]))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_paths_that_only_begin_alike_are_apart(cloud):
    one, two = await new_filesystem(cloud, "one"), await new_filesystem(cloud, "two")
    cluster = await create(cloud, (one, "/mnt/data"), (two, "/mnt/data2"))
    assert mounted_at(pod(cloud, cluster, "worker-0")) == {one: "/mnt/data", two: "/mnt/data2"}


@shared
async def test_one_filesystem_is_mounted_once(refusing: FakeCloud) -> None:
    one, _ = await filesystems(refusing)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await create(refusing, (one, "/mnt/a"), (one, "/mnt/b"))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_not_there_or_belongs_to_another_resource_is_refused(cloud):
    with pytest.raises(grpc.aio.AioRpcError):
        await create(cloud, ("computefilesystem-e00nothere", "/mnt/data"))
    shared_root = (await create(cloud)).status.shared_root_filesystem_id
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await create(cloud, (shared_root, "/mnt/data"), name="thief")
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
