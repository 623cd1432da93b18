"""How a pod gets onto a virtual network and off it again.

A pod's place is settled before anything of it is made, and its port is known to the firewall before its
program runs: at no moment does it send what nobody checks.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from neocloud.engines.base import EngineError, KubernetesObject, Reference
from neocloud.engines.interface import Member, member_of
from neocloud.engines.podman.libpod import Libpod
from neocloud.engines.podman.names import Names
from neocloud.engines.podman.networks import Networks
from neocloud.engines.podman.ports import Ports
from neocloud.engines.podman.processes import monitor_ended
from neocloud.engines.podman.public_addresses import check_public_address
from neocloud.engines.podman.virtual_networks import VirtualNetworks


@dataclass(frozen=True)
class Place:
    """Where a pod's card goes; `network` and `mac` are empty on the bridge of its namespace."""

    address: IPv4Address
    hosts_file: Path
    network: str = ""
    mac: str = ""


class Plugs:
    def __init__(
        self, libpod: Libpod, networks: Networks, virtual: VirtualNetworks, ports: Ports, names: Names
    ) -> None:
        self._libpod = libpod
        self._networks = networks
        self._virtual = virtual
        self._ports = ports
        self._names = names

    @contextlib.asynccontextmanager
    async def admitted(self, manifest: KubernetesObject) -> AsyncIterator[None]:
        """Refuse a pod that does not fit its network; inside, its manifest is put on the disk."""
        member = member_of(manifest)
        if member is None:
            yield
            return
        with self._virtual.admitted(member):
            if member.interface.public_address:
                ranges = self._virtual.ranges()
                await check_public_address(self._networks.layout, member.interface.public_address, ranges)
            yield

    async def changed(self, before: KubernetesObject | None, after: KubernetesObject | None) -> None:
        """Rules and names follow what a pod was and is."""
        old, new = (member_of(manifest) if manifest else None for manifest in (before, after))
        if old != new:
            await self._networks.sync()
            await self._names.refresh_networks()

    async def place(self, manifest: KubernetesObject) -> Place:
        metadata, member = manifest["metadata"], member_of(manifest)
        namespace = metadata["namespace"]
        if member is None:
            address = await self._networks.allocate(namespace, metadata["name"])
            await self._names.refresh(namespace)
            return Place(address, self._names.hosts_file(namespace))
        await self._names.refresh_networks()
        return Place(
            address=member.interface.address,
            hosts_file=self._names.hosts_file(namespace, member.interface.network),
            network=self._virtual.network_name(self._virtual.bridge_of(member)),
            mac=member.interface.mac,
        )

    async def plug_in(self, member: Member, container: str) -> None:
        """Give the container its network, and its port to the firewall; its program does not run yet."""
        before = await self._libpod.get(f"/containers/{container}/json")
        if before["State"]["Status"] != "initialized" and not await monitor_ended(before["Id"]):
            raise EngineError(f"Pod {member.pod.name} is still being stopped; apply it again.")
        await self._libpod.post(f"/containers/{container}/init")
        found = await self._libpod.get(f"/containers/{container}/json")
        bridge = self._virtual.bridge_of(member)
        await self._ports.bind(member.pod, found["NetworkSettings"]["SandboxKey"], bridge.interface)
        await self._networks.sync()

    def forget(self, pod: Reference) -> None:
        self._ports.forget(pod)
