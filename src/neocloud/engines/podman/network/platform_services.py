"""Let pods reach platform services: programs of the cloud on this machine, such as the object gateway.

A service has an address that nothing else has, on the loopback interface under a label of ours, while any pod
may reach it. Its program listens there on a port of its own; packets of pods to the port that they know are
translated to it. Only such connections pass the firewall to this machine: not those to another port, protocol
or address, and none from other interfaces of this machine. Packets of members of virtual networks have passed
the rules of their security groups and the check of their source address before.

Which bridges may: those of namespaces with a NetworkPolicy, and of virtual networks, that name the service.
"""

import logging
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from neocloud.engines.base import EngineError, PlatformService
from neocloud.engines.manifest import NetworkPolicy, VirtualNetwork
from neocloud.engines.podman.layout import Layout, Objects
from neocloud.engines.podman.network.addresses import (
    add_service_address,
    withdraw_service_addresses,
)
from neocloud.engines.podman.network.security_rules import rendered_chain, rendered_set
from neocloud.engines.podman.network.virtual_networks import NetworkSnapshot

logger = logging.getLogger(__name__)

_TARGETS = -105
"""Priority as for public addresses: after the check of departing packets, before netavark's translation."""


@dataclass(frozen=True)
class ServiceAccess:
    """The bridge interfaces from which a service may be reached."""

    service: PlatformService
    interfaces: frozenset[str]


@dataclass(frozen=True)
class ServiceRules:
    """Parts of our table, as text."""

    objects: Sequence[str] = ()
    """Sets and chains."""
    closed_to_others: Sequence[str] = ()
    """Rules of the chain `input` for packets from interfaces that are no bridges of ours."""
    allowed: Sequence[str] = ()
    """Rules of the same chain for packets of pods."""


def render_services(granted: Sequence[ServiceAccess], ours: str) -> ServiceRules:
    """Return the rules; `ours` matches the interfaces of all bridges of this cloud."""
    sets: list[str] = []
    translations: list[str] = []
    closed: list[str] = []
    allowed: list[str] = []
    for number, access in enumerate(granted):
        service, users = access.service, f"may_use_{number}"
        names = (f'"{interface}"' for interface in access.interfaces)
        sets += rendered_set(users, "ifname", names)
        address, port, target = service.address, service.port, service.target_port
        translations.append(
            f"iifname @{users} ip daddr {address} tcp dport {port} dnat ip to {address}:{target}"
        )
        closed.append(f'    iifname != "lo" iifname != {ours} ip daddr {address} counter drop')
        allowed.append(
            f"    iifname @{users} ip daddr {address} tcp dport {target} ct status dnat"
            f" ct original ip daddr {address} ct original proto-dst {port} accept"
        )
    if not granted:
        return ServiceRules()
    chain = rendered_chain(
        "platform_services", f"type nat hook prerouting priority {_TARGETS}; policy accept;", *translations
    )
    return ServiceRules([*sets, *chain], closed, allowed)


@dataclass
class PlatformServices:
    """The services that this engine was given, and who may reach them."""

    layout: Layout
    objects: Objects
    services: Sequence[PlatformService] = ()
    _present: set[IPv4Address] | None = None
    """The addresses that were settled last; None at first, when those of an engine before may be there."""

    def of_namespace(self, namespace: str) -> list[PlatformService]:
        policies = self.objects.list(namespace, NetworkPolicy)
        return self._named(name for policy in policies for name in policy.platform_services)

    def of_network(self, network: VirtualNetwork | None) -> list[PlatformService]:
        return self._named(network.platform_services) if network else []

    def granted(
        self, bridges: Mapping[str, str], snapshot: NetworkSnapshot | None
    ) -> tuple[ServiceAccess, ...]:
        """Return the services that anybody may reach. `bridges`: the interface of each namespace."""
        if not self.services:
            return ()
        found = [
            (service, bridges[policy.namespace])
            for policy in self.objects.all(NetworkPolicy)
            if policy.namespace in bridges
            for service in self._named(policy.platform_services)
        ]
        if snapshot:
            found += [
                (service, bridge.interface)
                for network in snapshot.networks
                for service in self.of_network(network)
                for bridge in snapshot.bridges_of(network.namespace)
            ]
        return tuple(
            ServiceAccess(each, users)
            for each in self.services
            if (users := frozenset(interface for service, interface in found if service == each))
        )

    async def settle_addresses(self, granted: Iterable[ServiceAccess]) -> None:
        """Have the addresses of these services on this machine, and of ours no others."""
        wanted = {access.service.address for access in granted}
        if not self.services or (wanted == self._present and all(map(_is_here, wanted))):
            return
        present = await withdraw_service_addresses(self.layout, wanted)
        for address in wanted - present:
            try:
                await add_service_address(self.layout, address)
            except EngineError as error:  # another cloud has it, too: the rest of the network continues
                logger.warning("The address %s of a platform service was not added: %s", address, error)
        self._present = wanted

    def details(self) -> Iterator[tuple[str, str]]:
        """Yield what `neo status` shows."""
        for service in self.services:
            where = f"{service.host_name}:{service.port} ({service.address})"
            yield f"{service.name} for workloads", where

    def _named(self, names: Iterable[str]) -> list[PlatformService]:
        wanted = set(names)
        return [service for service in self.services if service.name in wanted]


def _is_here(address: IPv4Address) -> bool:
    """Return whether this machine has the address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
