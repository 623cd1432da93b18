"""Give pods their names and addresses: hosts files, and attachments to virtual networks.

Each namespace has one hosts file, and a second for its pods on a virtual network. The second names all pods
on that network, those of the own namespace first: two clusters on one network may both have a pod
`controller`, and each finds its own. A hosts file is rewritten in place, because a mount holds the file
itself and would not see a new one under the same name.

The address of a pod is settled before anything of it is created, and the firewall knows its bridge port
before its program runs, so that no packet of it goes unchecked. Netavark numbers bridge ports in the order of
their creation, so the port is looked up once the pod has its network. It is recorded with the kernel's
interface number; a record whose interface is gone, as after a reboot, is ignored.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from neocloud.engines.base import EngineError, PlatformService, Reference
from neocloud.engines.manifest import Pod, Service, VirtualNetwork
from neocloud.engines.manifest.network_spec import Member
from neocloud.engines.podman.containers import monitors_ended
from neocloud.engines.podman.layout import Layout, Objects, read_record, write_record
from neocloud.engines.podman.libpod import Libpod
from neocloud.engines.podman.network.addresses import check_public_address
from neocloud.engines.podman.network.namespace_networks import NamespaceNetworks, SingleFlight
from neocloud.engines.podman.network.virtual_networks import BRIDGE_FILTER, VirtualNetworks

_FIRST_LINES = ("127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback")
_GATEWAY = "_gateway"
"""The name in nss-myhostname. No pod can have this name."""
_PREFIX = "hosts-"


@dataclass(frozen=True)
class HostEntry:
    """A pod with its address, as a hosts file names it."""

    address: IPv4Address
    pod: Pod
    domain: str = ""
    """Domain of its virtual network."""


def render_hosts(
    pods: Iterable[HostEntry],
    services: Iterable[Service],
    others: Iterable[HostEntry] = (),
    gateways: Iterable[IPv4Address] = (),
    platform_services: Iterable[PlatformService] = (),
) -> str:
    """Return the content of a hosts file.

    A service adds its name to each pod that it selects. The first line with a name counts: platform services
    come first, so that no pod takes the name of one, and `others` last. The machine's own calls come from the
    gateways. They have a name, because programs such as slurmctld look up the name of each client, and wait
    for seconds where the name server is silent.
    """
    services = list(services)
    lines = [*_FIRST_LINES, *(f"{each.address} {each.host_name}" for each in platform_services)]
    for entry in sorted(pods, key=lambda entry: entry.address):
        names, pod = _names(entry), entry.pod
        if pod.subdomain:
            names.append(f"{pod.host_name}.{pod.subdomain}")
        names += [service.name for service in services if service.selects(pod.labels)]
        lines.append(f"{entry.address} {' '.join(dict.fromkeys(names))}")
    for entry in sorted(others, key=lambda entry: entry.address):
        lines.append(f"{entry.address} {' '.join(_names(entry))}")
    lines += [f"{address} {_GATEWAY}" for address in gateways]
    return "\n".join(lines) + "\n"


def _names(entry: HostEntry) -> list[str]:
    hostname = entry.pod.host_name
    return [hostname, f"{hostname}.{entry.domain}"] if entry.domain else [hostname]


def write_in_place(path: Path, text: str) -> None:
    """Replace the content of the same file in one write, so that no reader finds it half empty."""
    content = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(handle, 0o644)
        if os.pread(handle, len(content) + 1, 0) != content:
            os.pwrite(handle, content, 0)
            os.ftruncate(handle, len(content))
    finally:
        os.close(handle)


class HostsFiles:
    """Keeps the hosts files of all namespaces in step with their pods."""

    def __init__(
        self, layout: Layout, networks: NamespaceNetworks, virtual: VirtualNetworks, objects: Objects
    ) -> None:
        self._layout = layout
        self._networks = networks
        self._virtual = virtual
        self._objects = objects
        self._lock = asyncio.Lock()
        self._refresh_networks = SingleFlight(lambda: asyncio.to_thread(self._write_networks))

    def hosts_file(self, namespace: str, network: str | None = None) -> Path:
        """Return the file that pods of the namespace mount, on its own bridge or on a virtual network."""
        return self._layout.namespace(namespace) / (f"{_PREFIX}{network}" if network else "hosts")

    async def refresh(self, namespace: str) -> None:
        """Write the hosts file of a namespace from its applied pods and their addresses."""
        async with self._lock:  # the last writer must also be the last reader
            await asyncio.to_thread(self._write_namespace, namespace)

    async def refresh_networks(self) -> None:
        """Write the hosts files of all virtual networks."""
        await self._refresh_networks()

    def _write_namespace(self, namespace: str) -> None:
        network = self._networks.find(namespace)
        if network is None:
            return
        on_networks = {member.pod.name for member in self._virtual.members(namespace)}
        pods = [
            HostEntry(network.addresses[pod.name], pod)
            for pod in self._objects.list(namespace, Pod)
            if pod.name in network.addresses and pod.name not in on_networks
        ]
        services = self._objects.list(namespace, Service)
        reachable = self._networks.platform_services.of_namespace(namespace)
        text = render_hosts(pods, services, gateways=[network.gateway], platform_services=reachable)
        write_in_place(self.hosts_file(namespace), text)

    def _write_networks(self) -> None:
        members = self._virtual.members()
        wanted = {(member.pod.namespace, member.interface.network) for member in members}
        networks = {network.namespace: network for network in self._virtual.networks()}
        for namespace, network in wanted:
            members_of_network = [member for member in members if member.interface.network == network]
            text = self._hosts_of(namespace, members_of_network, networks.get(network))
            write_in_place(self.hosts_file(namespace, network), text)
        for path in self._layout.namespaces.glob(f"*/{_PREFIX}*"):
            if (path.parent.name, path.name.removeprefix(_PREFIX)) not in wanted:
                path.unlink()

    def _hosts_of(self, namespace: str, members: list[Member], network: VirtualNetwork | None) -> str:
        own = [member for member in members if member.pod.namespace == namespace]
        others = [member for member in members if member.pod.namespace != namespace]
        services = self._objects.list(namespace, Service)
        domain = network.domain if network else ""
        subnets = network.subnets if network else ()
        gateways = [subnet.gateway_of(cidr) for subnet in subnets for cidr in subnet.cidrs]
        inside, outside = (
            [HostEntry(m.interface.address, pod, domain) for m in group if (pod := self._objects.pod(m.pod))]
            for group in (own, others)
        )
        reachable = self._networks.platform_services.of_network(network)
        return render_hosts(inside, services, outside, gateways, reachable)


_INTERFACES = Path("/sys/class/net")
_FILTER_EACH_BRIDGE = "bridge/nf_call_iptables"
_CARD = "eth0"


class BridgePorts:
    """Records of the bridge port that each pod on a virtual network is connected to."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    async def bind(self, pod: Reference, network_namespace: str, bridge: str) -> None:
        """Record the bridge port of the pod with this network namespace, and have the bridge filtered."""
        number = await _peer_of(network_namespace, pod)
        port = await asyncio.to_thread(_interface_with, number)
        if port is None or (_INTERFACES / port / "master").resolve().name != bridge:
            raise EngineError(f"Pod {pod.name} has no port on {bridge}; apply it again.")
        _filter(bridge)
        write_record(self._path(pod), {"port": port, "number": number})

    def find(self, pod: Reference) -> str | None:
        """Return the name of the pod's bridge port, None if it has none now."""
        record = read_record(self._path(pod))
        if record and _number_of(record["port"]) == record["number"]:
            return record["port"]
        return None

    def forget(self, pod: Reference) -> None:
        self._path(pod).unlink(missing_ok=True)

    def _path(self, pod: Reference) -> Path:
        return self._layout.pod(pod) / "port.json"


async def _peer_of(network_namespace: str, pod: Reference) -> int:
    """Return the interface number, on this machine, of the other end of the pod's network interface."""
    process = await asyncio.create_subprocess_exec(
        "nsenter",
        f"--net={network_namespace}",
        *("ip", "-json", "link", "show", _CARD),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise EngineError(f"Pod {pod.name} has no network: {errors.decode(errors='replace').strip()}.")
    return json.loads(output)[0]["link_index"]


def _interface_with(number: int) -> str | None:
    names = (path.name for path in _INTERFACES.iterdir())
    return next((name for name in names if _number_of(name) == number), None)


def _number_of(interface: str) -> int | None:
    try:
        return int((_INTERFACES / interface / "ifindex").read_text())
    except (OSError, ValueError):
        return None


def _filter(bridge: str) -> None:
    """Turn on filtering between the ports of this bridge, unless the machine does it for all bridges."""
    if BRIDGE_FILTER.read_text().strip() == "0":
        (_INTERFACES / bridge / _FILTER_EACH_BRIDGE).write_text("1")


@dataclass(frozen=True)
class PodAddress:
    """Address, network and hosts file of a pod; `network` and `mac` are empty on its namespace's bridge."""

    address: IPv4Address
    hosts_file: Path
    network: str = ""
    mac: str = ""


class Attachments:
    """Attaches pods to the bridge of their namespace or to a virtual network."""

    def __init__(
        self,
        libpod: Libpod,
        networks: NamespaceNetworks,
        virtual: VirtualNetworks,
        ports: BridgePorts,
        hosts_files: HostsFiles,
    ) -> None:
        self._libpod = libpod
        self._networks = networks
        self._virtual = virtual
        self._ports = ports
        self._hosts_files = hosts_files

    @contextlib.asynccontextmanager
    async def admitted(self, pod: Pod) -> AsyncGenerator[None, None]:
        """Check that the pod fits its network and reserve its addresses until the caller has recorded it."""
        member = pod.member
        if member is None:
            yield
            return
        with self._virtual.admitted(member):
            if member.interface.public_address:
                ranges = self._virtual.ranges()
                await check_public_address(self._networks.layout, member.interface.public_address, ranges)
                await self._networks.public_interface.require_free(member.interface.public_address)
            yield

    async def changed(self, before: Pod | None, after: Pod | None) -> None:
        """Update firewall rules and host names if the network interface of a pod changed."""
        old, new = (pod.member if pod else None for pod in (before, after))
        if old != new:
            await self._networks.sync()
            await self._hosts_files.refresh_networks()

    async def assign_address(self, pod: Pod) -> PodAddress:
        """Return where the pod is attached; allocate an address if it has none."""
        member, namespace = pod.member, pod.namespace
        if member is None:
            address = await self._networks.allocate(namespace, pod.name)
            await self._hosts_files.refresh(namespace)
            return PodAddress(address, self._hosts_files.hosts_file(namespace))
        await self._hosts_files.refresh_networks()
        return PodAddress(
            address=member.interface.address,
            hosts_file=self._hosts_files.hosts_file(namespace, member.interface.network),
            network=self._virtual.network_name(self._virtual.bridge_of(member)),
            mac=member.interface.mac,
        )

    async def attach(self, member: Member, container: str) -> None:
        """Create the container's network and add its bridge port to the rules, before its program runs."""
        before = await self._libpod.get(f"/containers/{container}/json")
        if before["State"]["Status"] != "initialized" and not await monitors_ended([before["Id"]]):
            raise EngineError(f"Pod {member.pod.name} is still being stopped; apply it again.")
        await self._libpod.post(f"/containers/{container}/init")
        found = await self._libpod.get(f"/containers/{container}/json")
        bridge = self._virtual.bridge_of(member)
        await self._ports.bind(member.pod, found["NetworkSettings"]["SandboxKey"], bridge.interface)
        await self._networks.sync()

    def forget(self, pod: Reference) -> None:
        """Drop the record of a removed pod."""
        self._ports.forget(pod)
