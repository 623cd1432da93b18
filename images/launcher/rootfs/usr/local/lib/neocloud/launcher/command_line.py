"""Render QEMU's command line for a machine. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.desired import Disk, Limits, Machine
from launcher.encryption import decryption, inherited_key

QEMU = "qemu-system-x86_64"
FIRMWARE_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
FIRMWARE_VARIABLES = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
FREE_PORTS = 8
"""The number of disks that can be attached while the machine runs."""
SEED_PORT = "seed-port"
LIMITS_PREFIX = "limits-"
LIMITS = {
    "read_operations": "iops-read",
    "write_operations": "iops-write",
    "read_bytes": "bps-read",
    "write_bytes": "bps-write",
}
"""QEMU's names of the limits of a disk."""
EMULATED_KERNEL = "no_timer_check mitigations=off"
"""Options for a Linux kernel on an emulated processor. On a busy host the check of the timer at boot fails
and the kernel panics; under KVM it skips this check by itself. The mitigations cost time and protect nothing
here: the processor does not execute the guest's own branches."""
NO_NESTED_VIRTUALIZATION = "vmx=off,svm=off"
"""A guest that may not start machines of its own reaches none of the host's code for them (decision 0066)."""
_KVM_SET = 1


@dataclass(frozen=True)
class Places:
    """The folders of a running machine's files."""

    folder: Path = Path("/run/launcher")

    @property
    def seed(self) -> Path:
        return self.folder / "seed.img"

    @property
    def qemu(self) -> Path:
        """The folder that QEMU may write in, for its sockets."""
        return self.folder / "qemu"

    @property
    def own_monitor(self) -> Path:
        """The launcher's own QMP socket."""
        return self.qemu / "launcher.qmp"

    @property
    def control_monitor(self) -> Path:
        """The QMP socket for `machine-control`: one client at a time, others wait."""
        return self.qemu / "control.qmp"

    @property
    def agent(self) -> Path:
        """The socket of the agent in the guest, where it has one."""
        return self.qemu / "agent.sock"

    @property
    def names_log(self) -> Path:
        """The log of dnsmasq; the container's output is the guest's console."""
        return self.folder / "names.log"

    def filesystem(self, number: int) -> Path:
        return self.folder / f"filesystem-{number}.sock"


@dataclass(frozen=True)
class Descriptors:
    """The devices that the launcher has opened for QEMU."""

    tap: int
    kvm: int | None = None
    """None where the processor is emulated."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """The keys of encrypted disks, by the id of the disk."""

    @property
    def inherited(self) -> list[int]:
        return [self.tap, *([] if self.kvm is None else [self.kvm]), *self.keys.values()]


def command_line(
    machine: Machine, firmware: str, variables: Path | None, places: Places, descriptors: Descriptors
) -> list[str]:
    """Return the arguments. `firmware` is uefi or bios; `variables` is the machine's file of them."""
    words = [QEMU, "-name", machine.id, "-nodefaults", "-no-user-config", "-display", "none"]
    words += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    words += _board(machine, descriptors)
    if firmware == "uefi" and variables is not None:
        words += _firmware(variables)
        if machine.acceleration == "tcg":
            # Read by systemd-stub, with which our images start; see systemd-stub(7).
            words += ["-smbios", f"type=11,value=io.systemd.stub.kernel-cmdline-extra={EMULATED_KERNEL}"]
    words += ["-device", "virtio-rng-pci,addr=0x1"]
    words += _sockets(places)
    words += _network(machine, descriptors)
    for disk_id, key in descriptors.keys.items():
        words += ["-object", json.dumps(inherited_key(disk_id, key))]
    others = [disk for disk in machine.disks if not disk.is_boot]
    words += _ports(len(others) + FREE_PORTS)
    words += _disk(machine.boot_disk, {"addr": "0x4", "bootindex": 0})
    for number, disk in enumerate(others):
        words += _disk(disk, {"bus": port(number)})
    words += _seed(places)
    for number, filesystem in enumerate(machine.filesystems):
        words += _filesystem(number, filesystem.tag, places)
    for number, address in enumerate(machine.gpus):
        words += _gpu(number, address)
    return words


def port(number: int) -> str:
    """Return the name of a port for one disk. The guest numbers disks in this order."""
    return f"port{number}"


def _ports(count: int) -> list[str]:
    """Return this many ports and a last one for the seed, so that it does not take a name from a disk."""
    words = []
    for number, name in enumerate([*map(port, range(count)), SEED_PORT]):
        place = f"chassis={number + 1},addr={_slot(0x10, number)},io-reserve=0"
        words += ["-device", f"pcie-root-port,id={name},{place}"]
    return words


def node_name(disk_id: str) -> str:
    """Return a name of at most 31 characters, which QEMU allows; ids differ at the end."""
    return f"disk-{disk_id[-26:]}"


def block_node(disk: Disk) -> dict[str, Any]:
    """Return the argument of `-blockdev` and `blockdev-add`; the objects of limits and key must exist."""
    shared = {"read-only": disk.read_only, "discard": "unmap"}
    file = {"driver": "file", "filename": str(disk.path), "locking": "on", **shared}
    content = {"driver": "qcow2", "file": file, **shared}
    if disk.key:
        content["encrypt"] = decryption(disk.id)
    if disk.limits is None:
        return {"node-name": node_name(disk.id), **content}
    group = {"driver": "throttle", "throttle-group": limits_name(disk.id)}
    return {"node-name": node_name(disk.id), **group, "file": content, **shared}


def limits_name(disk_id: str) -> str:
    """Return the name of the object that holds the limits of a disk."""
    return f"{LIMITS_PREFIX}{disk_id}"


def limits_object(disk_id: str, limits: Limits) -> dict[str, Any]:
    """Return the argument of `-object` and `object-add`."""
    return {
        "qom-type": "throttle-group",
        "id": limits_name(disk_id),
        "limits": {LIMITS[name]: value for name, value in vars(limits).items()},
    }


def block_device(disk: Disk) -> dict[str, Any]:
    """Return the argument of `-device` and `device_add`, without the port.

    A write that fails, as when the host's disk is full, pauses the machine instead of reaching the guest.
    """
    return {
        "driver": "virtio-blk-pci",
        "id": f"device-{disk.id}",
        "drive": node_name(disk.id),
        "serial": disk.serial,
        "werror": "stop",
        "rerror": "report",
    }


def _board(machine: Machine, descriptors: Descriptors) -> list[str]:
    board = "q35,usb=off,vmport=off,hpet=off,smm=off,i8042=off,graphics=off"
    words = ["-smp", f"cpus={machine.vcpus},sockets=1", "-m", f"{machine.memory_mib}M"]
    if machine.acceleration == "kvm":
        words += ["-add-fd", f"fd={descriptors.kvm},set={_KVM_SET}"]
        words += ["-accel", f"kvm,device=/dev/fdset/{_KVM_SET}", "-cpu", f"host,{NO_NESTED_VIRTUALIZATION}"]
    else:
        cache = 64 if machine.memory_mib <= 512 else 128 if machine.memory_mib <= 2048 else 256
        words += ["-accel", f"tcg,thread=multi,tb-size={cache}", "-cpu", f"max,{NO_NESTED_VIRTUALIZATION}"]
    if machine.filesystems:  # virtiofsd reads and writes the guest's memory
        words += ["-object", f"memory-backend-memfd,id=memory,size={machine.memory_mib}M,share=on"]
        board += ",memory-backend=memory"
    return [*words, "-machine", board, "-boot", "strict=on", "-rtc", "base=utc"]


def _firmware(variables: Path) -> list[str]:
    code = f"if=pflash,unit=0,format=raw,readonly=on,file={FIRMWARE_CODE}"
    return ["-drive", code, "-drive", f"if=pflash,unit=1,format=raw,file={_escaped(variables)}"]


def _sockets(places: Places) -> list[str]:
    """Return monitors, the serial console on our output, and the channel to the agent in the guest."""
    words = ["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
    for name, path in {"own": places.own_monitor, "control": places.control_monitor}.items():
        words += ["-chardev", f"socket,id={name},path={path},server=on,wait=off"]
        words += ["-mon", f"chardev={name},mode=control"]
    words += ["-chardev", f"socket,id=agent,path={places.agent},server=on,wait=off"]
    words += ["-device", "virtio-serial-pci,addr=0x2"]
    return [*words, "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]


def _network(machine: Machine, descriptors: Descriptors) -> list[str]:
    card = f"virtio-net-pci,netdev=network,mac={machine.interface.mac},romfile=,addr=0x3"
    return ["-netdev", f"tap,id=network,fd={descriptors.tap}", "-device", card]


def _disk(disk: Disk, place: dict[str, Any]) -> list[str]:
    device = json.dumps(block_device(disk) | place)
    limits = ["-object", json.dumps(limits_object(disk.id, disk.limits))] if disk.limits else []
    return [*limits, "-blockdev", json.dumps(block_node(disk)), "-device", device]


def _seed(places: Places) -> list[str]:
    node = {"driver": "raw", "node-name": "seed", "read-only": True}
    node["file"] = {"driver": "file", "filename": str(places.seed), "read-only": True}
    device = {"driver": "virtio-blk-pci", "id": "seed", "drive": "seed", "bus": SEED_PORT}
    return ["-blockdev", json.dumps(node), "-device", json.dumps(device)]


def _filesystem(number: int, tag: str, places: Places) -> list[str]:
    name = f"filesystem-{number}"
    device = {"driver": "vhost-user-fs-pci", "chardev": name, "tag": tag, "addr": f"0x{5 + number:x}"}
    socket = f"socket,id={name},path={places.filesystem(number)}"
    return ["-chardev", socket, "-device", json.dumps(device)]


def _gpu(number: int, address: str) -> list[str]:
    """Return a whole GPU by VFIO, behind a port of its own. Not tested on real hardware."""
    place = f"pcie-root-port,id=gpu{number},chassis={100 + number},addr={_slot(0x18, number)}"
    return ["-device", place, "-device", f"vfio-pci,host={address},bus=gpu{number}"]


def _slot(first: int, number: int) -> str:
    """Return the address: eight functions share a slot, and the first declares it."""
    slot, function = divmod(number, 8)
    return f"0x{first + slot:x}.{function},multifunction={'on' if function == 0 else 'off'}"


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")
