"""Keeps each namespace's hosts file in step with its pods."""

import asyncio
from pathlib import Path

from neocloud.engines.podman.hostsfile import render_hosts, write_in_place
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.networks import Networks
from neocloud.engines.podman.objects import Objects


class Names:
    def __init__(self, layout: Layout, networks: Networks, objects: Objects) -> None:
        self._layout = layout
        self._networks = networks
        self._objects = objects
        self._lock = asyncio.Lock()

    def hosts_file(self, namespace: str) -> Path:
        return self._layout.namespace(namespace) / "hosts"

    async def refresh(self, namespace: str) -> None:
        """Write the file from the pods that were applied and their addresses."""
        async with self._lock:  # whoever writes last must have looked last
            await asyncio.to_thread(self._refresh, namespace)

    def _refresh(self, namespace: str) -> None:
        network = self._networks.find(namespace)
        if network is None:
            return
        pods = [
            (network.addresses[manifest["metadata"]["name"]], manifest)
            for manifest in self._objects.list(namespace, "Pod")
            if manifest["metadata"]["name"] in network.addresses
        ]
        services = self._objects.list(namespace, "Service")
        write_in_place(self.hosts_file(namespace), render_hosts(pods, services))
