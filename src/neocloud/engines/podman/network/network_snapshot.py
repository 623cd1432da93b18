# pyright: strict
"""State of all virtual networks that the firewall rules are made from. Pure data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from neocloud.engines.base import Reference
from neocloud.engines.manifest.network_spec import Member, Subnet, VirtualNetwork


@dataclass(frozen=True)
class Bridge:
    """The bridge of one address range of one subnet."""

    network: str
    subnet: str
    cidr: IPv4Network
    gateway: IPv4Address
    interface: str

    @property
    def name(self) -> str:
        """Name that is unique among the bridges of its network."""
        return f"{self.subnet}.{str(self.cidr).replace('/', '-')}"


@dataclass(frozen=True)
class NetworkSnapshot:
    """Virtual networks, their bridges, and the pods attached to them, at one moment."""

    networks: tuple[VirtualNetwork, ...] = ()
    bridges: tuple[Bridge, ...] = ()
    members: tuple[Member, ...] = ()
    ports: Mapping[Reference, str] = field(default_factory=dict[Reference, str])
    """The bridge port of each pod that has one."""

    def bridge_of(self, member: Member) -> Bridge | None:
        interface = member.interface
        return next((b for b in self.bridges_of(interface.network) if interface.address in b.cidr), None)

    def bridges_of(self, network: str) -> list[Bridge]:
        return [bridge for bridge in self.bridges if bridge.network == network]

    def subnet_of(self, bridge: Bridge) -> Subnet | None:
        network = next((n for n in self.networks if n.namespace == bridge.network), None)
        return network.subnet(bridge.subnet) if network else None

    def public_addresses(self) -> dict[IPv4Address, IPv4Address]:
        """Return the private address by public address."""
        found = (member.interface for member in self.members)
        return {each.public_address: each.address for each in found if each.public_address}


def attached_members(snapshot: NetworkSnapshot) -> Iterable[tuple[Member, Bridge]]:
    """Yield the members whose bridge exists."""
    for member in snapshot.members:
        bridge = snapshot.bridge_of(member)
        if bridge:
            yield member, bridge
