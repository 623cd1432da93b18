"""The folder by which workers see models: those made since have it, and none restarts to get it."""

from pathlib import Path
from typing import Any

from neocloud.core import contract
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeWorld
from neocloud.engines.manifest import Mount, Pod
from neocloud.services.slurm.render import MODELS_LABEL
from neocloud.services.slurm.types import MODELS_MOUNT_PATH, models_folder
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

UpdateClusterRequest = contract.message("neocloud.slurm.v1.UpdateClusterRequest")


def worker(world: FakeWorld, cluster_id: str, name: str = "worker-0") -> Any:
    return world.pods[Reference("Pod", cluster_id, name)]


def variables(pod: Any) -> dict[str, str]:
    return {each.name: each.value for each in pod.manifest.containers[0].env}


def as_an_earlier_release_made_it(pod: Any) -> None:
    manifest = pod.manifest.to_dict()
    del manifest["metadata"]["labels"][MODELS_LABEL]
    (container,) = manifest["spec"]["containers"]
    container["env"] = [each for each in container["env"] if each["name"] != "NODE_FILESYSTEMS"]
    for each in container["env"]:
        each["value"] = each["value"].replace(",models", "")
    container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "shown"]
    manifest["spec"]["volumes"] = [each for each in manifest["spec"]["volumes"] if each["name"] != "shown"]
    pod.manifest = Pod.from_dict(manifest)


async def test_workers_see_the_clusters_folder_read_only_and_say_so_to_slurm(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        cluster = await cloud.create_cluster(count=1)
        pod, folder = worker(cloud.world, cluster.metadata.id), models_folder(tmp_path, cluster.metadata.id)
        assert folder.is_dir()
        (volume,) = (each for each in pod.manifest.volumes if each.name == "shown")
        assert volume.host_path.path == str(folder)
        mounts = pod.manifest.containers[0].volume_mounts
        (mount,) = (each for each in mounts if each.name == "shown")
        assert mount == Mount("shown", "/run/neocloud/filesystems/0", read_only=True)
        assert variables(pod)["NODE_FILESYSTEMS"] == MODELS_MOUNT_PATH
        assert variables(pod)["NODE_CONF"].endswith("Feature=worker,models")
        delete = contract.message("neocloud.slurm.v1.DeleteClusterRequest")(id=cluster.metadata.id)
        await cloud.call("ClusterService/Delete", delete)
        await cloud.gone(cluster.metadata.id)
        assert not folder.exists()


async def test_a_worker_of_an_earlier_release_goes_on_without_it(tmp_path: Path) -> None:
    world = FakeWorld()
    async with fake_cloud(tmp_path, world) as cloud:
        cluster = await cloud.create_cluster(count=1)
    as_an_earlier_release_made_it(worker(world, cluster.metadata.id))
    before = worker(world, cluster.metadata.id)
    async with fake_cloud(tmp_path, world) as cloud:
        await grow(cloud, cluster)
        assert worker(world, cluster.metadata.id) is before
        assert MODELS_LABEL not in before.manifest.labels
        assert MODELS_LABEL in worker(world, cluster.metadata.id, "worker-1").manifest.labels


async def grow(cloud: FakeCloud, cluster: Any) -> None:
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.node_sets[0].count = 2
    await cloud.call("ClusterService/Update", request)
    await until(lambda: Reference("Pod", cluster.metadata.id, "worker-1") in cloud.world.pods)
    await cloud.until(cluster.metadata.id, "READY")
