"""Keeps the hosts files in step with the pods.

Each namespace has one, and another for its pods on a virtual network, which names everybody there, own
namespace first: two clusters on one network may both have a pod called `controller`, and each finds its own.
"""

import asyncio
from pathlib import Path

from neocloud.engines.interface import Member
from neocloud.engines.podman.coalesced import Coalesced
from neocloud.engines.podman.hostsfile import Named, render_hosts, write_in_place
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.networks import Networks
from neocloud.engines.podman.objects import Objects
from neocloud.engines.podman.virtual_networks import VirtualNetworks

_PREFIX = "hosts-"


class Names:
    def __init__(
        self, layout: Layout, networks: Networks, virtual: VirtualNetworks, objects: Objects
    ) -> None:
        self._layout = layout
        self._networks = networks
        self._virtual = virtual
        self._objects = objects
        self._lock = asyncio.Lock()
        self._refresh_networks = Coalesced(lambda: asyncio.to_thread(self._write_networks))

    def hosts_file(self, namespace: str, network: str | None = None) -> Path:
        """What pods of the namespace mount, on its own bridge or on a virtual network."""
        return self._layout.namespace(namespace) / (f"{_PREFIX}{network}" if network else "hosts")

    async def refresh(self, namespace: str) -> None:
        """Write the files from the pods that were applied and their addresses."""
        async with self._lock:  # whoever writes last must have looked last
            await asyncio.to_thread(self._write_namespace, namespace)

    async def refresh_networks(self) -> None:
        """Those of all members, as everybody on a network is in everybody's file."""
        await self._refresh_networks()

    def _write_namespace(self, namespace: str) -> None:
        network = self._networks.find(namespace)
        if network is None:
            return
        on_networks = {member.pod.name for member in self._virtual.members(namespace)}
        pods = [
            Named(network.addresses[name], manifest)
            for manifest in self._objects.list(namespace, "Pod")
            if (name := manifest["metadata"]["name"]) in network.addresses and name not in on_networks
        ]
        services = self._objects.list(namespace, "Service")
        write_in_place(self.hosts_file(namespace), render_hosts(pods, services))

    def _write_networks(self) -> None:
        members = self._virtual.members()
        wanted = {(member.pod.namespace, member.interface.network) for member in members}
        domains = {network.namespace: network.domain for network in self._virtual.networks()}
        for namespace, network in wanted:
            everybody = [member for member in members if member.interface.network == network]
            text = self._hosts_of(namespace, everybody, domains.get(network, ""))
            write_in_place(self.hosts_file(namespace, network), text)
        for path in self._layout.namespaces.glob(f"*/{_PREFIX}*"):
            if (path.parent.name, path.name.removeprefix(_PREFIX)) not in wanted:
                path.unlink()

    def _hosts_of(self, namespace: str, members: list[Member], domain: str) -> str:
        own = [member for member in members if member.pod.namespace == namespace]
        others = [member for member in members if member.pod.namespace != namespace]
        services = self._objects.list(namespace, "Service")
        inside, outside = (
            [Named(m.interface.address, manifest, domain) for m in group if (manifest := self._manifest(m))]
            for group in (own, others)
        )
        return render_hosts(inside, services, outside)

    def _manifest(self, member: Member):
        return self._objects.get(member.pod)
