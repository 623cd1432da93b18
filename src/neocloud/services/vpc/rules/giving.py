"""Giving addresses out of ranges: a chosen block, or any free one."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from neocloud.core.readers import ResourceReader
from neocloud.services.vpc.rules.addresses import shuffled

_BLIND_TRIES = 32
"""How often to claim without looking. Where a tenth is free one of them succeeds nearly always, and nobody
has to read what all others hold."""


@dataclass(frozen=True)
class Range:
    """Addresses of one namespace that may be given."""

    namespace: str
    cidr: IPv4Network
    max_mask_length: int
    reserved: frozenset[IPv4Address]
    pool_id: str
    subnet_id: str = ""
    without: tuple[IPv4Network, ...] = ()

    def may_give(self, block: IPv4Network) -> bool:
        if block.prefixlen > self.max_mask_length or not block.subnet_of(self.cidr):
            return False
        is_reserved = any(address in block for address in self.reserved)
        return not is_reserved and not any(block.overlaps(part) for part in self.without)


Given = tuple[Range, IPv4Network]


def take(block: IPv4Network, ranges: Iterable[Range], holder: str, world: ResourceReader) -> Given | None:
    """Exactly this block; None when any address of it is taken."""
    within = next((each for each in ranges if each.may_give(block)), None)
    return (within, block) if within is not None and _claim(within, block, holder, world) else None


def free_block(
    prefix_length: int, ranges: Iterable[Range], holder: str, world: ResourceReader
) -> Given | None:
    """Any block of this length. Single addresses come from all over the range, as the holder's id decides."""
    for within in ranges:
        block = (
            _free_address(within, holder, world)
            if prefix_length == 32
            else _first_free(within, prefix_length, holder, world)
        )
        if block is not None:
            return within, block
    return None


def _free_address(within: Range, holder: str, world: ResourceReader) -> IPv4Network | None:
    if within.max_mask_length < 32:
        return None
    taken: Iterable[str] | None = None
    for number, address in enumerate(shuffled(within.cidr, holder)):
        if number == _BLIND_TRIES:
            taken = frozenset(world.reservations(within.namespace))
        block = IPv4Network(address)
        if str(address) in (taken or ()) or not within.may_give(block):
            continue
        if world.reserve(within.namespace, str(address), holder):
            return block
    return None


def _first_free(within: Range, prefix_length: int, holder: str, world: ResourceReader) -> IPv4Network | None:
    if prefix_length < within.cidr.prefixlen:
        return None
    taken = frozenset(world.reservations(within.namespace))
    for block in within.cidr.subnets(new_prefix=prefix_length):
        is_free = within.may_give(block) and not any(str(address) in taken for address in block)
        if is_free and _claim(within, block, holder, world):
            return block
    return None


def _claim(within: Range, block: IPv4Network, holder: str, world: ResourceReader) -> bool:
    """All addresses of the block or none that is kept: a refusal ends the transaction."""
    return all(world.reserve(within.namespace, str(address), holder) for address in block)
