"""The parts of one engine, and what each kind of object other than a Pod means to them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from neocloud.engines.base import EngineError, PlatformService, Reference
from neocloud.engines.manifest import (
    ConfigMap,
    Manifest,
    Namespace,
    NetworkPolicy,
    Pod,
    Secret,
    VirtualNetwork,
    VolumeClaim,
)
from neocloud.engines.podman.gpus.allocator import GpuAllocator
from neocloud.engines.podman.layout import Layout, Objects
from neocloud.engines.podman.libpod import Libpod
from neocloud.engines.podman.network.attachments import Attachments, BridgePorts, HostsFiles
from neocloud.engines.podman.network.namespace_networks import NamespaceNetwork, NamespaceNetworks
from neocloud.engines.podman.network.platform_services import PlatformServices
from neocloud.engines.podman.network.public_interface import PublicInterface
from neocloud.engines.podman.network.virtual_networks import VirtualNetworks
from neocloud.engines.podman.pods import Pods
from neocloud.engines.podman.storage.config_mounts import ConfigMounts
from neocloud.engines.podman.storage.mounts import remove_tree
from neocloud.engines.podman.storage.pulled_images import PulledImages
from neocloud.engines.podman.storage.volumes import Volumes


@dataclass(frozen=True)
class Components:
    layout: Layout
    networks: NamespaceNetworks
    virtual: VirtualNetworks
    hosts_files: HostsFiles
    objects: Objects
    volumes: Volumes
    config_mounts: dict[str, ConfigMounts]
    pods: Pods
    images: PulledImages
    gpus: GpuAllocator

    @classmethod
    def of(
        cls,
        layout: Layout,
        libpod: Libpod,
        pool: IPv4Network,
        opened: Sequence[IPv4Network],
        public_interface: str,
        platform_services: Sequence[PlatformService],
        other_homes: Callable[[], Iterable[Path]],
    ) -> "Components":
        objects, ports = Objects(layout), BridgePorts(layout)
        virtual = VirtualNetworks(layout, libpod, objects, ports.find)
        announcer = PublicInterface(layout, public_interface)
        networks = NamespaceNetworks(
            *(layout, libpod, pool, virtual, objects, opened, announcer),
            other_homes,
            PlatformServices(layout, objects, tuple(platform_services)),
        )
        hosts_files = HostsFiles(layout, networks, virtual, objects)
        volumes = Volumes(layout)
        config_mounts = {
            "ConfigMap": ConfigMounts(layout.engine / "configmaps", "ConfigMap"),
            "Secret": ConfigMounts(layout.secrets, "Secret"),
        }
        attachments = Attachments(libpod, networks, virtual, ports, hosts_files)
        gpus = GpuAllocator.of(layout.engine / "gpus.json", layout.home)
        images = PulledImages(layout)
        stored = (objects, volumes, config_mounts, gpus, images)
        pods = Pods(*(layout, libpod, networks, attachments, hosts_files), *stored)
        return cls(
            layout, networks, virtual, hosts_files, objects, volumes, config_mounts, pods, images, gpus
        )

    async def apply_object(self, manifest: Manifest) -> None:
        """Anything but a Pod."""
        reference = manifest.reference
        if isinstance(manifest, Namespace):
            await self.networks.ensure(reference.name)
            await self.hosts_files.refresh(reference.name)
            return
        if self.networks.find(reference.namespace) is None:
            raise EngineError(f"Namespace {reference.namespace} does not exist; apply it before its objects.")
        if isinstance(manifest, ConfigMap | Secret):
            self.config_mounts[manifest.kind].put(manifest.namespace, manifest.name, manifest.contents)
        elif isinstance(manifest, VolumeClaim):
            await asyncio.to_thread(self.volumes.ensure_claim, manifest)
        elif isinstance(manifest, VirtualNetwork):
            await self.virtual.apply(manifest)
            await self.networks.sync()
            await self.hosts_files.refresh_networks()
        else:
            self.objects.put(manifest)
            await self._follow_change(reference)

    async def remove_image(self, image: str) -> None:
        user = next((pod for pod in self.objects.all(Pod) if image in pod.images), None)
        if user is not None:
            raise EngineError(f"Image {image} is in use by pod {user.name}; remove that pod first.")
        await self.images.remove(image)

    async def announce(self, pod: Pod) -> None:
        """Give a pod its address and its line in the hosts file before any of its peers starts."""
        if pod.interface is None:
            await self.networks.allocate(pod.namespace, pod.name)

    async def remove_object(self, reference: Reference) -> None:
        """Anything but a Pod or a Namespace."""
        if reference.kind in self.config_mounts:
            self.config_mounts[reference.kind].remove(reference.namespace, reference.name)
        elif reference.kind == "PersistentVolumeClaim":
            self._refuse_if_mounted(reference)
            await asyncio.to_thread(self.volumes.remove_claim, reference.namespace, reference.name)
        elif reference.kind == "VirtualNetwork":
            if self.virtual.find(reference.namespace):
                await self.virtual.remove(reference.namespace)
                await self.networks.sync()
        else:
            self.objects.remove(reference)
            await self._follow_change(reference)

    async def remove_namespace(self, namespace: str) -> None:
        """Remove all objects of a namespace whose pods have been removed."""
        for name in self.volumes.claims(namespace):
            self._refuse_if_mounted(Reference("PersistentVolumeClaim", namespace, name), leaving=namespace)
            await asyncio.to_thread(self.volumes.remove_claim, namespace, name)
        await asyncio.to_thread(remove_tree, self.layout.volumes / namespace)
        for config_mounts in self.config_mounts.values():
            config_mounts.remove(namespace)
        await self.networks.remove(namespace)

    def address(self, pod: Reference) -> str | None:
        """None for a pod that was never applied."""
        return address_of(pod, self.objects.pod(pod), self.networks.find(pod.namespace))

    def applied_pods(self) -> Iterator[tuple[Pod, str]]:
        """Manifest and address of every pod that was applied by this or an earlier engine."""
        for namespace in self.networks.namespaces():
            for pod in self.objects.list(namespace, Pod):
                if address := self.address(pod.reference):
                    yield pod, address

    async def _follow_change(self, reference: Reference) -> None:
        """Apply the effect of an object that is only recorded: rules for a policy, names for a service."""
        if reference.kind == NetworkPolicy.kind:
            await self.networks.sync()
        await self._refresh_names(reference.namespace)

    async def _refresh_names(self, namespace: str) -> None:
        await self.hosts_files.refresh(namespace)
        if self.virtual.members(namespace):
            await self.hosts_files.refresh_networks()

    def _refuse_if_mounted(self, claim: Reference, leaving: str = "") -> None:
        """Raise EngineError if a pod mounts the claim, in any namespace but the one being removed
        (`leaving`).
        """
        for pod in self.objects.all(Pod):
            if pod.namespace != leaving and claim in pod.mounted_claims:
                raise EngineError(
                    f"PersistentVolumeClaim {claim.name} is in use by pod {pod.name}; remove that pod first."
                )


def address_of(pod: Reference, applied: Pod | None, network: NamespaceNetwork | None) -> str | None:
    """Return the address of a pod as it was last applied; `network` is that of its namespace."""
    if applied and applied.interface:
        return str(applied.interface.address)
    address = network.addresses.get(pod.name) if network else None
    return str(address) if address else None
