"""PodmanEngine: runs workloads on one Linux machine.

Each method makes sure that the service runs, then calls the component that owns the work. Pods do not depend
on this process: they continue when it dies, and the next engine on the same state folder finds them again.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence, Set
from ipaddress import IPv4Network
from pathlib import Path

from neocloud.core.store.protocol import StoreError
from neocloud.engines.base import (
    MAX_OUTPUT_BYTES,
    Capabilities,
    EngineError,
    EngineEvent,
    EventKind,
    ExecResult,
    LogPage,
    Observation,
    PlatformService,
    Reference,
)
from neocloud.engines.gpu_ledger import GpuLedger
from neocloud.engines.images import ImagePull
from neocloud.engines.manifest import KINDS, Manifest, Pod, check_reference, in_order
from neocloud.engines.podman.bootstrap import destroy, prepare, unmount_all
from neocloud.engines.podman.components import Components
from neocloud.engines.podman.container_logs import read_lines, read_page
from neocloud.engines.podman.containers import end_processes
from neocloud.engines.podman.execution import execute
from neocloud.engines.podman.host import Host, find_acceleration, find_host, resolver_configuration
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.libpod import Images, Libpod, root_filesystem
from neocloud.engines.podman.network.addresses import withdraw_public_addresses, withdraw_service_addresses
from neocloud.engines.podman.network.netavark import remember_tables
from neocloud.engines.podman.observer import Observer, watch
from neocloud.engines.podman.pod_events import PodEvents
from neocloud.engines.podman.probes import Prober
from neocloud.engines.podman.service import PodmanService, is_kept_in_home
from neocloud.engines.podman.storage import sized_filesystems
from neocloud.engines.podman.storage.pod_mounts import missing_support

logger = logging.getLogger(__name__)

DEFAULT_POOL = IPv4Network("10.89.0.0/16")
ENCRYPTION = "disks of machines (LUKS); not filesystems, nor what containers write"
CONTAINER_DISKS = (
    "enforced (endpoints and jobs: each is a file system in a file; other containers have no limit)"
)
"""Text for `neo status`. Containers without a limit write to the host's disk, beside their filesystems."""
_PODS_AT_ONCE = 8


class PodmanEngine:
    """Implements `neocloud.engines.base.Engine`, with a few methods that only a single machine needs."""

    def __init__(
        self,
        home: Path,
        *,
        pool: IPv4Network = DEFAULT_POOL,
        opened_ranges: Sequence[IPv4Network] = (),
        public_interface: str = "",
        platform_services: Sequence[PlatformService] = (),
        other_homes: Callable[[], Iterable[Path]] = tuple,
    ) -> None:
        """`opened_ranges`: private ranges that pods may reach. `public_interface`: where other machines find
        public addresses by ARP. `platform_services` listen on this machine. `other_homes`: of other clouds on
        this host, whose subnets stay theirs."""
        self.layout = Layout.of(home)
        """Paths and names of the engine, for builders of images and for status."""
        self._libpod = Libpod(self.layout.socket, self._start_service)
        self._components = Components.of(
            *(self.layout, self._libpod, pool, opened_ranges, public_interface),
            platform_services,
            other_homes,
        )
        self._pod_events = PodEvents()
        self._prober = Prober(self._run_probe, self.restart, self._pod_events.note_readiness)
        self._observer = Observer(self._components, self._libpod, self._prober)
        self._images = Images(self._libpod)
        self._opened = ", ".join(map(str, opened_ranges)) or "none"
        self._host: Host | None = None
        self._user_namespaces = ""
        self._filesystem_sizes = self._container_disks = ""
        self._prepared = False
        self._preparing = asyncio.Lock()

    # Engine

    async def capabilities(self) -> Capabilities:
        await self._prepare()
        host = self._known_host()
        gpus = await self._components.gpus.find()
        acceleration, reason = await asyncio.to_thread(find_acceleration)
        _, name_warnings = resolver_configuration()
        public = self._components.networks.public_interface
        info = await self._libpod.info()
        return Capabilities(
            engine="podman",
            version=host.podman_version,
            cpus=os.cpu_count() or 1,
            memory_mib=info["host"]["memTotal"] // 2**20,
            accelerators=gpus.accelerators,
            isolates_namespaces=True,
            enforces_cpu="cpu" in info["host"]["cgroupControllers"],
            enforces_memory="memory" in info["host"]["cgroupControllers"],
            enforces_volume_size=self._components.volumes.enforces_sizes,
            enforces_container_disk=self._components.pods.disks.are_enforced,
            shares_filesystems=True,
            details={
                "acceleration": acceleration,
                "acceleration reason": reason,
                "runtime": host.runtime,
                "cgroups": host.cgroup_version,
                "storage driver": info["store"]["graphDriverName"],
                "user namespaces": self._user_namespaces,
                "filesystem sizes": self._filesystem_sizes,
                "container disks": self._container_disks,
                "encryption at rest": ENCRYPTION,
                "private ranges open to workloads": self._opened,
                **public.details(),
                **dict(self._components.networks.platform_services.details()),
                "state": str(self.layout.home),
                **{f"limit {name}": str(hard) for name, _, hard in host.limits},
            },
            warnings=(
                *host.warnings,
                *gpus.warnings,
                *name_warnings,
                *await public.warnings(),
                *await asyncio.to_thread(self._components.volumes.warnings),
            ),
        )

    async def apply(self, objects: Sequence[Manifest]) -> bool:
        manifests = in_order(objects)
        await self._prepare()
        pods = [manifest for manifest in manifests if isinstance(manifest, Pod)]
        for manifest in manifests[: len(manifests) - len(pods)]:
            await self._components.apply_object(manifest)
        for pod in pods:
            await self._components.announce(pod)
        settled = await self._components.pods.find_settled(pods) if len(pods) > 1 else set[Reference]()
        await _all(_PODS_AT_ONCE, [self._apply_pod(pod, settled) for pod in pods])
        return len(settled) < len(pods)

    async def observe(self, namespace: str) -> Observation:
        check_reference(Reference("Namespace", namespace, namespace))
        await self._prepare()
        return await self._observer.observe(namespace)

    async def remove(self, references: Sequence[Reference]) -> None:
        for reference in references:
            check_reference(reference)
        await self._prepare()
        pods = [reference for reference in references if reference.kind == "Pod"]
        await _all(_PODS_AT_ONCE, [self._remove_pod(reference) for reference in pods])
        others = [reference for reference in references if reference.kind != "Pod"]
        for reference in sorted(others, key=lambda r: KINDS.index(r.kind), reverse=True):
            if reference.kind == "Namespace":
                await self._remove_namespace(reference.name)
            else:
                await self._components.remove_object(reference)

    async def pull_image(self, pull: ImagePull) -> None:
        await self._prepare()
        if not self._components.volumes.enforces_sizes:
            raise EngineError(
                f"Images cannot be pulled: this host does not hold them to a size ({self._filesystem_sizes})."
            )
        await self._components.images.pull(pull)

    async def pulled_images(self) -> frozenset[str]:
        return await asyncio.to_thread(self._components.images.names)

    async def remove_image(self, image: str) -> None:
        await self._components.remove_image(image)

    async def stored_bytes(self, claim: Reference) -> int:
        check_reference(claim)
        return await asyncio.to_thread(self._components.volumes.stored_bytes, claim.namespace, claim.name)

    async def shared_folder(self, claim: Reference) -> str:
        check_reference(claim)
        await self._prepare()
        volumes = self._components.volumes
        return str(await asyncio.to_thread(volumes.shared_path, claim.namespace, claim.name))

    async def restart(self, pod: Reference) -> None:
        check_reference(pod)
        await self._prepare()
        await self._components.pods.restart(pod)

    async def exec(
        self,
        pod: Reference,
        command: Sequence[str],
        *,
        container: str | None = None,
        stdin: bytes = b"",
        timeout_seconds: float = 60.0,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        check_reference(pod)
        await self._prepare()
        name = await self._components.pods.container(pod, container)
        return await execute(self._libpod, name, command, stdin, timeout_seconds, max_output_bytes)

    async def logs(
        self, pod: Reference, *, container: str | None = None, follow: bool = False, tail: int = 0
    ) -> AsyncIterator[str]:
        check_reference(pod)
        await self._prepare()
        name = await self._components.pods.container(pod, container)
        async for line in read_lines(self._libpod, name, follow=follow, tail=tail):
            yield line

    async def log_page(
        self, pod: Reference, *, container: str | None = None, first_line: int = 0, tail: int = 0
    ) -> LogPage:
        check_reference(pod)
        await self._prepare()
        name = await self._components.pods.container(pod, container)
        return await read_page(self._libpod, name, first_line=first_line, tail=tail)

    def events(self) -> AsyncIterator[EngineEvent]:
        return self._pod_events.joined(self._events(time.time()))

    def removal_commands(self, namespace: str) -> Sequence[str]:
        podman = f"podman --url unix://{self.layout.socket}"
        chosen = f"--filter label=neocloud.namespace={namespace}"
        return (
            f"{podman} ps --all {chosen}",
            # One by one: a single `rm` of Podman 4.3 leaves some where containers of a pod share another.
            f"{podman} ps --all --quiet {chosen} | xargs -r -n 1 {podman} rm --force --depend --ignore",
            f"{podman} network prune --force {chosen}",
        )

    async def close(self) -> None:
        self._prober.close()
        self._components.gpus.close()
        self._components.networks.public_interface.close()
        await self._libpod.close()

    # Only on a single machine: GPUs, images, shutdown and removal

    async def keep_gpus_in(self, ledger: GpuLedger) -> None:
        """Use the ledger of the control plane, which other holders of GPUs use too."""
        await self._prepare()
        await self._components.gpus.keep_in(ledger, self._components.pods.rows)

    async def image_exists(self, name: str) -> bool:
        await self._prepare()
        return root_filesystem(self.layout, name) is not None or await self._images.exists(name)

    async def import_image(
        self,
        source: Path,
        name: str,
        *,
        env: Mapping[str, str] | None = None,
        entrypoint: Sequence[str] = (),
    ) -> None:
        """Create an image from a root file system in a folder or tar file; one of that name is replaced."""
        await self._prepare()
        await self._images.import_root(source, name, env=env, entrypoint=entrypoint)

    async def load_image(self, archive: Path) -> None:
        """Load an image archive that `images/*/build` made; an image of the same name is replaced."""
        await self._prepare()
        await self._images.load(archive)

    async def shutdown(self, *, keep: bool = False) -> None:
        """Stop all pods, mounts and the service; with `keep` the pods continue. Nothing is deleted."""
        if not keep:
            await self._prepare()
            self._prober.close()  # a probe would find pods that are stopping, and restart them
            await self._components.pods.stop_all()
            await withdraw_public_addresses(self.layout, ())
            await withdraw_service_addresses(self.layout)
        await self._service().stop()
        if not keep:
            # Monitors of commands in pods: the clean-up that they start later would mount the storage again.
            await asyncio.to_thread(end_processes, self.layout)
            await asyncio.to_thread(unmount_all, self.layout)
        self._prepared = False
        await self.close()

    async def destroy(self) -> None:
        """Remove everything: containers, networks, images, rules, mounts, volumes and files."""
        self._prober.close()
        gpus = self._components.gpus
        taken = gpus.taken()  # the record goes with the folder
        await destroy(self.layout, self._libpod, self._service())
        await gpus.restore_drivers_of(taken)
        await gpus.give_up()
        self._prepared = False
        await self.close()

    # Internals

    def _known_host(self) -> Host:
        if self._host is None:
            self._host = find_host()
        return self._host

    def _service(self) -> PodmanService:
        return PodmanService(self.layout, self._known_host())

    async def _start_service(self) -> None:
        await self._service().ensure()

    async def _prepare(self) -> None:
        """Restore, once per engine object, everything that the machine may have lost since the last one."""
        async with self._preparing:
            if self._prepared:
                return
            await self._start_service()
            await asyncio.to_thread(prepare, self.layout, self._known_host())
            await self._find_user_namespaces()
            await self._find_filesystem_sizes()
            await remember_tables(self.layout)
            await self._components.networks.sync()
            if self._components.gpus.taken():
                await self._components.pods.restore_drivers()
            for pod, address in self._components.applied_pods():
                self._prober.follow(pod, address, adopted=True)
            self._prepared = True
        await self._prober.first_answers()

    async def _find_user_namespaces(self) -> None:
        if is_kept_in_home(self.layout):
            missing = "this state folder is of a version without them; a new one has them (rfd 0002)"
        else:
            missing = await asyncio.to_thread(missing_support, self.layout.volumes)
        self._components.pods.shifts_ids = not missing
        self._user_namespaces = f"none: {missing}" if missing else "for Slurm clusters and AI workloads"

    async def _find_filesystem_sizes(self) -> None:
        missing = await asyncio.to_thread(sized_filesystems.missing_support, self.layout.volumes)
        self._components.volumes.enforces_sizes = self._components.pods.disks.are_enforced = not missing
        growing = "" if sized_filesystems.can_grow_mounted() else ", which grows only while no pod uses it"
        held = f"each is a file system in a file{growing}"
        self._filesystem_sizes = f"not enforced: {missing}" if missing else held
        self._container_disks = f"not enforced: {missing}" if missing else CONTAINER_DISKS

    async def _apply_pod(self, pod: Pod, settled: Set[Reference]) -> None:
        if pod.reference not in settled:
            await self._components.pods.ensure(pod)
        self._prober.follow(pod, self._components.address(pod.reference) or "")

    async def _remove_pod(self, reference: Reference) -> None:
        self._prober.forget(reference)
        await self._components.pods.remove(reference)

    async def _remove_namespace(self, namespace: str) -> None:
        self._components.virtual.check_unused(namespace, with_pods_of=namespace)
        pods = await self._components.pods.known(namespace)
        await _all(_PODS_AT_ONCE, [self._remove_pod(pod) for pod in pods])
        await self._components.remove_namespace(namespace)

    async def _run_probe(self, pod: Reference, container: str, command: list[str], seconds: float) -> int:
        return (await self.exec(pod, command, container=container, timeout_seconds=seconds)).exit_code

    async def _events(self, since: float) -> AsyncIterator[EngineEvent]:
        await self._prepare()
        async for event in self._observer.noted(watch(self.layout, since)):
            if event.kind is EventKind.POD_REMOVED:
                try:
                    await self._components.pods.note_removal(event.pod)
                except (EngineError, StoreError) as error:
                    # A pod that needs GPUs, and the next start, release them then.
                    logger.warning("GPUs of pod %s are not released yet: %s", event.pod.name, error)
            yield event


async def _all(at_once: int, work: Sequence[Coroutine[None, None, None]]) -> None:
    """Run all to their end, a few at a time; then raise their errors as one."""
    gate = asyncio.Semaphore(at_once)

    async def one(job: Coroutine[None, None, None]) -> None:
        async with gate:
            await job

    results = await asyncio.gather(*(one(job) for job in work), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, EngineError):
            raise error
    if errors:
        raise type(errors[0])(" ".join(dict.fromkeys(str(error) for error in errors)))
