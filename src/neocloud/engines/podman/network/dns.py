# pyright: strict
"""Hosts files of pods: each pod finds its peers by name.

Each namespace has one hosts file, and a second for its pods on a virtual network. The second names all pods
on that network, those of the own namespace first: two clusters on one network may both have a pod
`controller`, and each finds its own. A hosts file is rewritten in place, because a mount holds the file
itself and would not see a new one under the same name.
"""

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from neocloud.engines.manifest import Pod, Service
from neocloud.engines.manifest.network_spec import Member
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network.namespace_networks import NamespaceNetworks, SingleFlight
from neocloud.engines.podman.network.virtual_networks import VirtualNetworks
from neocloud.engines.podman.records import Objects

_FIRST_LINES = ("127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback")
_PREFIX = "hosts-"


@dataclass(frozen=True)
class HostEntry:
    """A pod with its address, as a hosts file names it."""

    address: IPv4Address
    pod: Pod
    domain: str = ""
    """Domain of its virtual network."""


def render_hosts(
    pods: Iterable[HostEntry], services: Iterable[Service], others: Iterable[HostEntry] = ()
) -> str:
    """Return the content of a hosts file.

    A service adds its name to each pod that it selects. `others` come last, because the first line with a
    name counts.
    """
    services = list(services)
    lines = [*_FIRST_LINES]
    for entry in sorted(pods, key=lambda entry: entry.address):
        names, pod = _names(entry), entry.pod
        if pod.subdomain:
            names.append(f"{pod.host_name}.{pod.subdomain}")
        names += [service.name for service in services if service.selects(pod.labels)]
        lines.append(f"{entry.address} {' '.join(dict.fromkeys(names))}")
    for entry in sorted(others, key=lambda entry: entry.address):
        lines.append(f"{entry.address} {' '.join(_names(entry))}")
    return "\n".join(lines) + "\n"


def _names(entry: HostEntry) -> list[str]:
    hostname = entry.pod.host_name
    return [hostname, f"{hostname}.{entry.domain}"] if entry.domain else [hostname]


def write_in_place(path: Path, text: str) -> None:
    """Replace the content of the same file in one write, so that no reader finds it half empty."""
    content = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
        write_in_place(self.hosts_file(namespace), render_hosts(pods, services))

    def _write_networks(self) -> None:
        members = self._virtual.members()
        wanted = {(member.pod.namespace, member.interface.network) for member in members}
        domains = {network.namespace: network.domain for network in self._virtual.networks()}
        for namespace, network in wanted:
            members_of_network = [member for member in members if member.interface.network == network]
            text = self._hosts_of(namespace, members_of_network, domains.get(network, ""))
            write_in_place(self.hosts_file(namespace, network), text)
        for path in self._layout.namespaces.glob(f"*/{_PREFIX}*"):
            if (path.parent.name, path.name.removeprefix(_PREFIX)) not in wanted:
                path.unlink()

    def _hosts_of(self, namespace: str, members: list[Member], domain: str) -> str:
        own = [member for member in members if member.pod.namespace == namespace]
        others = [member for member in members if member.pod.namespace != namespace]
        services = self._objects.list(namespace, Service)
        inside, outside = (
            [HostEntry(m.interface.address, pod, domain) for m in group if (pod := self._objects.pod(m.pod))]
            for group in (own, others)
        )
        return render_hosts(inside, services, outside)
