"""Pods with `hostUsers: false`: root in one is nobody on the machine; files keep their owners on the disk."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.podman.host import find_host
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.service import render_configuration
from neocloud.engines.podman.storage.mounts import mounts_below
from neocloud.engines.podman.storage.pod_mounts import SIZE, missing_support
from neocloud.testing.engine_space import Space, mounted
from neocloud.testing.waiting import until
from tests.fast.engines.podman.conftest import PodmanBench
from tests.fast.engines.podman.registry import Registry

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = {"apiGroup": "neocloud.dev", "kind": "RootFilesystem", "name": "root"}


@pytest_asyncio.fixture(loop_scope="module")
async def space(bench: PodmanBench) -> AsyncIterator[Space]:
    missing = missing_support(bench.home)
    assert not missing, f"this machine has no user namespaces for pods: {missing}"
    space = Space(bench.engine, bench.image)
    await space.apply(space.namespace())
    yield space
    await bench.engine.remove([Reference("Namespace", space.name, space.name)])


def shifted(pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    pod["spec"] |= {"hostUsers": False, **spec}
    return pod


async def id_map(space: Space, pod: str) -> list[int]:
    return [int(number) for number in (await space.read(pod, "/proc/self/uid_map")).split()]


async def test_root_of_a_pod_is_nobody_here(space: Space) -> None:
    await space.apply(shifted(space.pod("one")), space.pod("plain"))
    inside, first, size = await id_map(space, "one")
    assert (inside, size) == (0, SIZE) and first >= 0x4000_0000
    assert await id_map(space, "plain") == [0, 0, 2**32 - 1]


async def test_a_container_without_the_right_to_another_root_makes_and_enters_no_namespace(
    space: Space,
) -> None:
    """A user namespace of its own would give a program all rights over more of the kernel than it has."""
    given_up = {"securityContext": {"capabilities": {"drop": ["SYS_CHROOT"]}}}
    await space.apply(shifted(space.pod("alone", container=given_up)))
    for words in (["-U", "-r"], ["-n"], ["-m"], ["-p", "-f"], ["-i"], ["-u"]):
        tried = await space.run("alone", "busybox", "unshare", *words, "true")
        assert tried.exit_code != 0 and b"not permitted" in tried.stderr, words
    for words in (["nsenter", "-t", "1", "-u", "true"], ["mount", "-t", "tmpfs", "none", "/tmp"]):
        assert (await space.run("alone", "busybox", *words)).exit_code != 0
    assert b"Seccomp:\t2" in (await space.run("alone", "cat", "/proc/self/status")).stdout
    forks = await space.run("alone", "sh", "-c", "(true) | (true) && sh -c true")
    assert forks.exit_code == 0, "programs run as before"


async def test_a_pod_sees_its_own_limits_and_network_and_not_the_machine_s(space: Space) -> None:
    pod = shifted(space.pod("limited"))
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "500m", "memory": "64Mi"}}
    await space.apply(pod)
    groups = "/sys/fs/cgroup"
    cpu = f"cat {groups}/cpu/cpu.cfs_quota_us || cat {groups}/cpu.max"
    assert (await space.run("limited", "sh", "-c", cpu)).stdout.split()[0] == b"50000"
    cards = (await space.run("limited", "ls", "/sys/class/net")).stdout.split()
    assert set(cards) - {b"bonding_masters"} == {b"eth0", b"lo"}


async def test_files_keep_their_owners_on_the_disk(space: Space, bench: PodmanBench) -> None:
    volume = {"persistentVolumeClaim": {"claimName": "data"}}
    await space.apply(space.claim("data"), shifted(space.pod("writer", **mounted(volume, "/data"))))
    await space.run("writer", "sh", "-c", "echo x >/data/file; busybox chown 7:8 /data/file; echo >/data/own")
    folder = bench.engine.layout.filesystems / space.name / "data" / "data"
    assert [(folder / name).stat().st_uid for name in ("file", "own")] == [7, 0]
    await space.apply(space.pod("reader", **mounted(volume, "/data")))
    assert (await space.run("reader", "stat", "-c", "%u:%g", "/data/file")).stdout.strip() == b"7:8"


async def test_the_owner_of_a_volume_does_not_decide_how_it_is_mounted(space: Space) -> None:
    """A guest or a pod without a user namespace can give a folder to any id, also to those of a cluster."""
    volume = {"persistentVolumeClaim": {"claimName": "given"}}
    await space.apply(space.claim("given"), shifted(space.pod("asked")))
    first = (await id_map(space, "asked"))[1]
    await space.apply(space.pod("attacker", **mounted(volume, "/data")))
    await space.run("attacker", "busybox", "chown", f"{first}:{first}", "/data")
    await space.run("attacker", "tee", "/data/own", stdin=b"x")
    await space.apply(shifted(space.pod("victim", **mounted(volume, "/data"))))
    assert (await space.run("victim", "stat", "-c", "%u", "/data/own")).stdout.strip() == b"0"


async def test_a_shared_root_is_written_to_by_all_pods_of_a_namespace(
    space: Space, bench: PodmanBench
) -> None:
    images = bench.home / "images" / "root"
    (images / "rootfs").unlink(missing_ok=True)
    (images / "rootfs").symlink_to("1-2/rootfs")
    claim = space.claim("shared")
    claim["spec"]["dataSourceRef"] = ROOT
    volume = {"persistentVolumeClaim": {"claimName": "shared"}}
    pods = [shifted(space.pod(name, **mounted(volume, "/jail"))) for name in ("a", "b")]
    await space.apply(claim, *pods)
    await space.run("a", "sh", "-c", "echo x >>/jail/etc/passwd; busybox rm /jail/bin/id; echo >/jail/new")
    assert (await space.read("b", "/jail/etc/passwd")).endswith(b"x\n")
    assert (await space.run("b", "stat", "-c", "%u", "/jail/new")).stdout.strip() == b"0"
    upper = bench.engine.layout.filesystems / space.name / "shared" / "upper"
    assert (upper / "new").stat().st_uid == (upper / "etc/passwd").stat().st_uid == 0
    assert (images / "1-2/rootfs/bin/id").is_symlink()


async def test_secrets_memory_and_several_containers(space: Space) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "key", "namespace": space.name}}
    secret |= {"apiVersion": "v1", "stringData": {"word": "hidden"}}
    pod = space.pod("two", **mounted({"secret": {"secretName": "key", "defaultMode": 0o400}}, "/key"))
    side = {"name": "side", "image": pod["spec"]["containers"][0]["image"], "command": ["sleep", "3600"]}
    side["volumeMounts"] = [{"name": "memory", "mountPath": "/memory"}]
    pod["spec"]["containers"].append(side)
    pod["spec"]["volumes"].append({"name": "memory", "emptyDir": {"medium": "Memory"}})
    await space.apply(secret, shifted(pod))
    assert await space.read("two", "/key/word") == b"hidden"
    done = await space.engine.exec(
        space.reference("Pod", "two"),
        ["sh", "-c", "busybox chmod 1770 /memory && echo x >/memory/file && busybox hostname"],
        container="side",
    )
    assert done.exit_code == 0, done
    assert (await id_map(space, "two"))[1] >= 0x4000_0000


async def test_a_pod_comes_back_with_its_folders(space: Space, bench: PodmanBench) -> None:
    """Podman restarts it after a kill, the engine after a shutdown; nothing is left when it is removed."""
    volume = {"persistentVolumeClaim": {"claimName": "data"}}
    objects = [space.claim("data"), shifted(space.pod("again", **mounted(volume, "/data")))]
    await space.apply(*objects)
    await space.run("again", "tee", "/data/kept", stdin=b"kept")
    await space.kill("again")

    async def is_back() -> bool:
        found = await space.seen("again")
        return found is not None and found.ready and found.restart_count > 0

    await until(is_back)
    assert await space.read("again", "/data/kept") == b"kept"
    await bench.engine.shutdown()
    assert mounts_below(bench.engine.layout.run) == []
    await space.apply(space.namespace(), *objects)
    assert await space.read("again", "/data/kept") == b"kept"
    await space.remove("Pod", "again")
    assert mounts_below(bench.engine.layout.pod_mounts / space.name / "again") == []


async def test_the_home_stays_closed(space: Space, bench: PodmanBench) -> None:
    """Podman opens every folder above what the root of a container has to reach."""
    await space.apply(shifted(space.pod("one")))
    home = bench.engine.layout.home
    assert home.stat().st_mode & 0o077 == 0
    socket = bench.engine.layout.socket
    assert socket.stat().st_mode & 0o022 == 0
    assert os.stat(bench.engine.layout.pod_mounts).st_mode & 0o077 == 0


async def test_a_pod_that_gains_a_user_namespace_is_replaced(space: Space, bench: PodmanBench) -> None:
    """The pod is as after an upgrade: a shared root that pods of both kinds would write to is laid once."""
    volume = {"persistentVolumeClaim": {"claimName": "upgraded"}}
    claim = space.claim("upgraded")
    claim["spec"]["dataSourceRef"] = ROOT
    pods = [space.pod(name, **mounted(volume, "/jail")) for name in ("old-a", "old-b")]
    await space.apply(claim, *pods)
    await space.run("old-a", "tee", "/jail/kept", stdin=b"kept")
    for pod in pods:
        shifted(pod)
    with pytest.raises(EngineError, match="other user ids"):
        await space.apply(pods[0])
    await until(lambda: applied(space, pods))
    assert await space.read("old-b", "/jail/kept") == b"kept"
    assert (await id_map(space, "old-a"))[1] >= 0x4000_0000


async def applied(space: Space, pods: list[dict[str, Any]]) -> bool:
    try:
        await space.apply(*pods)
    except EngineError as error:
        assert "other user ids" in str(error)
        return False
    return True


async def test_a_home_of_an_earlier_version_goes_on_without(tmp_path: Path, busybox_root: Path) -> None:
    """Podman's records hold the paths of its files, and those of such a home lead through a closed folder."""
    layout = Layout.of(tmp_path)
    layout.podman.mkdir()
    for name, content in render_configuration(layout, find_host(), is_in_home=True).items():
        (layout.podman / name).write_text(content)
    tmp_path.chmod(0o700)
    bench = PodmanBench(tmp_path, Registry(tmp_path / "none"))
    space = Space(bench.engine, bench.image)
    try:
        await bench.engine.import_image(busybox_root, bench.image, env={"PATH": "/bin"})
        assert "of a version without them" in (await bench.engine.capabilities()).details["user namespaces"]
        await space.apply(space.namespace(), shifted(space.pod("one")))
        assert await id_map(space, "one") == [0, 0, 2**32 - 1]
        await bench.engine.shutdown()
        await space.apply(space.namespace(), shifted(space.pod("one")))
        assert (await space.until("one", lambda pod: pod.ready)).ip
        assert tmp_path.stat().st_mode & 0o077 == 0
    finally:
        await bench.engine.destroy()
    assert list(tmp_path.iterdir()) == []
