"""The view of a guest that breaks out of QEMU or virtiofsd: looked at in a real machine's pod."""

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Namespace, read_manifest
from neocloud.engines.podman.host import find_acceleration
from neocloud.engines.podman.libpod import Libpod
from neocloud.services.compute.render import SharedView
from tests.e2e.images.machines.bench import DISK, MACHINE, MachineBench
from tests.e2e.images.machines.conftest import bench as bench
from tests.e2e.images.machines.conftest import built
from tests.e2e.images.machines.conftest import machine as machine

pytestmark = pytest.mark.asyncio(loop_scope="module")

GIB = 2**30
QEMU_USER = "60700"
SHARED = "computefilesystem-e00shared"
SERVING = {"chown", "dac_override", "fowner", "fsetid", "setgid", "setuid", "setfcap"}
NUMBERS = {"chown": 0, "dac_override": 1, "fowner": 3, "fsetid": 4, "setgid": 6, "setuid": 7, "setfcap": 31}
SET_ID = "cp /bin/busybox /mnt/own; chown 1000:1000 /mnt/own; stat -c %u:%g /mnt/own"


async def start(machine: MachineBench, **changes: Any) -> None:
    built("machine", "--only", "tiny")
    user_data = f"users:\n- name: ubuntu\n  ssh_authorized_keys: ['{machine.public_key()}']\n"
    await machine.start("tiny", GIB, 256, 1, user_data, **changes)


async def processes(machine: MachineBench) -> dict[str, dict[str, str]]:
    """The status of each process of the pod as the kernel shows it, by its name; `pid` is the host's."""

    async def nothing() -> None:
        return

    libpod = Libpod(machine.engine.layout.socket, nothing)
    try:
        found = await libpod.get(f"/containers/{MACHINE}.{MACHINE}.machine/json")
    finally:
        await libpod.close()
    first = psutil.Process(found["State"]["Pid"])
    seen: dict[str, dict[str, str]] = {}
    for process in [first, *first.children(recursive=True)]:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        seen[status["Name"]] = {**status, "pid": str(process.pid)}
    return seen


async def fails(machine: MachineBench, *command: str) -> bool:
    """Return whether the command fails as QEMU's user, without QEMU's own filter."""
    words = [
        "setpriv",
        f"--reuid={QEMU_USER}",
        f"--regid={QEMU_USER}",
        "--clear-groups",
        "--bounding-set=-all",
    ]
    done = await machine.engine.exec(machine.pod, [*words, "--", *command])
    return done.exit_code != 0


def check_qemu(qemu: dict[str, str]) -> None:
    assert qemu["Uid"].split() == qemu["Gid"].split() == [QEMU_USER] * 4
    assert qemu["Groups"] == ""
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(qemu[name], 16) == 0, name
    assert (qemu["NoNewPrivs"], qemu["Seccomp"]) == ("1", "2")
    assert int(qemu["Seccomp_filters"]) >= 2  # Podman's and its own
    opened = {os.readlink(file) for file in Path(f"/proc/{qemu['pid']}/fd").iterdir()}
    assert not any("docker" in name or "neocloud" in name for name in opened)


async def test_qemu_has_no_rights_and_its_machine_works(machine: MachineBench) -> None:
    await start(machine)
    assert "worker-1" in await asyncio.to_thread(machine.ssh, "hostname; sync; echo x > /root/written; sync")
    seen = await processes(machine)
    check_qemu(seen["qemu-system-x86"])
    assert all(each["NoNewPrivs"] == "1" and each["Seccomp"] == "2" for each in seen.values())
    forbidden = 1 << 21 | 1 << 19 | 1 << 16 | 1 << 17 | 1 << 27 | 1 << 18
    """sys_admin, sys_ptrace, sys_module, sys_rawio, mknod and, where nothing is shared, sys_chroot."""
    assert all(int(each["CapBnd"], 16) & forbidden == 0 for each in seen.values())
    key = f"/etc/neocloud/machine/key-{DISK}"
    for secret in ("/etc/neocloud/machine/machine.json", "/etc/neocloud/identity/token.json", key):
        assert await fails(machine, "cat", secret)
    for file in ("/usr/local/lib/neocloud/launcher/x", "/run/launcher/x", "/disks/0/x", "/dev/net/x"):
        assert await fails(machine, "touch", file)
    await machine.control("resize-disk", DISK, str(2 * GIB))
    await machine.control("power-button")


@pytest.mark.long
async def test_disks_of_before_belong_to_root_and_work(machine: MachineBench) -> None:
    """Also where the control plane made them under a strict umask."""
    built("machine", "--only", "tiny")
    user_data = f"users:\n- name: ubuntu\n  ssh_authorized_keys: ['{machine.public_key()}']\n"
    pod = await machine.prepare("tiny", GIB, 256, 1, user_data)
    folder = machine.engine.layout.volumes / DISK / DISK / "data"
    for path in (folder, *folder.iterdir()):
        os.chown(path, 0, 0)
        path.chmod(0o700 if path.is_dir() else 0o600)
    await machine.engine.apply([pod])
    assert await asyncio.to_thread(machine.ssh, "echo kept > /root/kept; sync; cat /root/kept") == "kept\n"
    await machine.engine.remove([machine.pod])
    await machine.engine.apply([pod])
    assert await asyncio.to_thread(machine.ssh, "cat /root/kept") == "kept\n"


async def test_virtiofsd_sees_its_folder_alone_and_keeps_owners(machine: MachineBench) -> None:
    claim = Reference("PersistentVolumeClaim", SHARED, SHARED)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": SHARED, "namespace": SHARED}
    volume = read_manifest({"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    await machine.engine.apply([Namespace(name=SHARED), volume])
    try:
        await start(machine, filesystems=(SharedView(claim, "shared"),))
        said = await asyncio.to_thread(machine.ssh, f"mount -t virtiofs shared /mnt && {SET_ID}")
        assert said == "1000:1000\n"
        shared = machine.engine.layout.filesystems / SHARED / SHARED / "data"
        assert (shared / "own").stat().st_uid == 1000
        said = await asyncio.to_thread(machine.ssh, "mknod /mnt/disk b 254 0 2>&1 || echo refused")
        assert "refused" in said and not (shared / "disk").exists()
        seen = await processes(machine)
        check_qemu(seen["qemu-system-x86"])
        serving = seen["virtiofsd"]
        assert (serving["NoNewPrivs"], serving["Seccomp"]) == ("1", "2")
        assert int(serving["Seccomp_filters"]) >= 2
        allowed = sum(1 << NUMBERS[name] for name in SERVING)
        assert int(serving["CapEff"], 16) & ~allowed == int(serving["CapPrm"], 16) & ~allowed == 0
        root = f"/proc/{serving['pid']}/root"
        assert os.path.samefile(root, shared)
    finally:
        await machine.remove()
        await machine.engine.remove([Reference("Namespace", SHARED, SHARED)])


async def test_kvm_is_used_through_a_descriptor(machine: MachineBench) -> None:
    if find_acceleration()[0] != "kvm":
        pytest.skip("needs KVM")
    await start(machine, acceleration="kvm")
    await asyncio.to_thread(machine.ssh, "true")
    qemu = (await processes(machine))["qemu-system-x86"]
    check_qemu(qemu)
    assert "anon_inode:kvm-vm" in {os.readlink(file) for file in Path(f"/proc/{qemu['pid']}/fd").iterdir()}
    assert (await machine.control("status"))["state"] == "running"
