"""One bridge network per namespace, and the firewall rules of all networks.

The records `namespaces/<name>/network.json` are authoritative; Podman's network and the firewall tables are
made from them and can be made again. Podman's DNS is not used, because its look-ups hang for seconds whenever
a container starts or stops; names are resolved by a hosts file.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from neocloud.engines.base import EngineError
from neocloud.engines.manifest import NetworkPolicy
from neocloud.engines.podman.host import resolver_configuration
from neocloud.engines.podman.layout import Layout, Objects, logged, read_record, write_record
from neocloud.engines.podman.libpod import Conflict, Libpod, NotFound
from neocloud.engines.podman.network.addresses import (
    NamespaceNetwork,
    add_public_addresses,
    candidate_subnets,
    end_connections,
    withdraw_public_addresses,
)
from neocloud.engines.podman.network.firewall import Egress, name_servers, render_tables
from neocloud.engines.podman.network.loaded_rules import LoadedRules
from neocloud.engines.podman.network.netavark import remove_network_rules
from neocloud.engines.podman.network.platform_services import PlatformServices
from neocloud.engines.podman.network.public_interface import PublicInterface
from neocloud.engines.podman.network.virtual_networks import NetworkSnapshot, VirtualNetworks
from neocloud.engines.podman.storage.mounts import remove_tree

logger = logging.getLogger(__name__)

_ROUTES = Path("/proc/net/route")


class NamespaceNetworks:
    """Creates, records and removes the networks of all namespaces."""

    def __init__(
        self,
        layout: Layout,
        libpod: Libpod,
        pool: IPv4Network,
        virtual: VirtualNetworks,
        objects: Objects,
        opened: Sequence[IPv4Network],
        public_interface: PublicInterface,
        other_homes: Callable[[], Iterable[Path]] = tuple,
        platform_services: PlatformServices | None = None,
    ) -> None:
        self.layout = layout
        self.public_interface = public_interface
        self.platform_services = platform_services or PlatformServices(layout, objects)
        self._libpod = libpod
        self._pool = pool
        self._virtual = virtual
        self._objects = objects
        self._opened = tuple(opened)
        self._other_homes = other_homes
        self._lock = asyncio.Lock()
        self._rules = LoadedRules()
        self._synced = SingleFlight(self._sync)
        self._public: dict[IPv4Address, IPv4Address] | None = None
        """Public addresses and the private addresses that the loaded rules forward them to; None at first."""

    def namespaces(self) -> list[str]:
        folder = self.layout.namespaces
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def find(self, namespace: str) -> NamespaceNetwork | None:
        """Return the recorded network of a namespace."""
        record = read_record(self._record_path(namespace))
        return NamespaceNetwork.from_record(record) if record else None

    async def ensure(self, namespace: str) -> None:
        """Create what is missing of network, record and rules; a reboot removes the rules."""
        async with self._lock:
            network = self.find(namespace)
            if network is None or not await self._libpod.exists(self._path(namespace)):
                with logged(logger, f"Created the network of namespace {namespace}"):
                    await self._create(namespace, network)
        await self.sync()

    async def remove(self, namespace: str) -> None:
        """Remove the network of a namespace and a virtual network in it.

        Raises EngineError while pods of other namespaces use the virtual network.
        """
        await self._virtual.remove(namespace, with_pods_of=namespace)
        async with self._lock:
            with logged(logger, f"Removed the network of namespace {namespace}"):
                await self._libpod.delete(self._path(namespace), force=True)
                await remove_network_rules(self.layout.network(namespace))
                await asyncio.to_thread(remove_tree, self.layout.namespace(namespace))
        await self.sync()

    async def sync(self) -> None:
        """Load the firewall rules for the recorded state."""
        await self._synced()

    async def allocate(self, namespace: str, pod: str) -> IPv4Address:
        """Return the address of a pod and record it."""
        async with self._lock:
            network = self._known(namespace)
            before = network.record()
            address = network.allocate(pod)
            if network.record() != before:
                write_record(self._record_path(namespace), network.record())
            return address

    async def release(self, namespace: str, pod: str) -> None:
        """Record that the address of a removed pod may be reused."""
        async with self._lock:
            network = self.find(namespace)
            if network:
                network.release(pod)
                write_record(self._record_path(namespace), network.record())

    def _known(self, namespace: str) -> NamespaceNetwork:
        network = self.find(namespace)
        if network is None:
            raise EngineError(f"Namespace {namespace} does not exist; apply it before its objects.")
        return network

    def _record_path(self, namespace: str) -> Path:
        return self.layout.namespace(namespace) / "network.json"

    def _path(self, namespace: str) -> str:
        return f"/networks/{self.layout.network(namespace)}"

    async def _create(self, namespace: str, known: NamespaceNetwork | None) -> None:
        """Create Podman's network: as recorded, as Podman still has it, or on the next free subnet."""
        known = known or await self._adopt(namespace)
        options = [known] if known else self._proposals()
        for network in options:
            write_record(self._record_path(namespace), network.record())
            if await self._create_in_podman(namespace, network):
                return
        self._record_path(namespace).unlink(missing_ok=True)
        raise EngineError(
            f"No free subnet for namespace {namespace} is left in {self._pool}; "
            "give the engine another address pool."
        )

    async def _adopt(self, namespace: str) -> NamespaceNetwork | None:
        try:
            found = await self._libpod.get(f"{self._path(namespace)}/json")
        except NotFound:
            return None
        subnet = IPv4Network(found["subnets"][0]["subnet"])
        return NamespaceNetwork(subnet, found["network_interface"])

    def _proposals(self) -> Iterable[NamespaceNetwork]:
        ours = [self.find(namespace) for namespace in self.namespaces()]
        taken = [*host_subnets(), *self._virtual.ranges(), *(network.subnet for network in ours if network)]
        taken += self._subnets_of_others()
        # State folders on one machine start at different numbers, because bridges without pods show no route.
        start = int(self.layout.id, 16)
        for number, subnet in candidate_subnets(self._pool, taken, start):
            yield NamespaceNetwork(subnet, f"{self.layout.interface_prefix}{number}")

    def _subnets_of_others(self) -> Iterable[IPv4Network]:
        """Yield the subnets of other clouds on this host: one that is down has no routes, and comes back."""
        for home in self._other_homes():
            for path in Layout.of(home).namespaces.glob("*/network.json"):
                record = read_record(path)
                if record:
                    yield NamespaceNetwork.from_record(record).subnet

    async def _create_in_podman(self, namespace: str, network: NamespaceNetwork) -> bool:
        body = {
            "name": self.layout.network(namespace),
            "driver": "bridge",
            "network_interface": network.interface,
            "dns_enabled": False,
            "subnets": [{"subnet": str(network.subnet), "gateway": str(network.gateway)}],
            "labels": {"neocloud.home": self.layout.label, "neocloud.namespace": namespace},
        }
        try:
            await self._libpod.post("/networks/create", body)
        except Conflict:
            return True
        except EngineError as error:
            if "subnet" in str(error) and "used" in str(error):
                return False
            raise
        return True

    async def _sync(self) -> None:
        """Load the rules; before it, remove unused public addresses; after it, add and announce new ones."""
        networks = {name: found for name in self.namespaces() if (found := self.find(name))}
        snapshot = self._virtual.snapshot()
        present: set[IPv4Address] = set()
        if snapshot and (snapshot.public_addresses() or self._public != {}):
            snapshot, present = await self._settle_public_addresses(snapshot)
        public = snapshot.public_addresses() if snapshot else {}
        bridges = [(network.interface, network.subnet) for network in networks.values()]
        services = self.platform_services.granted(
            {n: each.interface for n, each in networks.items()}, snapshot
        )
        began = time.monotonic()
        answers = self.public_interface.render(public) if snapshot else ""
        rules = render_tables(self.layout, bridges, snapshot, self._egress(), answers, services)
        if await self._rules.load(rules):
            logger.debug("Loaded changed firewall rules in %.3f s", time.monotonic() - began)
        if snapshot and self._public is None and not self.public_interface.name:
            await self.public_interface.remove_table()  # of an engine before, which had an interface
        await self.platform_services.settle_addresses(services)
        before = self._public or {}
        await end_connections(a for a, leads_to in before.items() if public.get(a) != leads_to)
        self._public = public
        await add_public_addresses(self.layout, public.keys() - present)
        await self.public_interface.announce(a for a in before if a in public and before[a] != public[a])

    async def _settle_public_addresses(
        self, snapshot: NetworkSnapshot
    ) -> tuple[NetworkSnapshot, set[IPv4Address]]:
        """Remove addresses that are unused or another machine's.

        Return the snapshot without those of other machines, and the addresses that are there already.
        """
        wanted = snapshot.public_addresses()
        present = await withdraw_public_addresses(self.layout, wanted)
        withheld = await self.public_interface.settle(wanted, present)
        if withheld:
            snapshot = replace(snapshot, withheld=withheld)
            present = await withdraw_public_addresses(self.layout, snapshot.public_addresses())
        return snapshot, present

    def _egress(self) -> Egress:
        resolver, _ = resolver_configuration()
        namespaces = (policy.namespace for policy in self._objects.all(NetworkPolicy) if policy.denies_egress)
        sealed = (self.find(namespace) for namespace in namespaces)
        return Egress(
            opened=self._opened,
            resolvers=name_servers(resolver),
            sealed=tuple(sorted({network.interface for network in sealed if network})),
        )


def host_subnets() -> list[IPv4Network]:
    """Return the subnets that this machine routes already, without the default route."""
    found: list[IPv4Network] = []
    for line in _ROUTES.read_text().splitlines()[1:]:
        fields = line.split()
        destination, mask = (_little_endian(fields[index]) for index in (1, 7))
        if int(mask):
            found.append(IPv4Network(f"{destination}/{mask}", strict=False))
    return found


def _little_endian(text: str) -> IPv4Address:
    return IPv4Address(bytes.fromhex(text)[::-1])


class SingleFlight:
    """Each call waits for a run that began after the call; calls that wait at the same time share a run."""

    def __init__(self, job: Callable[[], Awaitable[None]]) -> None:
        self._job = job
        self._lock = asyncio.Lock()
        self._requested = 0
        self._completed = 0

    async def __call__(self) -> None:
        self._requested += 1
        mine = self._requested
        async with self._lock:
            if self._completed >= mine:
                return
            covered = self._requested
            await self._job()
            self._completed = covered
