"""Check that public addresses can be announced on the interface that the operator names."""

import socket
from collections.abc import Container, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

import psutil

from neocloud.client.errors import ClientError
from neocloud.core.ethernet import why_no_arp
from neocloud.settings.settings import Settings

_LOOPBACK = "lo"


def check_public_interface(settings: Settings, given: Container[str]) -> None:
    """Refuse an interface without ARP, and a range that holds addresses of this host or of its network.

    Raises ClientError. Where neither is among the options `given` now, the server only warns: a network card
    that fails must not keep the cloud down.
    """
    name = settings.public_interface
    if not name or ("public_interface" not in given and "public_pool" not in given):
        return
    if settings.emulator:
        raise _refusal(
            "--public-interface is for a real cloud; an emulator has no machines to reach", "Drop it"
        )
    if problem := why_no_arp(name):
        raise _refusal(f"--public-interface: {problem}", "Choose one of those that `ip -brief link` lists")
    if not settings.public_pool:
        raise _refusal(
            "--public-interface needs the range of public addresses",
            "Add --public-pool with a part of the network that no other machine and no DHCP server uses",
        )
    pool = IPv4Network(settings.public_pool)
    for address, what in _addresses_in_use(name):
        if address in pool:
            raise _refusal(
                f"--public-pool {pool} contains {address}, {what}",
                "Choose a part of the network without it, such as a /28 at its end",
            )


def _addresses_in_use(interface: str) -> Iterator[tuple[IPv4Address, str]]:
    """Yield addresses that no pod can have, with what each is. Those on loopback are public addresses."""
    for label, addresses in psutil.net_if_addrs().items():
        name = label.partition(":")[0]
        for each in addresses:
            if each.family != socket.AF_INET or name == _LOOPBACK:
                continue
            found = IPv4Interface(f"{each.address}/{each.netmask or 32}")
            yield found.ip, f"this host's own address on {name}"
            if name == interface and found.network.prefixlen < 31:
                yield found.network.network_address, f"the address of the network of {name} itself"
                yield found.network.broadcast_address, f"the broadcast address of {name}"


def _refusal(message: str, next_step: str) -> ClientError:
    return ClientError("INVALID_ARGUMENT", message, next_step)
