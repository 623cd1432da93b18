"""The parts of one engine, and what each kind of object other than a Pod means to them."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from neocloud.engines.base import EngineError, KubernetesObject, Reference
from neocloud.engines.interface import interface_of
from neocloud.engines.manifests import file_contents
from neocloud.engines.pod_references import mounted_claims
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.libpod import Libpod
from neocloud.engines.podman.mounts import remove_tree
from neocloud.engines.podman.names import Names
from neocloud.engines.podman.networks import POLICY, Networks
from neocloud.engines.podman.objects import Objects
from neocloud.engines.podman.plugs import Plugs
from neocloud.engines.podman.pods import Pods
from neocloud.engines.podman.ports import Ports
from neocloud.engines.podman.projections import Projections
from neocloud.engines.podman.virtual_networks import VirtualNetworks
from neocloud.engines.podman.volumes import Volumes


@dataclass(frozen=True)
class Parts:
    layout: Layout
    networks: Networks
    virtual: VirtualNetworks
    names: Names
    objects: Objects
    volumes: Volumes
    projections: dict[str, Projections]
    pods: Pods

    @classmethod
    def of(cls, layout: Layout, libpod: Libpod, pool: IPv4Network, opened: Sequence[IPv4Network]) -> "Parts":
        objects, ports = Objects(layout), Ports(layout)
        virtual = VirtualNetworks(layout, libpod, objects, ports)
        networks = Networks(layout, libpod, pool, virtual, objects, opened)
        names = Names(layout, networks, virtual, objects)
        volumes = Volumes(layout)
        projections = {
            "ConfigMap": Projections(layout.engine / "configmaps", "ConfigMap"),
            "Secret": Projections(layout.secrets, "Secret"),
        }
        plugs = Plugs(libpod, networks, virtual, ports, names)
        pods = Pods(layout, libpod, networks, plugs, names, objects, volumes, projections)
        return cls(layout, networks, virtual, names, objects, volumes, projections, pods)

    async def apply_object(self, manifest: KubernetesObject) -> None:
        """Anything but a Pod."""
        reference = Reference.of(manifest)
        if reference.kind == "Namespace":
            await self.networks.ensure(reference.name)
            await self.names.refresh(reference.name)
            return
        if self.networks.find(reference.namespace) is None:
            raise EngineError(f"Namespace {reference.namespace} does not exist; apply it before its objects.")
        if reference.kind in self.projections:
            contents = file_contents(manifest)
            self.projections[reference.kind].put(reference.namespace, reference.name, contents)
        elif reference.kind == "PersistentVolumeClaim":
            await asyncio.to_thread(self.volumes.ensure_claim, manifest)
        elif reference.kind == "VirtualNetwork":
            await self.virtual.apply(manifest)
            await self.networks.sync()
            await self.names.refresh_networks()
        else:
            self.objects.put(manifest)
            await self._follow_change(reference)

    async def announce(self, manifest: KubernetesObject) -> None:
        """Give a pod its address and its line in the hosts file before any of its peers starts."""
        reference = Reference.of(manifest)
        if interface_of(manifest) is None:
            await self.networks.allocate(reference.namespace, reference.name)

    async def remove_object(self, reference: Reference) -> None:
        """Anything but a Pod or a Namespace."""
        if reference.kind in self.projections:
            self.projections[reference.kind].remove(reference.namespace, reference.name)
        elif reference.kind == "PersistentVolumeClaim":
            self._refuse_if_mounted(reference)
            await asyncio.to_thread(self.volumes.remove_claim, reference.namespace, reference.name)
        elif reference.kind == "VirtualNetwork":
            if self.objects.get(reference):
                await self.virtual.remove(reference.namespace)
                await self.networks.sync()
        else:
            self.objects.remove(reference)
            await self._follow_change(reference)

    async def remove_namespace(self, namespace: str) -> None:
        """Everything of a namespace whose pods are gone."""
        for name in self.volumes.claims(namespace):
            self._refuse_if_mounted(Reference("PersistentVolumeClaim", namespace, name), leaving=namespace)
            await asyncio.to_thread(self.volumes.remove_claim, namespace, name)
        await asyncio.to_thread(remove_tree, self.layout.volumes / namespace)
        for projections in self.projections.values():
            projections.remove(namespace)
        await self.networks.remove(namespace)

    def address(self, pod: Reference) -> str | None:
        """None for a pod that was never applied."""
        manifest = self.objects.get(pod)
        interface = interface_of(manifest) if manifest else None
        if interface:
            return str(interface.address)
        network = self.networks.find(pod.namespace)
        address = network.addresses.get(pod.name) if network else None
        return str(address) if address else None

    def applied_pods(self) -> Iterator[tuple[KubernetesObject, str]]:
        """Manifest and address of every pod that was applied by this or an earlier engine."""
        for namespace in self.networks.namespaces():
            for manifest in self.objects.list(namespace, "Pod"):
                address = self.address(Reference.of(manifest))
                if address:
                    yield manifest, address

    async def _follow_change(self, reference: Reference) -> None:
        """Apply the effect of an object that is only recorded: rules for a policy, names for a service."""
        if reference.kind == POLICY:
            await self.networks.sync()
        else:
            await self._refresh_names(reference.namespace)

    async def _refresh_names(self, namespace: str) -> None:
        await self.names.refresh(namespace)
        if self.virtual.members(namespace):
            await self.names.refresh_networks()

    def _refuse_if_mounted(self, claim: Reference, leaving: str = "") -> None:
        """By a pod of whatever namespace, but for one that is leaving itself."""
        for manifest in self.objects.all("Pod"):
            if manifest["metadata"]["namespace"] != leaving and claim in mounted_claims(manifest):
                raise EngineError(
                    f"PersistentVolumeClaim {claim.name} is in use by pod "
                    f"{manifest['metadata']['name']}; remove that pod first."
                )
