"""Create, replace, start again, stop and remove pods.

One change per pod at a time. Every step may be repeated and reads the current state itself, so that a server
that dies between two steps leaves nothing that the next `ensure` or `remove` cannot repair.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.images import PULLED
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.containers import (
    Row,
    by_pod,
    container_name,
    is_current,
    is_lost,
    is_running,
    monitors_ended,
    to_start,
    with_lost,
)
from neocloud.engines.podman.gpus.allocator import GpuAllocator, uses_gpus
from neocloud.engines.podman.gpus.cdi import Device
from neocloud.engines.podman.gpus.passthrough import groups_of
from neocloud.engines.podman.layout import Layout, Objects, logged, pod_field
from neocloud.engines.podman.libpod import Conflict, Libpod, NotFound, full_image_name, root_filesystem
from neocloud.engines.podman.network.attachments import Attachments, HostsFiles
from neocloud.engines.podman.network.namespace_networks import NamespaceNetworks
from neocloud.engines.podman.network.netavark import remove_stale_port_forwards, reset_early_connections
from neocloud.engines.podman.own_cpus import CpuAllocator
from neocloud.engines.podman.storage.attached_claims import show_attached
from neocloud.engines.podman.storage.config_mounts import ConfigMounts
from neocloud.engines.podman.storage.pod_mounts import MountedPaths, first_id
from neocloud.engines.podman.storage.pod_storage import PodStorage
from neocloud.engines.podman.storage.pulled_images import PulledImages
from neocloud.engines.podman.storage.volumes import Volumes
from neocloud.engines.podman.translate import (
    SANDBOX,
    Resolved,
    Spec,
    container_specs,
    published_ports,
)

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 30
_CREATE_ATTEMPTS = 40
_CREATE_PAUSE_SECONDS = 0.1
_MONITOR_LOST = ("timed out waiting for file", "conmon exited prematurely")
"""Errors of Podman 4 and 5 when they stop a container whose monitor was killed."""


class Pods:
    """All pods of this state folder."""

    def __init__(
        self,
        layout: Layout,
        libpod: Libpod,
        networks: NamespaceNetworks,
        attachments: Attachments,
        hosts_files: HostsFiles,
        objects: Objects,
        volumes: Volumes,
        config_mounts: Mapping[str, ConfigMounts],
        gpus: GpuAllocator,
        images: PulledImages,
    ) -> None:
        self._layout = layout
        self._images = images
        self._libpod = libpod
        self._networks = networks
        self._attachments = attachments
        self._hosts_files = hosts_files
        self._objects = objects
        self._volumes = volumes
        self._config_mounts = config_mounts
        self._storage = PodStorage(layout, volumes, config_mounts)
        self.disks = self._storage.disks
        self.shifts_ids = False
        """Whether pods with `hostUsers: false` get a user namespace; known once the engine is prepared."""
        self._gpus = gpus
        self._cpus = CpuAllocator()
        self._locks: defaultdict[Reference, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def rows(self, namespace: str | None = None, pod: str | None = None) -> Sequence[Row]:
        """Return the containers of this state folder, running or not."""
        labels = [f"neocloud.home={self._layout.label}"]
        labels += [f"neocloud.namespace={namespace}"] if namespace else []
        labels += [f"neocloud.pod={pod}"] if pod else []
        return with_lost(await self._libpod.get("/containers/json", all=True, filters={"label": labels}))

    async def known(self, namespace: str) -> set[Reference]:
        """Return the pods that exist, and those that were applied and have lost their containers."""
        return self.applied(namespace) | set(by_pod(await self.rows(namespace)))

    def applied(self, namespace: str) -> set[Reference]:
        """Return the pods that were applied and not removed, whether or not their containers exist."""
        return {pod.reference for pod in self._objects.list(namespace, Pod)}

    async def find_settled(self, pods: Sequence[Pod]) -> set[Reference]:
        """Return the pods that `ensure` would not change, with one request per namespace.

        A reconciler applies all pods of its namespace periodically; mostly nothing has changed.
        """
        settled: set[Reference] = set()
        for namespace in {pod.namespace for pod in pods}:
            found = by_pod(await self.rows(namespace))
            for pod in pods:
                if pod.reference in found and self._is_settled(pod, found[pod.reference]):
                    settled.add(pod.reference)
            await self._hosts_files.refresh(namespace)
        return settled

    def _is_settled(self, pod: Pod, rows: Sequence[Row]) -> bool:
        return (
            not self._locks[pod.reference].locked()
            and self._objects.pod(pod.reference) == pod
            and is_current(pod, rows, self._first_id(pod))
            and not is_lost(pod, rows)
            and not to_start(pod, rows)
        )

    async def ensure(self, pod: Pod) -> None:
        """Create or replace the pod so that it is as given, and start it if its policy says so."""
        reference = pod.reference
        async with self._locks[reference]:
            rows = await self.rows(reference.namespace, reference.name)
            first = self._first_id(pod)
            if not rows or not is_current(pod, rows, first):
                await self._require_images(pod)
            before = self._objects.pod(reference)
            async with self._attachments.admitted(pod):
                has_lost = is_lost(pod, rows)
                if has_lost:
                    logger.warning(
                        "Pod %s was killed with its monitor; it is created again",
                        reference.name,
                        extra=pod_field(reference),
                    )
                if rows and (has_lost or not is_current(pod, rows, first)):
                    await self._delete(reference, rows)
                    rows = list[Row]()
                if before is not None:
                    await self._gpus.release_unneeded(before, pod)
                if rows and pod.shows_attached:
                    await asyncio.to_thread(
                        show_attached, pod, self._volumes
                    )  # before it is recorded as done
                self._objects.put(pod)
            await self._attachments.changed(before, pod)
            await self._hosts_files.refresh(reference.namespace)
            if not rows:
                with logged(logger, f"Created and started pod {reference.name}", reference):
                    await self._create(pod)
            else:
                await self._start_again(pod, rows)

    async def remove(self, reference: Reference) -> None:
        """Stop and remove a pod and its scratch volumes; release its address."""
        async with self._locks[reference]:
            with logged(logger, f"Removed pod {reference.name}", reference):
                await self._delete(reference, await self.rows(reference.namespace, reference.name))
            before = self._objects.pod(reference)
            if before is not None:
                await self._gpus.release(before)
            self._objects.remove(reference)
            if before is not None and groups_of(before):
                await self._gpus.restore_drivers(self._objects.all(Pod))
            self._attachments.forget(reference)
            await self._attachments.changed(before, None)
            await self._networks.release(reference.namespace, reference.name)
            await self._hosts_files.refresh(reference.namespace)

    async def note_removal(self, reference: Reference) -> None:
        """Release the GPUs of a pod whose containers were removed by hand, as after a forced deletion."""
        pod, lock = self._objects.pod(reference), self._locks[reference]
        if pod is None or not uses_gpus(pod) or lock.locked():  # the engine itself removes or replaces it
            return
        async with lock:
            if not await self.rows(reference.namespace, reference.name):
                await self._gpus.release(pod)

    async def restart(self, reference: Reference) -> None:
        """Stop and start all containers; the pod keeps its address."""
        async with self._locks[reference]:
            rows = await self.rows(reference.namespace, reference.name)
            if not rows:
                raise EngineError(f"Pod {reference.name} of namespace {reference.namespace} does not exist.")
            grace, pod = self._grace(reference), self._objects.pod(reference)
            if pod:  # its mounts may have been removed since it was stopped
                await self._gpus.bind(pod)
                await asyncio.to_thread(self._mount_volumes, pod)

            async def restart(row: Row) -> None:
                if pod and pod.member and _owns_network(row):  # it gets another bridge port
                    await self._stop_container(row["Id"], grace)
                    await self._start(pod, row["Id"], owns_network=True)
                else:
                    await self._libpod.post(f"/containers/{row['Id']}/restart", t=grace)

            with logged(logger, f"Restarted pod {reference.name}", reference):
                await self._for_each_container(rows, restart)

    async def stop_all(self) -> None:
        """Stop every pod of this state folder without removing it; return after Podman's clean-up."""
        rows = await self.rows()
        await self._stop(rows, _GRACE_SECONDS)
        await monitors_ended({row["Id"] for row in rows})
        await self._gpus.restore_drivers()

    async def restore_drivers(self) -> None:
        """Return the devices that no pod has any more to their drivers, as after a crash."""
        present = by_pod(await self.rows())
        await self._gpus.restore_drivers(pod for pod in self._objects.all(Pod) if pod.reference in present)

    async def container(self, reference: Reference, container: str | None) -> str:
        """Return Podman's name of a container; of the pod's first one unless named."""
        rows = await self.rows(reference.namespace, reference.name)
        present = [container_name(row) for row in rows if container_name(row) != SANDBOX]
        if not present:
            raise EngineError(f"Pod {reference.name} of namespace {reference.namespace} does not exist.")
        pod = self._objects.pod(reference)
        names = [each.name for each in pod.containers] if pod else present
        name = container or next(name for name in names if name in present)
        if name not in present:
            raise EngineError(f"Pod {reference.name} has no container {name!r}; it has {', '.join(present)}.")
        return f"{reference.namespace}.{reference.name}.{name}"

    async def _require_images(self, pod: Pod) -> None:
        """Raise EngineError for a missing image, before anything of the old pod is removed."""
        for image in pod.images:
            if root_filesystem(self._layout, image) or self._images.has(image):
                continue
            if not await self._libpod.exists(f"/images/{full_image_name(image)}"):
                raise EngineError(
                    f"Pod {pod.name}: image {image} is not here. Build or import the image first."
                )

    async def _create(self, pod: Pod) -> None:
        await self._gpus.bind(pod)
        await asyncio.to_thread(lambda: self.disks.create(pod, self._roots(pod)))
        async with (
            self._gpus.reserve(pod, self.rows) as devices,
            self._cpus.reserve(pod, self.rows) as cpus,
        ):
            resolved = await self._resolve(pod, devices, cpus)
            specs = container_specs(pod, resolved, self._layout)
            for spec in specs:
                await self._create_container(spec)
        for spec in specs:
            await self._start(pod, spec["name"], owns_network="neocloud.network" in spec["labels"])

    async def _create_container(self, spec: Spec) -> None:
        """Create a container, in place of one that Podman may still be creating for a dead server."""
        for _ in range(_CREATE_ATTEMPTS):
            try:
                await self._libpod.post("/containers/create", spec)
                return
            except Conflict:
                logger.warning("Container %s exists already; it is replaced", spec["name"])
                await self._libpod.delete(f"/containers/{spec['name']}", force=True, timeout=0)
                await asyncio.sleep(_CREATE_PAUSE_SECONDS)
        await self._libpod.post("/containers/create", spec)

    async def _start(self, pod: Pod, container: str, *, owns_network: bool) -> None:
        try:
            if pod.member and owns_network:
                await self._attachments.attach(pod.member, container)
            await self._libpod.post(f"/containers/{container}/start")
            if owns_network and self._first_id(pod):
                published = published_ports(pod)
                await reset_early_connections((port["host_ip"], port["host_port"]) for port in published)
        except EngineError as error:
            raise EngineError(f"Pod {pod.name} could not be started. {error}") from error

    async def _start_again(self, pod: Pod, rows: Sequence[Row]) -> None:
        """Start containers that should run and do not: after a reboot, `shutdown` or a crash."""
        idle, reference = to_start(pod, rows), pod.reference
        if not idle:
            return
        with logged(logger, f"Started {len(idle)} containers of pod {reference.name}", reference):
            await self._gpus.bind(pod)
            await self._resolve(pod, {}, {})
            for row in idle:
                if is_running(row):
                    await self._stop_container(row["Id"], 0)
                await self._start(pod, row["Id"], owns_network=_owns_network(row))

    async def _resolve(
        self, pod: Pod, devices: Mapping[str, tuple[Device, ...]], cpus: Mapping[str, str]
    ) -> Resolved:
        """Look up everything that the pod refers to, and create what is missing."""
        if published_ports(pod):
            await remove_stale_port_forwards()
        pod_address = await self._attachments.assign_address(pod)
        shown = await asyncio.to_thread(self._mount_volumes, pod)
        contents = {
            kind: {name: config_mounts.get(pod.namespace, name) for name in pod.environment_objects(kind)}
            for kind, config_mounts in self._config_mounts.items()
        }
        return Resolved(
            address=pod_address.address,
            hosts_file=pod_address.hosts_file,
            network=pod_address.network,
            mac=pod_address.mac,
            **vars(shown),
            image_settings=self._images.settings(pod.images),
            first_id=self._first_id(pod),
            config_maps=contents["ConfigMap"],
            secrets=contents["Secret"],
            devices=devices,
            cpus=cpus,
        )

    def _first_id(self, pod: Pod) -> int:
        """Return the id of this machine that root of the pod has in its user namespace; 0 without one."""
        network = self._networks.find(pod.namespace)
        if not self.shifts_ids or pod.host_users is not False or not network:
            return 0
        if any(image.startswith(PULLED) for image in pod.images):
            return 0  # the root of such an image is an overlay, whose ids the kernel does not shift
        return first_id(network.subnet)

    def _mount_volumes(self, pod: Pod) -> MountedPaths:
        """Create the pod's mounts and the root file systems of its containers."""
        first = self._first_id(pod)
        roots = self._roots(pod)
        if first:
            roots[SANDBOX] = self._layout.sandbox
        return self._storage.mount(pod, roots, first)

    def _roots(self, pod: Pod) -> dict[str, Path]:
        """Return the folder by image, of the pod's images that are root file systems. Blocking."""
        roots = {
            image: root_filesystem(self._layout, image) or self._images.root(image) for image in pod.images
        }
        return {image: folder for image, folder in roots.items() if folder}

    async def _delete(self, reference: Reference, rows: Sequence[Row]) -> None:
        await self._stop(rows, self._grace(reference))
        for row in sorted(rows, key=lambda row: container_name(row) == SANDBOX):
            await self._libpod.delete(f"/containers/{row['Id']}", force=True, timeout=0)
        await asyncio.to_thread(self._storage.remove, reference)

    async def _stop(self, rows: Sequence[Row], grace: int) -> None:
        """Stop each container and wait for it, so that incomplete pods need no special case."""
        await self._for_each_container(rows, lambda row: self._stop_container(row["Id"], grace))
        for row in rows:
            if container_name(row) == SANDBOX:
                await self._stop_container(row["Id"], 0)

    async def _stop_container(self, container_id: str, grace: int) -> None:
        try:
            await self._libpod.post(f"/containers/{container_id}/stop", timeout=grace)
        except EngineError as error:
            # Its monitor, which would have written the file, was killed with it. Podman knows that now.
            if not any(sign in str(error) for sign in _MONITOR_LOST):
                raise
            logger.warning("Container %s had been killed with its monitor", container_id)

    async def _for_each_container(
        self, rows: Sequence[Row], action: Callable[[Row], Awaitable[None]]
    ) -> None:
        async def tolerant(row: Row) -> None:
            try:
                await action(row)
            except NotFound:
                return

        chosen = [row for row in rows if container_name(row) != SANDBOX]
        await asyncio.gather(*(tolerant(row) for row in chosen))

    def _grace(self, reference: Reference) -> int:
        pod = self._objects.pod(reference)
        return pod.grace_seconds if pod else _GRACE_SECONDS


def _owns_network(row: Row) -> bool:
    return "neocloud.network" in row["Labels"]
