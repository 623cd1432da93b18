"""Virtual networks on this machine: a bridge for each address range of each subnet.

Applied objects are authoritative: networks and pods are stored as manifests, bridge names in one record. This
module creates and removes Podman's networks; `firewall.py` decides which packets may pass, from a
`NetworkSnapshot`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.manifest import Pod
from neocloud.engines.manifest.network_spec import Member, Subnet, VirtualNetwork
from neocloud.engines.network_rules import check_member, check_network, check_unused
from neocloud.engines.podman.layout import Layout, Objects, logged, read_record, write_record
from neocloud.engines.podman.libpod import Conflict, Libpod
from neocloud.engines.podman.network.netavark import remove_network_rules

logger = logging.getLogger(__name__)

BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


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
    withheld: frozenset[IPv4Address] = frozenset()
    """Public addresses that lead nowhere, because another machine has them."""

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
        public = {each.public_address: each.address for each in found if each.public_address}
        return {address: leads_to for address, leads_to in public.items() if address not in self.withheld}


def attached_members(snapshot: NetworkSnapshot) -> Iterable[tuple[Member, Bridge]]:
    """Yield the members whose bridge exists."""
    for member in snapshot.members:
        bridge = snapshot.bridge_of(member)
        if bridge:
            yield member, bridge


class VirtualNetworks:
    """Creates, records and removes the bridges of virtual networks, and admits pods to them."""

    def __init__(
        self, layout: Layout, libpod: Libpod, objects: Objects, find_port: Callable[[Reference], str | None]
    ) -> None:
        self._layout = layout
        self._libpod = libpod
        self._objects = objects
        self._find_port = find_port
        self._lock = asyncio.Lock()
        self._admitted: dict[str, Reference] = {}
        """Addresses and names reserved by pods that are being applied."""

    def networks(self) -> list[VirtualNetwork]:
        return self._objects.all(VirtualNetwork)

    def find(self, namespace: str) -> VirtualNetwork | None:
        return next(iter(self._objects.list(namespace, VirtualNetwork)), None)

    def members(self, namespace: str | None = None) -> list[Member]:
        """Return the pods on any virtual network, of all namespaces or one."""
        pods = self._objects.list(namespace, Pod) if namespace else self._objects.all(Pod)
        return [member for pod in pods if (member := pod.member)]

    def ranges(self) -> list[IPv4Network]:
        return [bridge.cidr for bridge in self._bridges()]

    def snapshot(self) -> NetworkSnapshot | None:
        """Return the state of all virtual networks; None if there has never been one."""
        if not self._record_path().exists():
            return None
        members = self.members()
        ports = {member.pod: self._find_port(member.pod) for member in members}
        return NetworkSnapshot(
            networks=tuple(self.networks()),
            bridges=tuple(self._bridges()),
            members=tuple(members),
            ports={pod: port for pod, port in ports.items() if port},
        )

    def bridge_of(self, member: Member) -> Bridge:
        bridge = NetworkSnapshot(bridges=tuple(self._bridges())).bridge_of(member)
        if bridge is None:
            raise EngineError(
                f"Pod {member.pod.name}: the bridge of subnet {member.interface.subnet} is not there; "
                f"apply VirtualNetwork {member.interface.network} again."
            )
        return bridge

    async def apply(self, network: VirtualNetwork) -> None:
        async with self._lock:
            await self._apply(network)

    async def _apply(self, network: VirtualNetwork) -> None:
        check_network(network, self.networks(), self.members())
        _refuse_custom_next_hops(network)
        _require_bridge_filter()
        known = {bridge.name: bridge for bridge in self._bridges() if bridge.network == network.namespace}
        wanted = {bridge.name: bridge for bridge in _wanted_bridges(network)}
        for name, bridge in known.items():
            if name not in wanted or wanted[name].gateway != bridge.gateway:
                self._refuse_if_occupied(bridge)
                await self._remove_bridge(bridge)
        self._objects.put(network)
        for bridge in wanted.values():
            await self._ensure_bridge(bridge)

    async def remove(self, namespace: str, *, with_pods_of: str = "") -> None:
        """Remove the network of a namespace and its bridges. Raises EngineError while other pods use it."""
        async with self._lock:
            self.check_unused(namespace, with_pods_of=with_pods_of)
            for bridge in self._bridges():
                if bridge.network == namespace:
                    await self._remove_bridge(bridge)
            for network in self._objects.list(namespace, VirtualNetwork):
                self._objects.remove(network.reference)

    def check_unused(self, namespace: str, *, with_pods_of: str = "") -> None:
        check_unused(namespace, (m for m in self.members() if m.pod.namespace != with_pods_of))

    @contextlib.contextmanager
    def admitted(self, member: Member) -> Generator[None, None, None]:
        """Check that the pod fits; reserve what it holds while the caller applies it. Raises EngineError."""
        holders = {what: each.pod for each in self.members() for what in each.holdings}
        check_member(member, self.find, holders | self._admitted)
        self._admitted |= dict.fromkeys(member.holdings, member.pod)
        try:
            yield
        finally:
            for what in member.holdings:
                self._admitted.pop(what, None)

    def network_name(self, bridge: Bridge) -> str:
        """Return Podman's name of the bridge's network."""
        return f"{self._layout.network(bridge.network)}.{bridge.name}"

    def _record_path(self) -> Path:
        return self._layout.engine / "subnets.json"

    def _bridges(self) -> list[Bridge]:
        record = read_record(self._record_path()) or {"bridges": []}
        return [_bridge(fields) for fields in record["bridges"]]

    def _write(self, bridges: list[Bridge]) -> None:
        rows = [{name: str(value) for name, value in asdict(bridge).items()} for bridge in bridges]
        write_record(self._record_path(), {"bridges": rows})

    async def _ensure_bridge(self, wanted: Bridge) -> None:
        bridges = self._bridges()
        bridge = next((b for b in bridges if (b.network, b.name) == (wanted.network, wanted.name)), None)
        if bridge is None:
            bridge = replace(wanted, interface=self._free_interface(bridges))
            self._write([*bridges, bridge])
        if not await self._libpod.exists(f"/networks/{self.network_name(bridge)}"):
            try:
                with logged(logger, f"Created bridge {bridge.interface} of {self.network_name(bridge)}"):
                    await self._create(bridge)
            except EngineError:
                self._write([each for each in self._bridges() if each != bridge])
                raise

    async def _create(self, bridge: Bridge) -> None:
        body = {
            "name": self.network_name(bridge),
            "driver": "bridge",
            "network_interface": bridge.interface,
            "dns_enabled": False,
            "subnets": [{"subnet": str(bridge.cidr), "gateway": str(bridge.gateway)}],
            "labels": {"neocloud.home": self._layout.label, "neocloud.namespace": bridge.network},
        }
        try:
            await self._libpod.post("/networks/create", body)
        except Conflict:
            return
        except EngineError as error:
            if "subnet" in str(error) and "used" in str(error):
                raise EngineError(
                    f"Subnet {bridge.subnet}: {bridge.cidr} is in use on this machine already; choose a "
                    "range that neither its networks nor another cloud on it has."
                ) from error
            raise

    async def _remove_bridge(self, bridge: Bridge) -> None:
        name = self.network_name(bridge)
        with logged(logger, f"Removed bridge {bridge.interface} of {name}"):
            await self._libpod.delete(f"/networks/{name}", force=True)
            await remove_network_rules(name)
        self._write([each for each in self._bridges() if each != bridge])

    def _refuse_if_occupied(self, bridge: Bridge) -> None:
        for member in self.members():
            if member.interface.network == bridge.network and member.interface.address in bridge.cidr:
                raise EngineError(
                    f"Subnet {bridge.subnet}: its range {bridge.cidr} or gateway cannot change while pod "
                    f"{member.pod.name} of namespace {member.pod.namespace} is on it; remove that pod first."
                )

    def _free_interface(self, bridges: list[Bridge]) -> str:
        taken = {bridge.interface for bridge in bridges}
        numbers = (f"{self._layout.interface_prefix}v{number}" for number in range(len(taken) + 1))
        return next(name for name in numbers if name not in taken)


def _wanted_bridges(network: VirtualNetwork) -> Iterator[Bridge]:
    for subnet in network.subnets:
        for cidr in subnet.cidrs:
            yield Bridge(network.namespace, subnet.name, cidr, subnet.gateway_of(cidr), "")


def _bridge(fields: Mapping[str, str]) -> Bridge:
    return Bridge(
        network=fields["network"],
        subnet=fields["subnet"],
        cidr=IPv4Network(fields["cidr"]),
        gateway=IPv4Address(fields["gateway"]),
        interface=fields["interface"],
    )


def _require_bridge_filter() -> None:
    """Raise EngineError unless the kernel can filter packets between ports of one bridge."""
    if not BRIDGE_FILTER.exists():
        raise EngineError(
            "Virtual networks need the kernel module br_netfilter, which is not loaded: without it security "
            "groups would not hold between pods of one subnet. Load it with: modprobe br_netfilter"
        )


def _refuse_custom_next_hops(network: VirtualNetwork) -> None:
    for subnet in network.subnets:
        for route in subnet.routes:
            if route.next_hop:
                raise EngineError(
                    f"VirtualNetwork {network.name}, subnet {subnet.name}: the route to {route.destination} "
                    f"by {route.next_hop} cannot be kept on this machine; only the next hop 'egress' can."
                )
