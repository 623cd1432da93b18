"""The limit of a container's writes beside its volumes: attacks, restarts, crashes."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Pod, read_manifest
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.storage.container_disks import ContainerDisks, promised_bytes
from neocloud.engines.podman.storage.mounts import mounts_below, remove_tree, unmount
from neocloud.engines.podman.storage.sized_filesystems import IMAGE
from neocloud.testing.engine_space import Space
from neocloud.testing.waiting import until
from tests.fast.engines.podman.conftest import PodmanBench
from tests.fast.engines.podman.test_sized_filesystems import MEBIBYTE, loop_devices, write

SIZE_MIB = 24
IMAGE_NAME = "localhost/neocloud/root:1-2"
KERNEL_ONLY = {"proc", "sysfs", "cgroup", "cgroup2", "tmpfs", "devtmpfs", "devpts", "mqueue"}
"""File systems that have no disk below them."""


@pytest_asyncio.fixture(loop_scope="module")
async def space(bench: PodmanBench) -> AsyncIterator[Space]:
    space = Space(bench.engine, bench.root_filesystem)
    await space.apply(space.namespace())
    yield space
    await bench.engine.remove([Reference("Namespace", space.name, space.name)])
    layout = bench.engine.layout
    assert mounts_below(layout.disks / space.name) == []
    assert not [file for file in loop_devices(layout.home) if f"/{space.name}/" in file]


def limited(space: Space, name: str, size: str = f"{SIZE_MIB}Mi", **spec: Any) -> dict[str, Any]:
    return space.pod(name, container={"resources": {"limits": {"ephemeral-storage": size}}}, **spec)


def stored(layout: Layout) -> int:
    """Return how many bytes the files of the engine take of the host's file system."""
    device, total = layout.home.stat().st_dev, 0
    for root in (layout.home, layout.run):
        for folder, names, files in os.walk(root):
            names[:] = [n for n in names if Path(folder, n).lstat().st_dev == device]
            names[:] = [n for n in names if Path(folder, n) != layout.podman_view]
            found = (Path(folder, name).lstat() for name in files)
            total += sum(each.st_blocks * 512 for each in found)
    return total


async def fill(space: Space, pod: str, path: str) -> None:
    """Write twice the size to a path; it must fail for want of space, or since the file is read-only."""
    command = ["busybox", "dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={2 * SIZE_MIB}"]
    done = await space.run(pod, *command)
    said = done.stderr.decode()
    assert done.exit_code == 1, path
    assert "No space left" in said or "Read-only" in said, (path, said)


in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("host_users", [True, False])
@in_one_loop
async def test_a_container_cannot_write_more_than_its_size_anywhere(
    space: Space, bench: PodmanBench, host_users: bool
) -> None:
    await space.apply(limited(space, "attacker", hostUsers=host_users), limited(space, "other"))
    before = stored(bench.engine.layout)
    await space.run("attacker", "busybox", "mkdir", "-p", "/var")
    for path in ("/file", "/tmp/file", "/var/file", "/etc/hostname", "/run/.containerenv", "/etc/hosts"):
        await fill(space, "attacker", path)
    assert stored(bench.engine.layout) - before <= (SIZE_MIB + 1) * MEBIBYTE
    table = (await space.read("attacker", "/proc/self/mountinfo")).decode().splitlines()
    mounts = [line.split() for line in table]
    kinds = {fields[4]: fields[fields.index("-") + 1] for fields in mounts}
    assert next("nodev" in fields[5].split(",") for fields in mounts if fields[4] == "/")
    writable = {fields[4] for fields in mounts if "rw" in fields[5].split(",")}
    assert {path for path in writable if kinds[path] not in KERNEL_ONLY} == {"/"}
    # A set-uid program of a container must not be one for the host's users.
    assert (bench.engine.layout.disks / space.name).stat().st_mode & 0o077 == 0
    # Nobody else is full, and its own program continues, also after a restart.
    assert (await space.run("other", "tee", "/tmp/file", stdin=bytes(MEBIBYTE))).exit_code == 0
    await space.engine.restart(space.reference("Pod", "attacker"))
    assert (await space.run("attacker", "busybox", "rm", "/file", "/tmp/file")).exit_code == 0
    assert (await space.run("attacker", "tee", "/tmp/file", stdin=b"x")).exit_code == 0
    assert await space.read("attacker", "/etc/hostname") == b"attacker\n"


@pytest.mark.parametrize("host_users", [True, False])
@in_one_loop
async def test_the_layer_lasts_as_long_as_the_container(
    space: Space, bench: PodmanBench, host_users: bool
) -> None:
    """Through a restart by Podman, `neo down` and a new server; a new pod begins with the image."""
    pod = limited(space, "one", hostUsers=host_users)
    await space.apply(pod)
    await space.run(
        "one", "sh", "-c", "echo kept >/tmp/kept; busybox chown 7:8 /tmp/kept; busybox rm /bin/id"
    )
    await space.kill("one")

    async def is_back() -> bool:
        found = await space.seen("one")
        return found is not None and found.ready and found.restart_count > 0

    await until(is_back)
    assert await space.read("one", "/tmp/kept") == b"kept\n"
    await bench.engine.shutdown()
    assert mounts_below(bench.engine.layout.run) == []
    assert loop_devices(bench.engine.layout.home) == []
    await space.apply(space.namespace(), pod)
    assert await space.read("one", "/tmp/kept") == b"kept\n"
    owner = await space.run("one", "stat", "-c", "%u:%g %a", "/tmp/kept", "/")
    assert owner.stdout.split() == [b"7:8", b"644", b"0:0", b"755"]
    assert (bench.home / "images/root/1-2/rootfs/bin/id").is_symlink()
    await fill(space, "one", "/tmp/file")
    await space.remove("Pod", "one")
    await space.apply(pod)
    assert await space.read("one", "/tmp/kept") == b""


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    layout = Layout.of(tmp_path)
    layout.run.mkdir(mode=0o700)
    yield layout
    for point in mounts_below(layout.run):
        unmount(point)
    remove_tree(layout.run)
    assert loop_devices(layout.home) == []


def started(layout: Layout) -> ContainerDisks:
    """The disks of a server that has just started."""
    disks = ContainerDisks(layout)
    disks.are_enforced = True
    return disks


def described(*containers: dict[str, Any]) -> Pod:
    named = [
        {"image": IMAGE_NAME, "resources": {"limits": {"ephemeral-storage": "20Mi"}}, **c} for c in containers
    ]
    metadata = {"name": "one", "namespace": "space"}
    pod = read_manifest(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": named}}
    )
    assert isinstance(pod, Pod)
    return pod


def test_what_a_killed_server_left_is_replaced(layout: Layout, busybox_root: Path) -> None:
    """Killed while the file was made, and between its mounts and the start of the container."""
    pod, roots = described({"name": "main"}, {"name": "side"}), {IMAGE_NAME: busybox_root}
    folder = layout.pod(pod.reference) / "disks"
    (folder / "main").mkdir(parents=True)
    (folder / "main" / f"{IMAGE}.new").write_bytes(b"half of a file system")
    started(layout).create(pod, roots)
    first = started(layout).mount(pod, roots, 0)
    (first["main"] / "left").write_text("left")
    disks = started(layout)
    disks.create(pod, roots)
    found = disks.mount(pod, roots, 0)
    assert found == disks.mount(pod, roots, 0) == first
    assert not (found["main"] / "left").exists()
    with pytest.raises(OSError, match="No space left"):
        write(found["main"] / "file", 21)
    write(found["side"] / "file", 10)
    assert (folder / "main" / IMAGE).stat().st_blocks * 512 <= 20 * MEBIBYTE
    assert promised_bytes(layout) == 40 * MEBIBYTE
    disks.remove(pod.reference)
    assert promised_bytes(layout) == 0
    assert mounts_below(layout.run) == [] and not folder.exists()


def test_containers_without_something_to_hold_have_no_disk(layout: Layout, busybox_root: Path) -> None:
    pod, roots = (
        described(
            {"name": "unlimited", "resources": {}},
            {"name": "read-only", "securityContext": {"readOnlyRootFilesystem": True}},
            {"name": "stored", "image": "busybox"},
        ),
        {IMAGE_NAME: busybox_root},
    )
    disks = started(layout)
    disks.create(pod, roots)
    assert disks.mount(pod, roots, 0) == {}
    without = ContainerDisks(layout)  # on a host without loop devices
    limited_pod = described({"name": "main"})
    without.create(limited_pod, roots)
    assert without.mount(limited_pod, roots, 0) == {}
