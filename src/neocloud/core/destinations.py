"""Rules about addresses: those that the cloud may connect to for a tenant, and those that its workloads may
reach. Pure.

An address that a tenant names, directly or by a host name, can point at the machine itself, at the operator's
network or at a cloud provider's metadata service. This table is the one answer to whether it may be used. The
caller resolves the name, checks every address, and connects to an address that was checked: a name that is
resolved again may lead elsewhere (DNS rebinding).
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

METADATA_ADDRESSES: tuple[Address, ...] = (
    ip_address("169.254.169.254"),  # AWS, Google Cloud, Azure, OpenStack and others
    ip_address("169.254.170.2"),  # AWS ECS task credentials
    ip_address("fd00:ec2::254"),  # AWS over IPv6
    ip_address("168.63.129.16"),  # Azure's platform services, a public address
    ip_address("100.100.100.200"),  # Alibaba Cloud
    ip_address("192.0.0.192"),  # Oracle Cloud
)
"""Where cloud providers answer a machine with its credentials, without asking who calls."""

REFUSED_NETWORKS: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        # IANA IPv4 special-purpose address registry (RFC 6890), and multicast
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
        # IANA IPv6 special-purpose address registry
        "::/128",
        "::1/128",
        "100::/64",
        "2001:2::/48",
        "2001:10::/28",
        "2001:20::/28",
        "2001:db8::/32",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
"""Networks that are no part of the public internet, and METADATA_ADDRESSES that lie outside those."""

PRIVATE_NETWORKS: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "::1/128",
        "fc00::/7",
    )
)
"""The networks that an operator opens who allows private addresses and this machine."""

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = IPv6Network("::/96")


def is_allowed_destination(address: Address | str, opened: Iterable[Network] = ()) -> bool:
    """Return whether the address is public, or lies in a network that the operator has opened.

    An IPv6 address that carries an IPv4 address (mapped, NAT64, 6to4, Teredo) is judged by that one too. A
    text that is no address is refused. A metadata address stays refused in a wider network that was opened:
    it has to be opened by itself.
    """
    try:
        wanted = ip_address(address)
    except ValueError:
        return False
    opened = tuple(opened)
    return all(_is_allowed(each, opened) for each in (wanted, *_carried(wanted)))


def is_loopback(address: Address | str) -> bool:
    """Return whether the address is of this machine alone, also when it is written as an IPv6 address."""
    try:
        wanted = ip_address(address)
    except ValueError:
        return False
    return any(each.is_loopback for each in (wanted, *_carried(wanted)))


def _is_allowed(address: Address, opened: tuple[Network, ...]) -> bool:
    if address in METADATA_ADDRESSES:
        return ip_network(address) in opened
    return _lies_in(address, opened) or not _lies_in(address, REFUSED_NETWORKS)


def _lies_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _carried(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that packets to an IPv6 address may be sent on to."""
    if isinstance(address, IPv4Address):
        return ()
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in (*_NAT64, _COMPATIBLE)) and int(address) > 1:
        found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return tuple(each for each in found if each is not None)
