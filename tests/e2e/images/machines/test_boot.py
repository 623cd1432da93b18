"""CMP-01, CMP-09: machines boot, have their identity, and end politely. Under emulation."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from neocloud.engines.base import EngineError, PodPhase, Reference
from neocloud.services.compute.disk_limits import DiskLimits
from neocloud.services.compute.render import DiskView
from neocloud.testing.waiting import until
from tests.e2e.images.machines.bench import DISK, DOMAIN, KEY, MACHINE, TOKEN, MachineBench
from tests.e2e.images.machines.conftest import built

pytestmark = pytest.mark.asyncio(loop_scope="module")

GIB = 2**30
DATA = "computedisk-e00databcdefghijklmn"
LIMITS = DiskLimits(200, 200, GIB, GIB)
TIMED = (
    "b=$(cut -d' ' -f1 /proc/uptime); sudo dd if=/dev/{disk} of=/dev/null bs=4096 count=600 iflag=direct "
    "2>/dev/null || exit 9; e=$(cut -d' ' -f1 /proc/uptime); echo $b $e | awk '{{print $2 - $1}}'"
)
"""Read 600 blocks and print the seconds."""
METADATA = "http://metadata.nebius.internal/v1"


async def _attach_and_detach_a_disk(machine: MachineBench) -> None:
    """The running guest gets a disk with limits, is held to them, and releases it."""
    before = await machine.engine.observe(MACHINE)
    disk = await machine.attach(DiskView(DATA, "data", GIB, limits=LIMITS, key=KEY))
    await machine.control("attach-disk", json.dumps(disk))
    await machine.control("attach-disk", json.dumps(disk))  # repeated
    assert (await machine.control("status"))["disks"][DATA]["limits"] == LIMITS.to_dict()
    find = 'for d in /sys/block/vd*; do [ "$(cat $d/serial)" = data ] && echo ${d##*/}; done; true'
    name = (
        await asyncio.to_thread(machine.ssh, f'until [ -n "$({find})" ]; do sleep 0.1; done; {find}')
    ).strip()
    with pytest.raises(EngineError, match="still uses"):
        await machine.attach()
    assert (await machine.control("status"))["disks"][DATA], "QEMU uses it: the engine does not take it away"

    seconds = await asyncio.to_thread(machine.ssh, TIMED.format(disk=name))
    assert float(seconds) > 2.6, "600 reads of at most 200 in a second"
    faster = replace(LIMITS, read_operations=20_000)
    await machine.control("limit-disk", DATA, json.dumps(faster.to_dict()))
    assert (await machine.control("status"))["disks"][DATA]["limits"] == faster.to_dict()

    async def is_detached() -> bool:
        return (await machine.control("detach-disk", DATA))["is_detached"]

    await until(is_detached, holds=bool)
    assert DATA not in (await machine.control("status"))["disks"]
    assert (await asyncio.to_thread(machine.ssh, find)).strip() == ""
    await machine.attach()
    assert await machine.engine.observe(MACHINE) == before, "the machine ran all the time"
    await machine.engine.remove([Reference("Namespace", DATA, DATA)])


async def test_a_tiny_machine_from_start_to_power_button(machine: MachineBench) -> None:
    built("machine", "--only", "tiny")
    user_data = f"users:\n- name: ubuntu\n  ssh_authorized_keys: ['{machine.public_key()}']\n"
    await machine.start("tiny", GIB, 256, 1, user_data)

    said = await asyncio.to_thread(machine.ssh, f"hostname; cat /proc/cmdline; nslookup worker-1.{DOMAIN}")
    assert said.splitlines()[0] == "worker-1"
    assert "no_timer_check" in said.splitlines()[1].split(), "a busy host's timer would panic the kernel"
    assert "Address: 10.219.1.5" in said
    said = await asyncio.to_thread(machine.ssh, "grep -cwE 'vmx|svm' /proc/cpuinfo || true")
    assert said.strip() == "0", "a machine does not start machines"
    asked = f"wget -q -O- --header 'Metadata: true' {METADATA}/iam/sa/token"
    assert json.loads(await asyncio.to_thread(machine.ssh, asked))["access_token"] == TOKEN
    refused = f"wget -O- {METADATA}/iam/sa/token 2>&1 || true"
    said = await asyncio.to_thread(machine.ssh, refused)
    assert "403" in said and TOKEN not in said

    status = await machine.control("status")
    assert status["state"] == "running"
    assert status["disks"][DISK]["size_bytes"] == GIB
    await machine.control("resize-disk", DISK, str(2 * GIB))
    assert await asyncio.to_thread(machine.ssh, "cat /sys/block/vda/size") == f"{2 * GIB // 512}\n"
    assert "worker-1 is up at 10.219.1.5/24" in await machine.serial_log()
    await _attach_and_detach_a_disk(machine)

    await machine.control("power-button")

    async def phase() -> PodPhase | None:
        pod = (await machine.engine.observe(MACHINE)).pod(MACHINE)
        return pod and pod.phase

    await until(phase, holds=lambda seen: seen == PodPhase.SUCCEEDED)


@contextmanager
def small_filesystem(folder: Path, mebibytes: int) -> Iterator[None]:
    """Move the content of the folder to a file system of its own that is soon full."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", folder], check=True)
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.long
async def test_a_full_disk_of_the_host_pauses_the_machine_until_there_is_room(machine: MachineBench) -> None:
    built("machine", "--only", "tiny")
    pod = await machine.prepare("tiny", GIB, 256, 1, machine.public_key())
    folder = machine.engine.layout.volumes / DISK / DISK / "data"

    async def state() -> str:
        return (await machine.control("status"))["state"]

    with small_filesystem(folder, 48):
        await machine.engine.apply([pod])
        write = (
            "(dd if=/dev/urandom of=/root/big bs=1M count=96; sync; touch /root/written) >/dev/null 2>&1 &"
        )
        await asyncio.to_thread(machine.ssh, write)
        await until(state, holds=lambda seen: seen == "io-error")
        subprocess.run(["mount", "-o", "remount,size=512m", folder], check=True)
        await until(state, holds=lambda seen: seen == "running")
        finished = "until [ -e /root/written ]; do sleep 0.2; done; wc -c </root/big"
        assert await asyncio.to_thread(machine.ssh, finished) == f"{96 * 2**20}\n"
        await machine.engine.remove([machine.pod])


CLOUD_CONFIG = """#cloud-config
users:
- default
- name: alice
  sudo: ALL=(ALL) NOPASSWD:ALL
  ssh_authorized_keys: ['{key}']
ssh_authorized_keys: ['{key}']
write_files:
- {{path: /etc/greeting, content: hello}}
runcmd:
- [sh, -c, "hostname > /run/ran"]
"""


@pytest.mark.long
async def test_a_full_machine_takes_a_cloud_config(machine: MachineBench) -> None:
    """The slow one. With one processor: two emulated ones wait for each other where the host is busy."""
    built("machine", "--only", "debian13")
    await machine.start("debian13", 6 * GIB, 1024, 1, CLOUD_CONFIG.format(key=machine.public_key()))
    ready = "cloud-init status --wait >/dev/null"
    files = "cat /etc/greeting /run/ran /etc/resolv.conf"
    said = await asyncio.to_thread(machine.ssh, f"{ready}; {files}; sudo id -u; df -BG /")
    greeting, *rest = said.splitlines()
    assert greeting == "helloworker-1"
    assert "nameserver 169.254.169.254" in rest
    assert f"search {DOMAIN}" in rest
    assert "0" in rest
    assert rest[-1].split()[1] == "6G"  # the root file system took the whole disk
    asked = f"curl -s -H 'Metadata: true' {METADATA}/iam/sa/token"
    assert json.loads(await asyncio.to_thread(machine.ssh, asked))["access_token"] == TOKEN
    greeted = "sudo journalctl -b -u ssh -o cat | grep -c 'listening on 0.0.0.0'"
    assert (await asyncio.to_thread(machine.ssh, greeted)).strip() == "1", "it was not started again"
    assert (await machine.control("freeze"))["filesystems"] == 1
    assert (await machine.control("thaw"))["filesystems"] == 1
