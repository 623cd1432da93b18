# pyright: strict
"""Attach pods to virtual networks and detach them.

The address of a pod is settled before anything of it is created, and the firewall knows its bridge port
before its program runs, so that no packet of it goes unchecked. Netavark numbers bridge ports in the order of
their creation, so the port is looked up once the pod has its network. It is recorded with the kernel's
interface number; a record whose interface is gone, as after a reboot, is ignored.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.manifest import Pod
from neocloud.engines.manifest.network_spec import Member
from neocloud.engines.podman.containers import monitor_ended
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.libpod import Libpod
from neocloud.engines.podman.network.addresses import check_public_address
from neocloud.engines.podman.network.dns import HostsFiles
from neocloud.engines.podman.network.namespace_networks import NamespaceNetworks
from neocloud.engines.podman.network.virtual_networks import BRIDGE_FILTER, VirtualNetworks
from neocloud.engines.podman.records import read_record, write_record

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
        return self._layout.namespace(pod.namespace) / "pods" / pod.name / "port.json"


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
        if before["State"]["Status"] != "initialized" and not await monitor_ended(before["Id"]):
            raise EngineError(f"Pod {member.pod.name} is still being stopped; apply it again.")
        await self._libpod.post(f"/containers/{container}/init")
        found = await self._libpod.get(f"/containers/{container}/json")
        bridge = self._virtual.bridge_of(member)
        await self._ports.bind(member.pod, found["NetworkSettings"]["SandboxKey"], bridge.interface)
        await self._networks.sync()

    def forget(self, pod: Reference) -> None:
        """Drop the record of a removed pod."""
        self._ports.forget(pod)
