"""Connect the guest to the pod's network in place of the pod.

Packets between the pod's interface and the guest's tap are redirected (tc), so the guest has the pod's MAC
and address and the network sees no difference. Only packets from the guest to the metadata address stay here.
A bridge would do the same, but would also answer ARP requests of neighbours for that address.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from launcher.desired import Interface

TAP = "tap0"
METADATA_ADDRESS = "169.254.169.254"
_ARP_TARGET = "u32 0xa9fea9fe 0xffffffff at 24"  # the target address of an ARP packet
_EVERYTHING = "u32 0 0"


class NetworkError(Exception):
    """The message says which command failed and why."""


def wiring(interface: Interface, mtu: int) -> list[str]:
    """Return the commands that connect the guest, in order. May be run again from the start."""
    pod, guest = interface.name, interface.address.ip
    return [
        f"ip address flush dev {pod}",
        f"ip link set dev {pod} up",
        f"ip tuntap add dev {TAP} mode tap vnet_hdr",
        f"ip link set dev {TAP} mtu {mtu}",
        f"ip address replace {METADATA_ADDRESS}/32 dev {TAP}",
        f"ip link set dev {TAP} up",
        f"ip route replace {guest}/32 dev {TAP} src {METADATA_ADDRESS}",
        f"tc qdisc add dev {pod} ingress",
        f"tc qdisc add dev {TAP} ingress",
        f"tc filter add dev {pod} ingress protocol all prio 9 u32 match {_EVERYTHING}"
        f" action mirred egress redirect dev {TAP}",
        f"tc filter add dev {TAP} ingress protocol arp prio 1 u32 match {_ARP_TARGET} flowid :1",
        f"tc filter add dev {TAP} ingress protocol ip prio 2 u32 match ip dst {METADATA_ADDRESS}/32"
        " flowid :1",
        f"tc filter add dev {TAP} ingress protocol all prio 9 u32 match {_EVERYTHING}"
        f" action mirred egress redirect dev {pod}",
    ]


def clearing(interface: Interface) -> list[str]:
    """Return commands that may fail: remove the rest of an earlier run, and keep IPv6 quiet."""
    return [
        f"tc qdisc del dev {interface.name} ingress",
        f"ip link del dev {TAP}",
        f"ip link set dev {interface.name} addrgenmode none",
    ]


def mtu_of(interface: Interface) -> int:
    try:
        return int((Path("/sys/class/net") / interface.name / "mtu").read_text())
    except OSError:
        raise NetworkError(
            f"The pod has no interface {interface.name}; the machine cannot be connected."
        ) from None


def connect(interface: Interface) -> int:
    """Connect the guest; return the MTU of the network."""
    mtu = mtu_of(interface)
    for command in clearing(interface):
        subprocess.run(command.split(), capture_output=True, check=False)
    _run(wiring(interface, mtu))
    return mtu


def _run(commands: Iterable[str]) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise NetworkError(
                f"`{command}` failed: {done.stderr.strip()}. The container needs NET_ADMIN and /dev/net/tun,"
                " and the host's kernel the modules sch_ingress, cls_u32 and act_mirred."
            )
