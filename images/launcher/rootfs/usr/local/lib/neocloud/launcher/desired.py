"""Parse the desired state of this machine, `machine.json`, strictly."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

from launcher.encryption import KeyMissing, read_key

MACHINE_FILE = Path("/etc/neocloud/machine/machine.json")
ACCELERATIONS = ("kvm", "tcg")
FIRMWARES = ("uefi", "bios", "")
MIN_MEMORY_MIB = 192
"""The UEFI firmware does not start with less."""
MOST_DISKS, MOST_FILESYSTEMS, MOST_GPUS = 50, 10, 8
"""Limits of the virtual board."""


class DesiredStateError(Exception):
    """The desired state is not valid; the message names the field."""


@dataclass(frozen=True)
class Limits:
    """Most operations and bytes per second of a disk; reads and writes are counted apart."""

    read_operations: int
    write_operations: int
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True)
class Disk:
    """A file that the guest sees as a virtio disk with `device_id` as its serial number."""

    id: str
    path: Path
    size_bytes: int
    read_only: bool = False
    device_id: str = ""
    is_boot: bool = False
    limits: Limits | None = None
    """None: as fast as the host."""
    key: str = field(default="", repr=False)
    """The key that it is encrypted with; empty for a disk that is not."""

    @property
    def serial(self) -> str:
        """Return the virtio serial number, which holds 20 bytes."""
        return (self.device_id or self.id)[:20]


@dataclass(frozen=True)
class Filesystem:
    """A folder of the container that the guest mounts with `mount -t virtiofs TAG`."""

    tag: str
    path: Path
    read_only: bool = False


@dataclass(frozen=True)
class Interface:
    name: str
    address: IPv4Interface
    gateway: IPv4Address | None
    mac: str
    domain: str
    nameservers: tuple[IPv4Address, ...] = ()


@dataclass(frozen=True)
class Machine:
    id: str
    hostname: str
    vcpus: int
    memory_mib: int
    acceleration: str
    disks: tuple[Disk, ...]
    interface: Interface
    filesystems: tuple[Filesystem, ...] = ()
    user_data: str = field(default="", repr=False)  # may hold passwords
    gpus: tuple[str, ...] = ()
    firmware: str = ""
    """uefi, bios, or empty: the one that the boot disk's partition table needs."""
    name: str = ""
    parent_id: str = ""
    region: str = ""

    @property
    def boot_disk(self) -> Disk:
        return next(disk for disk in self.disks if disk.is_boot)


def read_desired_state(path: Path = MACHINE_FILE) -> Machine:
    try:
        return parse_machine(json.loads(path.read_text()), path.parent)
    except OSError as error:
        raise DesiredStateError(f"{path} cannot be read: {error.strerror}. A Secret brings it.") from None
    except json.JSONDecodeError as error:
        raise DesiredStateError(f"{path} is not JSON: {error}") from None


def parse_machine(data: Mapping[str, Any], keys: Path = MACHINE_FILE.parent) -> Machine:
    """Return the machine; the keys of its disks lie in the folder `keys`."""
    try:
        machine = Machine(
            id=data["id"],
            hostname=data["hostname"],
            vcpus=int(data["vcpus"]),
            memory_mib=int(data["memory_mib"]),
            acceleration=data["acceleration"],
            disks=tuple(parse_disk(disk, keys) for disk in data["disks"]),
            interface=_interface(data["interface"]),
            filesystems=tuple(
                Filesystem(each["tag"], Path(each["path"]), bool(each.get("read_only")))
                for each in data.get("filesystems") or ()
            ),
            user_data=data.get("user_data") or "",
            gpus=tuple(data.get("gpus") or ()),
            firmware=data.get("firmware") or "",
            name=data.get("name") or "",
            parent_id=data.get("parent_id") or "",
            region=data.get("region") or "",
        )
    except KeyMissing as error:
        raise DesiredStateError(str(error)) from None
    except KeyError as error:
        raise DesiredStateError(f"machine.json lacks the field {error.args[0]}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise DesiredStateError(f"machine.json has a field of the wrong kind: {error}") from None
    _check(machine)
    return machine


def parse_disk(data: Mapping[str, Any], keys: Path = MACHINE_FILE.parent) -> Disk:
    return Disk(
        id=data["id"],
        path=Path(data["path"]),
        size_bytes=int(data["size_bytes"]),
        read_only=bool(data.get("read_only")),
        device_id=data.get("device_id") or "",
        is_boot=bool(data.get("is_boot")),
        limits=parse_limits(data["limits"]) if data.get("limits") else None,
        key=read_key(keys, data["id"]) if data.get("encrypted") else "",
    )


def parse_limits(data: Mapping[str, Any]) -> Limits:
    limits = Limits(**{name: int(data[name]) for name in Limits.__annotations__})
    if min(vars(limits).values()) < 1:
        raise ValueError(f"the limits of a disk are positive numbers, not {dict(data)}")
    return limits


def _interface(data: Mapping[str, Any]) -> Interface:
    gateway = data.get("gateway")
    return Interface(
        name=data.get("name") or "eth0",
        address=IPv4Interface(f"{data['address']}/{data['prefix_length']}"),
        gateway=IPv4Address(gateway) if gateway else None,
        mac=data["mac"].lower(),
        domain=data.get("domain") or "",
        nameservers=tuple(IPv4Address(each) for each in data.get("nameservers") or ()),
    )


def _check(machine: Machine) -> None:
    if machine.acceleration not in ACCELERATIONS:
        known = ", ".join(ACCELERATIONS)
        raise DesiredStateError(f"acceleration must be one of {known}: {machine.acceleration!r}")
    if machine.firmware not in FIRMWARES:
        raise DesiredStateError(f"firmware must be uefi or bios: {machine.firmware!r}")
    if machine.vcpus < 1:
        raise DesiredStateError("vcpus must be 1 or more")
    if machine.memory_mib < MIN_MEMORY_MIB:
        raise DesiredStateError(f"memory_mib must be {MIN_MEMORY_MIB} or more")
    for name, most in {"disks": MOST_DISKS, "filesystems": MOST_FILESYSTEMS, "gpus": MOST_GPUS}.items():
        if len(getattr(machine, name)) > most:
            raise DesiredStateError(f"a machine can have {most} {name}, not {len(getattr(machine, name))}")
    if sum(disk.is_boot for disk in machine.disks) != 1:
        raise DesiredStateError("exactly one disk must have is_boot")
    for names in ([disk.id for disk in machine.disks], [each.tag for each in machine.filesystems]):
        if len(set(names)) != len(names):
            raise DesiredStateError(f"names must differ from each other: {', '.join(names)}")
