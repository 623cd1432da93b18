"""The guest takes the place of the pod on its network.

The pod's interface and the guest's tap are wired to each other packet by packet (tc redirect), so the guest
has the pod's MAC and address and the network sees no difference. Only what the guest sends to the metadata
address stays here. A bridge would do the same, but would also answer neighbours who ask for that address.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from launcher.desired import Interface

TAP = "tap0"
METADATA_ADDRESS = "169.254.169.254"
_ARP_TARGET = "u32 0xa9fea9fe 0xffffffff at 24"  # where an ARP packet names the address it asks for
_EVERYTHING = "u32 0 0"


class NetworkError(Exception):
    """The message says which command failed and why."""


def wiring(interface: Interface, mtu: int) -> list[str]:
    """Commands, in order, that hand the pod's interface to the guest. May be run again from the start."""
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
    """Commands that may fail: take back what an earlier run left, and keep IPv6 quiet where it is on."""
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
    """Do the wiring; returns the MTU of the network."""
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
