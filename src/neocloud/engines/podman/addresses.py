"""Which subnet a namespace has and which address each of its pods.

Pure. A pod keeps its address while it exists and gets the same one when it is made again under its name, so
that daemons which remember an address find their peer again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from neocloud.engines.base import EngineError

_SUBNET_BITS = 24


@dataclass
class NamespaceNetwork:
    """One bridge: its subnet, its interface, the address of every pod name seen so far."""

    subnet: IPv4Network
    interface: str
    addresses: dict[str, IPv4Address] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    """Pod names that are gone, oldest first; their addresses are given away last."""

    @property
    def gateway(self) -> IPv4Address:
        return self.subnet[1]

    def allocate(self, pod: str) -> IPv4Address:
        if pod in self.released:
            self.released.remove(pod)
        if pod not in self.addresses:
            self.addresses[pod] = self._free_address()
        return self.addresses[pod]

    def release(self, pod: str) -> None:
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

    def record(self) -> dict[str, Any]:
        return {
            "subnet": str(self.subnet),
            "interface": self.interface,
            "addresses": {pod: str(address) for pod, address in self.addresses.items()},
            "released": self.released,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "NamespaceNetwork":
        return cls(
            IPv4Network(record["subnet"]),
            record["interface"],
            {pod: IPv4Address(text) for pod, text in record["addresses"].items()},
            list(record["released"]),
        )


def candidate_subnets(
    pool: IPv4Network, taken: Iterable[IPv4Network], start: int
) -> Iterable[tuple[int, IPv4Network]]:
    """Free subnets of the pool with their numbers, beginning at `start` and going round."""
    taken = list(taken)
    subnets = list(pool.subnets(new_prefix=_SUBNET_BITS))
    for offset in range(len(subnets)):
        number = (start + offset) % len(subnets)
        if not any(subnets[number].overlaps(other) for other in taken):
            yield number, subnets[number]
