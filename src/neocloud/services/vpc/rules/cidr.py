"""Arithmetic on address ranges: free addresses and free blocks, given what is taken. Pure."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

_SMALLEST_ALLOCATION_PREFIX = 24
"""A block is reserved address by address, so it has 256 addresses at most."""


@dataclass(frozen=True)
class CidrRequest:
    """The request in the `cidr` of a spec: a length, and the range where one was chosen."""

    prefix_length: int
    network: IPv4Network | None = None


def parse_request(text: str, default_prefix_length: int = 32) -> CidrRequest:
    """Parse "10.1.2.3", "10.1.2.0/24", "/24" or "". Raises ValueError with a message for the client."""
    if not text:
        return CidrRequest(default_prefix_length)
    if text.startswith("/"):
        length = int(text[1:])
        if length > 32:
            raise ValueError("must be at most /32: only IPv4 is served here")
        return CidrRequest(length)
    try:
        network = IPv4Network(text)
    except ValueError:
        raise ValueError(
            "must be an IPv4 address, an IPv4 range such as 10.1.2.0/24 with nothing set after its prefix,"
            " or a length such as /24"
        ) from None
    return CidrRequest(network.prefixlen, network)


def overlapping(block: IPv4Network, others: Iterable[str]) -> str | None:
    """Return the first of the others that shares an address with the block."""
    return next((other for other in others if block.overlaps(IPv4Network(other))), None)


def first_free_block(
    ranges: Iterable[IPv4Network], prefix_length: int, taken: Iterable[str]
) -> IPv4Network | None:
    """Return the lowest block of this length in the ranges that overlaps nothing taken."""
    occupied = sorted({IPv4Network(each) for each in taken})
    for within in ranges:
        if prefix_length < within.prefixlen:
            continue
        found = _free_in(within, prefix_length, [each for each in occupied if each.overlaps(within)])
        if found is not None:
            return found
    return None


def _free_in(within: IPv4Network, prefix_length: int, occupied: Sequence[IPv4Network]) -> IPv4Network | None:
    size = 1 << (32 - prefix_length)
    at = int(within[0])
    for other in occupied:
        if at + size <= int(other[0]):
            break
        if int(other[-1]) >= at:
            at = -(-(int(other[-1]) + 1) // size) * size
    return IPv4Network((at, prefix_length)) if at + size - 1 <= int(within[-1]) else None


def largest_free_prefix(ranges: Iterable[IPv4Network], taken: Collection[str]) -> int | None:
    """Return the shortest prefix length of which a block is free in any of the ranges."""
    found = list(ranges)
    shortest = min((each.prefixlen for each in found), default=33)
    lengths = range(shortest, 33)
    return next((length for length in lengths if first_free_block(found, length, taken) is not None), None)


def is_too_many(prefix_length: int) -> bool:
    """Whether the size is beyond the limit of one Allocation."""
    return prefix_length < _SMALLEST_ALLOCATION_PREFIX


def shuffled(within: IPv4Network, seed: str) -> Iterator[IPv4Address]:
    """Yield all addresses of a range in a pseudo-random order, the same for the same seed.

    The stride is odd and the size a power of two, so each address comes once. With a stride of one, searches
    would run through the same sequences of taken addresses.
    """
    size = within.num_addresses
    digest = hashlib.sha256(seed.encode()).digest()
    start, stride = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big") | 1
    return (within[(start + number * stride) % size] for number in range(size))
