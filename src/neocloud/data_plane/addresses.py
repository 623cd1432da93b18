"""Addresses of clients: which of them count as one client, and which are private or of this machine."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_IPV6_NETWORK_BITS = 64
_MAX_SOURCE_CHARS = 64


@lru_cache(maxsize=4096)
def is_private(address: str) -> bool:
    """Return whether an address is of this machine or a private network, so that nothing leaves to others."""
    found = _parse(address)
    return found is not None and found.is_private


def is_loopback(address: str) -> bool:
    found = _parse(address)
    return found is not None and found.is_loopback


def source_network(address: str) -> str:
    """Return what an address is counted as: an IPv4 address as itself, an IPv6 address as its /64 network.

    One IPv6 host has 2^64 addresses to call from.
    """
    found = _parse(address)
    if found is None:
        return address[:_MAX_SOURCE_CHARS]
    if isinstance(found, IPv4Address):
        return str(found)
    return str(IPv6Network((found, _IPV6_NETWORK_BITS), strict=False))


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    """Return an address without its zone, and a mapped IPv4 address as one; None for other text."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
