# pyright: strict
"""The addresses of this host at which other machines may reach it."""

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

LINKS = Path("/sys/class/net")
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_IS_TEMPORARY = 0x01
"""IFA_F_TEMPORARY: the kernel replaces such an address after a day."""


def host_addresses(
    own_ranges: Sequence[ipaddress.IPv4Network] = (),
    *,
    links: Path = LINKS,
    ipv6_addresses: Path = IPV6_ADDRESSES,
) -> list[str]:
    """Return the addresses that stay between two starts, in order.

    Networks of containers and tenants are left out: bridges without a network card, and addresses in
    `own_ranges`, those of this cloud, on links without one.
    """
    temporary = _temporary_addresses(ipv6_addresses)
    found: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
    for name, addresses in psutil.net_if_addrs().items():
        link = links / name.partition(":")[0]  # "eth0:1" is a label of eth0
        has_card = _has_card(link)
        if not has_card and any((each / "bridge").exists() for each in (link, link / "master")):
            continue
        for each in addresses:
            if each.family not in (socket.AF_INET, socket.AF_INET6) or "%" in each.address:
                continue
            address = ipaddress.ip_address(each.address)
            is_own = not has_card and any(address in network for network in own_ranges)
            if not (is_own or address in temporary or address.is_loopback or address.is_link_local):
                found.add(address)
    return [str(each) for each in sorted(found, key=lambda each: (each.version, int(each)))]


def _has_card(link: Path) -> bool:
    """Return whether the link is a network card, or a bridge, bond or VLAN on one."""
    return (link / "device").exists() or any(_has_card(lower) for lower in link.glob("lower_*"))


def _temporary_addresses(file: Path) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the temporary IPv6 addresses (RFC 8981); none where the kernel has no IPv6."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return set()
    fields = [line.split() for line in lines]
    return {ipaddress.IPv6Address(int(each[0], 16)) for each in fields if int(each[4], 16) & _IS_TEMPORARY}
