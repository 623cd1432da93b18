"""A tree in the shape of the files of a node with eight H100: what probes read of sysfs and /proc.

Written after captured trees (gpud's InfiniBand trees, sysfs of the kernel's documentation); it is simulated.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

BOOT = "11111111-2222-3333-4444-555555555555"
GPUS = [f"0000:{0x18 + number:02x}:00.0" for number in range(8)]
NVME = "0000:81:00.0"
HCA = "0000:a0:00.0"
IB_COUNTERS = (
    *("link_downed", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "symbol_error"),
    *("link_error_recovery", "port_rcv_errors", "port_xmit_discards"),
)
IB_HARDWARE_COUNTERS = ("rnr_nak_retry_err", "roce_slow_restart", "local_ack_timeout_err")
PORT = "sys/class/infiniband/mlx5_0/ports/1"
ZONE = "sys/class/thermal/thermal_zone0"
MOUNTINFO = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
30 22 0:45 / /jail rw,relatime - nfs4 10.0.0.5:/jail rw,vers=4.2,hard
31 22 259:3 / /images ro,relatime - xfs /dev/nvme0n1p3 ro
"""
ROOM = {
    "bytes_total": 1000 << 30,
    "bytes_used": 400 << 30,
    "bytes_free": 600 << 30,
    "inodes_total": 1_000_000,
    "inodes_free": 900_000,
}
STAT = "{pid} ({name}) {state} " + " ".join(str(each) for each in range(4, 53))
EXPECTED = {
    "gpus": 8,
    "nvlinks": 18,
    "cpus": 192,
    "memory_mib": 2_063_000,
    "ib_ports": 8,
    "ib_rate_gbps": 400,
    "nvmes": 1,
    "mounts": ["/jail"],
}


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def h100_node(root: Path) -> Path:
    """Write the tree of a healthy node, and return it."""
    write(root, _host() | _ports() | _devices())
    for address in (*GPUS, NVME, HCA):
        _link(root, address)
    (root / "sys/class/net/eth0/device").symlink_to("../../../devices/nowhere")
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_text("6,0,100,-;Linux version 6.12\n")
    return root


def _host() -> dict[str, str]:
    rooms = {point: ROOM for point in ("/", "/jail", "/images")}
    return {
        "proc/sys/kernel/random/boot_id": BOOT,
        "proc/self/mountinfo": MOUNTINFO,
        "proc/meminfo": "MemTotal:       2113000000 kB\nMemFree:        2000000000 kB",
        "proc/loadavg": "40.00 38.40 30.00 3/4000 12345",
        "proc/1/stat": STAT.format(pid=1, name="systemd", state="S"),
        "proc/700/stat": STAT.format(pid=700, name="a) D (b", state="S"),
        "sys/devices/system/cpu/online": "0-191",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
        "sys/devices/system/edac/mc/mc0/ue_count": "0",
        "sys/devices/system/edac/mc/mc0/ce_count": "3",
        "sys/class/nvme/nvme0/state": "live",
        f"{ZONE}/type": "x86_pkg_temp",
        f"{ZONE}/temp": "55000",
        f"{ZONE}/trip_point_0_type": "passive",
        f"{ZONE}/trip_point_0_temp": "85000",
        f"{ZONE}/trip_point_1_type": "critical",
        f"{ZONE}/trip_point_1_temp": "100000",
        "sys/class/net/eth0/type": "1",
        "sys/class/net/eth0/carrier_changes": "2",
        "sys/class/net/veth3/type": "1",
        "sys/class/net/veth3/carrier_changes": "900",
        "@calls/statvfs.json": json.dumps(rooms),
        "@calls/adjtimex.json": json.dumps({"is_disciplined": True, "offset_s": -0.000021}),
    }


def _ports() -> dict[str, str]:
    found = dict[str, str]()
    for number in range(8):
        port = f"sys/class/infiniband/mlx5_{number}/ports/1"
        found |= {
            f"{port}/state": "4: ACTIVE",
            f"{port}/phys_state": "5: LinkUp",
            f"{port}/rate": "400 Gb/sec (4X NDR)",
        }
        found |= {f"{port}/counters/{name}": "7" for name in IB_COUNTERS}
        found |= {f"{port}/hw_counters/{name}": "7" for name in IB_HARDWARE_COUNTERS}
    return found


def _devices() -> dict[str, str]:
    found = dict[str, str]()
    kinds = {**dict.fromkeys(GPUS, "0x030200"), NVME: "0x010802", HCA: "0x020700"}
    for address, kind in kinds.items():
        speed, width = ("16.0", 4) if address == NVME else ("32.0", 16)
        vendor = "0x10de" if address in GPUS else "0x15b3" if address == HCA else "0x144d"
        bridge = f"sys/devices/pci0000:00/{_bridge(address)}"
        for folder, class_, of in ((bridge, "0x060400", "0x1000"), (f"{bridge}/{address}", kind, vendor)):
            found |= {
                f"{folder}/class": class_,
                f"{folder}/vendor": of,
                f"{folder}/current_link_speed": f"{speed} GT/s PCIe",
                f"{folder}/max_link_speed": f"{speed} GT/s PCIe",
                f"{folder}/current_link_width": str(width),
                f"{folder}/max_link_width": str(width),
            }
    return found


def _bridge(address: str) -> str:
    return f"0000:00:{address[5:7]}.0"


def _link(root: Path, address: str) -> None:
    folder = root / "sys/bus/pci/devices"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _bridge(address)).symlink_to(f"../../../devices/pci0000:00/{_bridge(address)}")
    (folder / address).symlink_to(f"../../../devices/pci0000:00/{_bridge(address)}/{address}")


def device(address: str) -> str:
    """Return the folder of a PCI device in the tree."""
    return f"sys/devices/pci0000:00/{_bridge(address)}/{address}"


def bridge(address: str) -> str:
    """Return the folder of the port above a device."""
    return f"sys/devices/pci0000:00/{_bridge(address)}"


def room(root: Path, point: str, **changes: int) -> None:
    """Change what statvfs says of a mount."""
    path = root / "@calls/statvfs.json"
    rooms = json.loads(path.read_text())
    rooms[point] |= changes
    path.write_text(json.dumps(rooms))


Change = Callable[[Path], None]
