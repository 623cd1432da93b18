"""Addresses of pods on the bridge of their namespace, and public addresses that this machine announces.

A pod keeps its address while it exists and gets the same one when it is created again under its name, so that
daemons which remember an address find their peer again. Public addresses are added to the loopback interface
with a label of ours, so that packets to them are this machine's; the firewall forwards what arrives to the
pod, and `public_interface.py` says where other machines find them. Addresses of others are never changed.
"""

import asyncio
import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any, NotRequired, TypedDict

from neocloud.engines.base import EngineError
from neocloud.engines.podman.layout import Layout

logger = logging.getLogger(__name__)

_SUBNET_BITS = 24
_INTERFACE = "lo"
_CLOUD_LABEL = f"{_INTERFACE}:nc"


class NetworkRecord(TypedDict):
    """A `NamespaceNetwork` in its file."""

    subnet: str
    interface: str
    addresses: dict[str, str]
    released: list[str]


@dataclass
class NamespaceNetwork:
    """The bridge of a namespace: its subnet, its interface, and the address of every pod name so far."""

    subnet: IPv4Network
    interface: str
    addresses: dict[str, IPv4Address] = field(default_factory=dict[str, IPv4Address])
    released: list[str] = field(default_factory=list[str])
    """Names of removed pods, oldest first; their addresses are assigned last."""

    @property
    def gateway(self) -> IPv4Address:
        return self.subnet[1]

    def allocate(self, pod: str) -> IPv4Address:
        """Return the address of a pod; assign one if it has none. Raises EngineError when all are in use."""
        if pod in self.released:
            self.released.remove(pod)
        if pod not in self.addresses:
            self.addresses[pod] = self._free_address()
        return self.addresses[pod]

    def release(self, pod: str) -> None:
        """Mark the address of a removed pod as reusable."""
        if pod in self.addresses and pod not in self.released:
            self.released.append(pod)

    def _free_address(self) -> IPv4Address:
        taken = set(self.addresses.values())
        for address in list(self.subnet.hosts())[1:]:
            if address not in taken:
                return address
        if not self.released:
            raise EngineError(
                f"All {self.subnet.num_addresses - 3} addresses of the namespace are in use; "
                "remove pods or spread them over several namespaces."
            )
        return self.addresses.pop(self.released.pop(0))

    def record(self) -> NetworkRecord:
        return {
            "subnet": str(self.subnet),
            "interface": self.interface,
            "addresses": {pod: str(address) for pod, address in self.addresses.items()},
            "released": list(self.released),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "NamespaceNetwork":
        return cls(
            IPv4Network(record["subnet"]),
            record["interface"],
            {pod: IPv4Address(text) for pod, text in record["addresses"].items()},
            list(record["released"]),
        )


def candidate_subnets(
    pool: IPv4Network, taken: Iterable[IPv4Network], start: int
) -> Iterable[tuple[int, IPv4Network]]:
    """Yield the free subnets of the pool with their numbers, from number `start` on, wrapping at the end."""
    taken = list(taken)
    subnets = list(pool.subnets(new_prefix=_SUBNET_BITS))
    for offset in range(len(subnets)):
        number = (start + offset) % len(subnets)
        if not any(subnets[number].overlaps(other) for other in taken):
            yield number, subnets[number]


async def check_public_address(layout: Layout, address: IPv4Address, subnets: Iterable[IPv4Network]) -> None:
    """Raise EngineError if this machine uses the address itself or a pod could have it as private address."""
    for subnet in subnets:
        if address in subnet:
            raise EngineError(
                f"Public address {address} lies in {subnet}, a subnet of a virtual network; "
                "leave it out of the pool of public addresses."
            )
    for interface, found, label in await _addresses():
        if found == address and label != _label(layout):
            is_of_cloud = label.startswith(_CLOUD_LABEL)
            owner = "another cloud on this machine" if is_of_cloud else f"{interface} of this machine itself"
            raise EngineError(
                f"Public address {address} belongs to {owner}; leave it out of the pool of public addresses."
            )


async def withdraw_public_addresses(layout: Layout, needed: Iterable[IPv4Address]) -> set[IPv4Address]:
    """Remove our public addresses that are not in `needed`; return those that remain."""
    ours = {address for _, address, label in await _addresses() if label == _label(layout)}
    needed = set(needed)
    for address in ours - needed:
        await _ip("address", "delete", f"{address}/32", "dev", _INTERFACE)
        logger.debug("Removed public address %s", address)
    return ours & needed


async def add_public_addresses(layout: Layout, addresses: Iterable[IPv4Address]) -> None:
    """Add public addresses to the loopback interface."""
    for address in addresses:
        await _ip("address", "add", f"{address}/32", "dev", _INTERFACE, "label", _label(layout))
        logger.debug("Added public address %s", address)


async def end_connections(addresses: Iterable[IPv4Address]) -> None:
    """Delete the tracked connections of public addresses that now lead to another pod.

    Otherwise such a connection stays with the old pod for as long as packets are sent. Does nothing without
    the program `conntrack`; the connections then expire by themselves.
    """
    if shutil.which("conntrack"):
        for address in addresses:
            for side in ("--orig-dst", "--reply-dst"):
                process = await asyncio.create_subprocess_exec(
                    *("conntrack", "--delete", side, str(address)),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                await process.wait()  # fails when there was no connection


async def withdraw_service_addresses(layout: Layout, needed: Iterable[IPv4Address] = ()) -> set[IPv4Address]:
    """Remove the addresses of our platform services that are not in `needed`; return those that remain."""
    ours = {address for _, address, label in await _addresses() if label == _service_label(layout)}
    needed = set(needed)
    for address in ours - needed:
        await _ip("address", "delete", f"{address}/32", "dev", _INTERFACE)
    return ours & needed


async def add_service_address(layout: Layout, address: IPv4Address) -> None:
    """Add the address of a platform service; this machine does not use it as the source of its own calls.

    Raises EngineError where something else on this machine has it.
    """
    label = _service_label(layout)
    await _ip("address", "add", f"{address}/32", "dev", _INTERFACE, "scope", "link", "label", label)


def _service_label(layout: Layout) -> str:
    return f"{_label(layout)}s"


def _label(layout: Layout) -> str:
    return f"{_INTERFACE}:{layout.interface_prefix.removesuffix('-')}"


class _LinkAddress(TypedDict):
    local: NotRequired[str]
    label: NotRequired[str]


class _Link(TypedDict):
    """A network interface, as `ip -json address show` lists it."""

    ifname: str
    addr_info: NotRequired[list[_LinkAddress]]


async def _addresses() -> list[tuple[str, IPv4Address, str]]:
    """Return (interface, address, label) of all IPv4 addresses of this machine."""
    links: list[_Link] = json.loads(await _ip("-json", "-4", "address", "show"))
    return [
        (link["ifname"], IPv4Address(each["local"]), each.get("label", ""))
        for link in links
        for each in link.get("addr_info") or []
        if "local" in each
    ]


async def _ip(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        "ip", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise EngineError(f"ip {' '.join(arguments)} failed: {errors.decode(errors='replace').strip()}.")
    return output
