"""Folders of the shared root that each worker has for itself: what is refused, and what jobs keep."""

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec, MountedFilesystem, NodeSet, Submount

from neocloud.engines.base import Reference
from neocloud.services.slurm.submount_rules import submount_memory_violations, submount_violations
from neocloud.services.slurm.types import MODELS_MOUNT_PATH, memory_of_submounts
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

shared = pytest.mark.asyncio(loop_scope="module")


def spec(*paths: str, filesystem: str = "") -> ClusterSpec:
    mounted = [MountedFilesystem(filesystem_id="x", mount_path=filesystem)] if filesystem else []
    return ClusterSpec(
        submounts=[Submount(mount_path=path, size_gibibytes=1) for path in paths], filesystems=mounted
    )


@pytest.mark.parametrize("path", ["/scratch", "/local/nvme0", "/mnt/data", "/data-1", "/srv", "/homes"])
def test_folders_of_ones_own_are_taken(path: str):
    assert not list(submount_violations(spec(path, "/other")))


@pytest.mark.parametrize(
    "path",
    [
        *("/etc", "/etc/ssh", "/usr/bin", "/lib64", "/libexec", "/dev/shm", "/tmp", "/var/tmp", "/run/slurm"),
        *("/proc/self", "/jail", "/opt/slurm", "/opt/models", "/boot", "/sbin"),
        *("/home", "/home/alice", "/home/alice/.ssh", "/home/shared/x", "/root", "/root/.ssh", "/lost+found"),
    ],
)
def test_no_submount_hides_the_system_or_what_users_have(path: str):
    (found,) = submount_violations(spec(path))
    assert found.field == "spec.submounts[0].mount_path" and "/scratch" in found.message


@pytest.mark.parametrize(
    ("paths", "filesystem"),
    [
        (("/a", "/a"), ""),
        (("/a", "/a/b"), ""),
        (("/a/b", "/a"), ""),
        (("/data",), "/data"),
        (("/data/x",), "/data"),
        (("/data",), "/data/x"),
    ],
)
def test_no_mount_lies_in_another(paths: tuple[str, ...], filesystem: str):
    (found,) = submount_violations(spec(*paths, filesystem=filesystem))
    assert "one inside the other" in found.message
    assert not list(submount_violations(spec("/data", filesystem="/database")))


def in_memory(gib: int) -> ClusterSpec:
    sets = [NodeSet(name="worker", platform="cpu-local", preset="1vcpu-4gb", count=1)]
    memory = Submount(mount_path="/fast", size_gibibytes=gib, in_memory=True)
    on_disk = Submount(mount_path="/scratch", size_gibibytes=4000)
    return ClusterSpec(node_sets=sets, submounts=[memory, on_disk])


def test_submounts_take_at_most_half_of_a_workers_memory():
    assert memory_of_submounts(in_memory(2)) == 2048
    assert not submount_memory_violations(in_memory(2))
    (found,) = submount_memory_violations(in_memory(3))
    assert "3 GiB" in found.message and "4 GiB" in found.message


@pytest_asyncio.fixture(scope="module")
async def cloud(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path_factory.mktemp("submounts")) as running:
        yield running


WORKERS = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 2}


@shared
async def test_jobs_have_the_memory_that_submounts_leave(cloud: FakeCloud):
    submounts = [
        {"mount_path": "/scratch", "size_gibibytes": 10},
        {"mount_path": "/fast", "size_gibibytes": 1, "in_memory": True},
    ]
    cluster = await cloud.create("Cluster", "lab", {"node_sets": [WORKERS], "submounts": submounts})
    await cloud.until(cluster, "READY")
    pod = cloud.world.pods[Reference("Pod", cluster, "worker-1")].manifest
    (container,) = pod.containers
    variables = {each.name: each.value for each in container.env or ()}
    assert "RealMemory=3072 " in (variables["NODE_CONF"] or "")
    assert variables["NODE_FILESYSTEMS"] == f"/scratch /fast {MODELS_MOUNT_PATH}"


@pytest.mark.parametrize(
    "submount",
    [
        {"mount_path": "scratch", "size_gibibytes": 1},
        {"mount_path": "/scratch/../etc", "size_gibibytes": 1},
        {"mount_path": "/scratch/", "size_gibibytes": 1},
        {"mount_path": "//scratch", "size_gibibytes": 1},
        {"mount_path": "/a b", "size_gibibytes": 1},
        {"mount_path": "/$(id)", "size_gibibytes": 1},
        {"mount_path": "/scratch", "size_gibibytes": 0},
        {"mount_path": "/scratch", "size_gibibytes": -1},
        {"mount_path": "/scratch", "size_gibibytes": 4097},
        {"mount_path": "/" + "a" * 255, "size_gibibytes": 1},
        {"mount_path": "/usr/lib", "size_gibibytes": 1},
    ],
)
@shared
async def test_what_is_no_submount_is_refused_at_creation(cloud: FakeCloud, submount: dict[str, object]):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cloud.create("Cluster", "other", {"node_sets": [WORKERS], "submounts": [submount]})
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
