"""Real machines, driven through the API and ssh: CMP-01, CMP-09, CMP-11, CMP-12, CMP-13.

The guest is the tiny image: a kernel, busybox and an ssh server, up in seconds also without KVM.
"""

import logging
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from neocloud.core import contract
from neocloud.engines.podman.layout import Layout
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud

logger = logging.getLogger(__name__)

COMPUTE = "nebius.compute.v1"
STATE = contract.enum(f"{COMPUTE}.InstanceStatus.InstanceState")
GIB = 1 << 30
BOOT_SECONDS = 300.0
ONE_BOOT = "cat /proc/sys/kernel/random/boot_id"


@dataclass
class Machine:
    """One instance, and the key that its guest lets in."""

    cloud: Cloud
    id: str
    key: Path
    operation_id: str

    @classmethod
    def create(
        cls,
        cloud: Cloud,
        name: str,
        boot_disk: Mapping[str, Any] | None = None,
        script: str = "",
        **more: Any,
    ) -> "Machine":
        machine = cls.request(cloud, name, boot_disk, script, **more)
        machine.until("RUNNING")
        return machine

    @classmethod
    def request(
        cls,
        cloud: Cloud,
        name: str,
        boot_disk: Mapping[str, Any] | None = None,
        script: str = "",
        **more: Any,
    ) -> "Machine":
        """Create it, and do not wait until it runs. The image runs a script as user data; OWNER in it becomes
        the owner's public key."""
        key = cloud.folder / "user" / f"key-{name}"
        key.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        public = key.with_suffix(".pub").read_text().strip()
        user = {"name": "ubuntu", "ssh_authorized_keys": [public]}
        subnets = cloud.call("nebius.vpc.v1.SubnetService/List", {"parent_id": cloud.project_id}).items
        managed = {
            "name": f"{name}-boot",
            "spec": {
                "type": "NETWORK_SSD",
                "size_gibibytes": 1,
                "source_image_family": {"image_family": "tiny-test"},
            },
        }
        interface = {
            "name": "eth0",
            "subnet_id": subnets[0].metadata.id,
            "ip_address": {},
            "public_ip_address": {},
        }
        spec = {
            "resources": {"platform": "cpu-local", "preset": "1vcpu-1gb"},
            "boot_disk": boot_disk or {"attach_mode": "READ_WRITE", "managed_disk": managed},
            "network_interfaces": [interface],
            # Without its first line, as clients in the wild send it.
            "cloud_init_user_data": script.replace("OWNER", public) or yaml.safe_dump({"users": [user]}),
        } | more
        request = {"metadata": {"parent_id": cloud.project_id, "name": name}, "spec": spec}
        operation = cloud.call(f"{COMPUTE}.InstanceService/Create", request)
        machine = cls(cloud, operation.resource_id, key, operation.id)
        assert machine.state == "STARTING"
        return machine

    @property
    def seen(self) -> Any:
        return self.cloud.call(f"{COMPUTE}.InstanceService/Get", {"id": self.id})

    @property
    def state(self) -> str:
        return STATE.Name(self.seen.status.state)

    @property
    def host(self) -> str:
        return self.seen.status.network_interfaces[0].public_ip_address.address.removesuffix("/32")

    @property
    def private_address(self) -> str:
        return self.seen.status.network_interfaces[0].ip_address.address.removesuffix("/32")

    @property
    def boot_disk_id(self) -> str:
        return self.seen.status.disk_attachments[0].id

    def until(self, state: str, seconds: float = BOOT_SECONDS) -> None:
        wait_until(lambda: self.state == state, f"instance {self.id} is {state}", seconds=seconds)

    def change(self, verb: str) -> None:
        self.cloud.call(f"{COMPUTE}.InstanceService/{verb}", {"id": self.id})

    def ssh(self, command: str, *, host: str = "") -> subprocess.CompletedProcess[str]:
        options = [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "ConnectTimeout=5",
            "LogLevel=ERROR",
        ]
        words = [part for option in options for part in ("-o", option)]
        return subprocess.run(
            ["ssh", "-i", str(self.key), *words, f"ubuntu@{host or self.host}", command],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def run(self, command: str) -> str:
        """Return the output of a command in the guest, once it accepts connections."""
        done = wait_until(
            lambda: found if (found := self.ssh(command)).returncode != 255 else None,
            f"ssh to {self.host}",
            seconds=BOOT_SECONDS,
        )
        assert done is not None and done.returncode == 0, done
        return done.stdout.strip()

    @property
    def progress(self) -> str:
        """Return the progress of the operation that creates it."""
        found = self.cloud.call("nebius.common.v1.OperationService/Get", {"id": self.operation_id})
        return str(found.progress_tracker)

    def qemu(self) -> list[int]:
        """Pids of its QEMU on the host."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words and words[0].endswith(b"qemu-system-x86_64") and self.id.encode() in words:
                found.append(int(folder.name))
        return found

    def delete(self) -> None:
        self.change("Delete")
        # A guest that has not booted yet does not hear the power button, and has its minute.
        wait_until(lambda: self.is_gone(), f"instance {self.id} is gone", seconds=BOOT_SECONDS)

    def is_gone(self) -> bool:
        answer = self.cloud.call(f"{COMPUTE}.InstanceService/List", {"parent_id": self.cloud.project_id})
        return self.id not in {item.metadata.id for item in answer.items}


@pytest.fixture(scope="module")
def machine(cloud: Cloud) -> Iterator[Machine]:
    """A machine that runs. Tests leave it as they found it."""
    machine = Machine.create(cloud, "tiny")
    yield machine
    machine.delete()
    assert not machine.qemu()


def test_its_owner_signs_in_at_the_public_address(machine: Machine) -> None:
    assert machine.run("hostname") == machine.id
    assert int(machine.run("nproc")) == 1


def test_its_serial_log_shows_the_boot(machine: Machine, cloud: Cloud) -> None:
    machine.run("true")
    log = cloud.neo("compute", "instance", "serial-log", "tiny").stdout
    assert f"neocloud tiny: {machine.id} is up" in log


def test_a_reboot_from_inside_leaves_it_running(machine: Machine) -> None:
    before = machine.run(ONE_BOOT)
    machine.ssh("reboot")
    wait_until(
        lambda: machine.ssh(ONE_BOOT).stdout.strip() not in ("", before), "another boot", seconds=BOOT_SECONDS
    )
    assert machine.state == "RUNNING"


def test_stop_and_start_keep_disk_and_addresses(machine: Machine) -> None:
    addresses = machine.seen.status.network_interfaces
    checksum = machine.run("dd if=/dev/urandom of=/kept bs=64k count=64 2>/dev/null; sync; sha256sum /kept")
    machine.change("Stop")
    machine.until("STOPPED")
    assert not machine.qemu()
    machine.change("Start")
    assert machine.state == "STARTING"
    machine.until("RUNNING")
    assert machine.seen.status.network_interfaces == addresses
    assert machine.run("sha256sum /kept") == checksum


def test_a_guest_that_powers_itself_off_stays_off(machine: Machine) -> None:
    machine.run("sync")
    machine.ssh("poweroff")
    machine.until("STOPPED")
    machine.change("Start")
    machine.until("RUNNING")
    machine.run("true")


def test_its_disk_grows_while_it_runs(machine: Machine, cloud: Cloud) -> None:
    name = machine.run("ls /sys/block | grep vd | head -1")
    before = int(machine.run(f"cat /sys/block/{name}/size"))
    spec = contract.to_dict(machine.seen)["spec"]
    gibibytes = before * 512 // GIB + 1
    spec["boot_disk"]["managed_disk"]["spec"]["size_gibibytes"] = gibibytes
    cloud.call(f"{COMPUTE}.InstanceService/Update", {"metadata": {"id": machine.id}, "spec": spec})
    wait_until(
        lambda: int(machine.run(f"cat /sys/block/{name}/size")) * 512 == gibibytes * GIB, "the guest sees it"
    )


def test_a_disk_is_attached_limited_and_detached_while_it_runs(machine: Machine, cloud: Cloud) -> None:
    disk = {
        "metadata": {"parent_id": cloud.project_id, "name": "data"},
        "spec": {"type": "NETWORK_HDD", "size_gibibytes": 1},
    }
    disk_id = cloud.call(f"{COMPUTE}.DiskService/Create", disk).resource_id
    boot = machine.run(ONE_BOOT)
    attached = '[{"attach_mode": "READ_WRITE", "existing_disk": {"id": "data"}, "device_id": "data"}]'
    cloud.neo("compute", "instance", "update", "tiny", "--secondary-disks", attached)
    find = "grep -lx data /sys/block/vd*/serial | cut -d/ -f4"
    wait_until(lambda: machine.run(f"{find}; true"), "the guest has the disk", seconds=BOOT_SECONDS)
    name = machine.run(find)
    machine.run(f"echo kept | sudo dd of=/dev/{name} conv=fsync 2>/dev/null")
    said = cloud.neo("compute", "disk", "get", "data").stdout
    assert "300 read and 300 write" in said and "encrypted (LUKS)" in said
    clock = "cut -d' ' -f1 /proc/uptime"
    for files in (f"if=/dev/{name} of=/dev/null iflag=direct", f"if=/dev/zero of=/dev/{name} oflag=direct"):
        begun, ended = machine.run(
            f"{clock}; sudo dd {files} bs=4096 count=3000 2>/dev/null; {clock}"
        ).split()
        found = 3000 / (float(ended) - float(begun))
        logger.info("%.1f operations per second with a limit of 300: dd %s", found, files)
        assert found < 300 * 1.05, files

    cloud.neo("compute", "instance", "update", "tiny", "--secondary-disks", "[]")
    assert machine.run(f"{find}; true") == "", "the operation has ended: the guest has released it"
    assert machine.run(ONE_BOOT) == boot
    cloud.call(f"{COMPUTE}.DiskService/Delete", {"id": disk_id})


def held(path: Path, wanted: Collection[bytes]) -> set[bytes]:
    """Return which of these a file contains. Volumes are files of many GiB, with holes, which are skipped.
    One that has gone meanwhile contains nothing."""
    found: set[bytes] = set()
    overlap = max(map(len, wanted)) - 1
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        at = 0
        while True:
            try:
                at = file.seek(at, os.SEEK_DATA)
            except OSError:  # there is no data behind
                return found
            block = file.read(1 << 22)
            if not block:
                return found
            found.update(each for each in wanted if each in block)
            at += max(len(block) - overlap, 1) if len(block) == 1 << 22 else len(block)
    return found


def test_what_is_held_is_found_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for place in (0, (1 << 22) - 3, (1 << 22) + 7, 1 << 26):
        with file.open("wb") as sparse:
            sparse.seek(place)
            sparse.write(b"secret and words")
        assert held(file, [b"secret", b"and words", b"absent"]) == {b"secret", b"and words"}, place
    assert held(tmp_path / "gone", [b"secret"]) == set()


@pytest.mark.long
def test_what_a_guest_writes_cannot_be_read_on_the_host(machine: Machine, cloud: Cloud) -> None:
    """The attacker has the host's disk: all files below the state folder, and later those of a snapshot.

    A file that the kernel saw change last before the machine was there cannot hold what is its own.
    """
    words = "these words were written by the guest"
    machine.run(f"yes {words} | head -c 4194304 >/written; sync")
    forget = "echo 3 | sudo tee /proc/sys/vm/drop_caches >/dev/null"
    assert machine.run(f"{forget}; head -n 1 /written") == words, "it is on the guest's disk"
    metadata = {"parent_id": cloud.project_id, "name": f"attacked-{secrets.token_hex(4)}"}
    request = {"metadata": metadata, "spec": {"source_disk_id": machine.boot_disk_id}}
    snapshot = cloud.call(f"{COMPUTE}.DiskSnapshotService/Create", request).resource_id
    wait_until(
        lambda: cloud.call(f"{COMPUTE}.DiskSnapshotService/Get", {"id": snapshot}).status.state == 2,
        "the snapshot is READY",
    )
    sealed = Layout.of(cloud.home).secrets
    key = sealed / machine.id / "machine" / "data" / f"key-{machine.boot_disk_id}"
    assert key.stat().st_mode & 0o077 == cloud.home.stat().st_mode & 0o077 == 0
    assert subprocess.check_output(["stat", "-fc", "%T", key], text=True) == "tmpfs\n", "not on the disk"
    below = (Path(folder) / name for folder, _, names in os.walk(cloud.home) for name in names)
    files = [path for path in below if path.is_file() and not path.is_symlink()]
    assert {path.parts[-3] for path in files if path.name == "disk.qcow2"} >= {machine.boot_disk_id, snapshot}
    born, secret, searched = machine.seen.metadata.created_at.seconds, key.read_bytes(), 0
    for path in files:
        with suppress(FileNotFoundError):
            if path.stat().st_ctime < born - 60:
                continue
            searched += 1
            allowed = {secret} if path.is_relative_to(sealed) else set()
            assert held(path, (words.encode(), secret)) <= allowed, path
    assert searched > 10
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for file in ("cmdline", "environ"):
                assert key.read_bytes() not in (process / file).read_bytes(), process
    cloud.call(f"{COMPUTE}.DiskSnapshotService/Delete", {"id": snapshot})


@pytest.mark.long
def test_a_snapshot_of_its_running_disk_becomes_another_machine(machine: Machine, cloud: Cloud) -> None:
    checksum = machine.run(
        "dd if=/dev/urandom of=/copied bs=64k count=16 2>/dev/null; sync; sha256sum /copied"
    )
    metadata = {"parent_id": cloud.project_id, "name": "before"}
    request = {"metadata": metadata, "spec": {"source_disk_id": machine.boot_disk_id}}
    snapshot = cloud.call(f"{COMPUTE}.DiskSnapshotService/Create", request).resource_id
    wait_until(
        lambda: cloud.call(f"{COMPUTE}.DiskSnapshotService/Get", {"id": snapshot}).status.state == 2,
        "the snapshot is READY",
    )
    assert machine.run("echo alive") == "alive"
    size = cloud.call(f"{COMPUTE}.DiskService/Get", {"id": machine.boot_disk_id}).status.size_bytes
    disk = {
        "metadata": {"parent_id": cloud.project_id, "name": "restored"},
        "spec": {"type": "NETWORK_SSD", "size_bytes": size, "source_snapshot_id": snapshot},
    }
    disk_id = cloud.call(f"{COMPUTE}.DiskService/Create", disk).resource_id
    wait_until(
        lambda: cloud.call(f"{COMPUTE}.DiskService/Get", {"id": disk_id}).status.state == 2,
        "the disk is READY",
    )
    copy = Machine.create(cloud, "copy", {"attach_mode": "READ_WRITE", "existing_disk": {"id": disk_id}})
    try:
        assert copy.run("sha256sum /copied") == checksum
        assert copy.run(f"ping -c 1 -W 5 {machine.private_address} >/dev/null && echo heard") == "heard"
        assert copy.run(f"nc -w 5 {machine.private_address} 22 </dev/null | head -c 4") == "SSH-"
    finally:
        copy.delete()
        cloud.call(f"{COMPUTE}.DiskService/Delete", {"id": disk_id})
        cloud.call(f"{COMPUTE}.DiskSnapshotService/Delete", {"id": snapshot})


def test_it_comes_back_after_its_host_was_lost(machine: Machine, cloud: Cloud) -> None:
    """All that runs is killed at once, the server too, as when the power fails; the disk is intact."""
    addresses = machine.seen.status.network_interfaces
    checksum = machine.run("dd if=/dev/urandom of=/kept bs=64k count=64 2>/dev/null; sync; sha256sum /kept")
    boot = machine.run(ONE_BOOT)
    for pid in (cloud.server["pid"], *machine.qemu()):
        os.kill(pid, signal.SIGKILL)
    time.sleep(1)  # no process is left that could report when the dead are gone
    cloud.up()
    machine.until("RUNNING")
    assert machine.run("sha256sum /kept") == checksum
    assert machine.run(ONE_BOOT) != boot
    assert machine.seen.status.network_interfaces == addresses
