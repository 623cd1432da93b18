"""Arithmetic on address ranges: free addresses and free blocks. The caller says what is taken."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

_SMALLEST_ALLOCATION_PREFIX = 24
"""A block of addresses is claimed address by address, so one is at most 256."""


@dataclass(frozen=True)
class Wanted:
    """What the `cidr` of a spec asks for: a length, and a place where one was chosen."""

    prefix_length: int
    network: IPv4Network | None = None


def wanted(text: str, default_prefix_length: int = 32) -> Wanted:
    """Reads "10.1.2.3", "10.1.2.0/24", "/24" or "". Raises ValueError in words for people."""
    if not text:
        return Wanted(default_prefix_length)
    if text.startswith("/"):
        length = int(text[1:])
        if length > 32:
            raise ValueError("must be at most /32: only IPv4 is served here")
        return Wanted(length)
    try:
        network = IPv4Network(text)
    except ValueError:
        raise ValueError(
            "must be an IPv4 address, an IPv4 range such as 10.1.2.0/24 with nothing set after its prefix,"
            " or a length such as /24"
        ) from None
    return Wanted(network.prefixlen, network)


def overlapping(block: IPv4Network, others: Iterable[str]) -> str | None:
    """The first of the others that shares an address with the block."""
    return next((other for other in others if block.overlaps(IPv4Network(other))), None)


def first_free_block(
    ranges: Iterable[IPv4Network], prefix_length: int, taken: Iterable[str]
) -> IPv4Network | None:
    """The lowest block of this length in the ranges that shares no address with what is taken."""
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
    """The shortest prefix of which a block is free in any of the ranges."""
    found = list(ranges)
    shortest = min((each.prefixlen for each in found), default=33)
    lengths = range(shortest, 33)
    return next((length for length in lengths if first_free_block(found, length, taken) is not None), None)


def is_too_many(prefix_length: int) -> bool:
    """Whether an Allocation of this size is more than one may be."""
    return prefix_length < _SMALLEST_ALLOCATION_PREFIX


def shuffled(within: IPv4Network, seed: str) -> Iterator[IPv4Address]:
    """All addresses of a range in an order that the seed decides on. The same seed, the same order.

    The stride is odd and the size a power of two, so each comes once. With a stride of one, searches would
    run into one another's heaps.
    """
    size = within.num_addresses
    digest = hashlib.sha256(seed.encode()).digest()
    start, stride = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big") | 1
    return (within[(start + number * stride) % size] for number in range(size))
