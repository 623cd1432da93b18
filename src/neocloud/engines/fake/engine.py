"""FakeEngine: an engine in memory, with faults on demand.

For tests and for trying the control plane on any laptop. `shell` implements a few programs, and a test may
answer `exec` itself. Nothing here waits, except with a clock and a fault that needs it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from neocloud.engines.base import (
    MAX_OUTPUT_BYTES,
    Accelerator,
    Capabilities,
    EngineError,
    EngineEvent,
    EventKind,
    ExecResult,
    Observation,
    OutputTooLarge,
    Reference,
)
from neocloud.engines.fake.faults import Faults
from neocloud.engines.fake.images import FakeImages, program_of, require_images
from neocloud.engines.fake.logs import FakeLogs
from neocloud.engines.fake.shell import Process, StillRunning, log_lines, run
from neocloud.engines.fake.volumes import FakeVolumes
from neocloud.engines.fake.world import (
    ContainerState,
    FakeContainer,
    FakePod,
    FakeWorld,
    fill_claim,
    observed_pod,
    refuse_if_used,
)
from neocloud.engines.manifest import (
    Manifest,
    Namespace,
    Pod,
    VirtualNetwork,
    VolumeClaim,
    check_reference,
    in_order,
)
from neocloud.engines.network_rules import check_member, check_network

Responder = Callable[[Reference, str, Sequence[str], bytes], ExecResult | None]
"""Maps (pod, container, command, stdin) to an answer; None: the built-in programs answer."""


class Clock(Protocol):
    def now(self) -> datetime: ...

    async def sleep(self, seconds: float) -> None: ...


class FakeEngine(FakeImages, FakeLogs, FakeVolumes):
    """Implements `neocloud.engines.base.Engine`."""

    def __init__(
        self,
        world: FakeWorld | None = None,
        *,
        faults: Faults | None = None,
        responder: Responder | None = None,
        clock: Clock | None = None,
        cpus: int = 64,
        memory_mib: int = 512 * 1024,
        accelerators: tuple[Accelerator, ...] = (),
        is_boundless: bool = False,
        folders: Path | None = None,
    ) -> None:
        self.world = world or FakeWorld()
        self.faults = faults or Faults()
        self.responder, self.folders = responder, folders
        self.applied: list[list[Reference]] = []
        """The references of each call of apply, for tests that count."""
        self._clock = clock
        self._capabilities = Capabilities(
            engine="fake",
            version="1",
            cpus=cpus,
            memory_mib=memory_mib,
            accelerators=accelerators,
            isolates_namespaces=True,
            enforces_volume_size=True,
            enforces_container_disk=True,
            shares_filesystems=folders is not None,
            is_boundless=is_boundless,
            details={"acceleration": "tcg", "acceleration reason": "no machine really runs"},
            warnings=("Nothing really runs: this engine only pretends.",),
        )
        self._listeners: list[asyncio.Queue[EngineEvent]] = []
        self.log_readers: list[asyncio.Event] = []
        self._deaths: set[asyncio.Task[None]] = set()

    async def capabilities(self) -> Capabilities:
        self.faults.check_available()
        return self._capabilities

    async def apply(self, objects: Sequence[Manifest]) -> bool:
        manifests = in_order(objects)
        self.faults.check_available()
        self.applied.append([manifest.reference for manifest in manifests])
        has_changed = False
        for manifest in manifests:
            if isinstance(manifest, Pod):
                self.faults.check_apply()
                has_changed |= await self._apply_pod(manifest)
            else:
                self._apply_object(manifest)
            self.world.save()
        return has_changed

    async def observe(self, namespace: str) -> Observation:
        self.faults.check_available()
        check_reference(Reference("Namespace", namespace, namespace))
        pods = sorted(self.world.pods_of(namespace), key=lambda pod: pod.reference.name)
        others = set(self.world.objects.of(namespace))
        if namespace in self.world.namespaces:
            others.add(Reference("Namespace", namespace, namespace))
        return Observation(tuple(observed_pod(pod, self._probe_answers) for pod in pods), frozenset(others))

    async def remove(self, references: Sequence[Reference]) -> None:
        self.faults.check_available()
        for reference in references:
            check_reference(reference)
        for reference in [r for r in references if r.kind == "Pod"]:
            if self.faults.stop_gate is not None and reference in self.world.pods:
                await self.faults.stop_gate.wait()
            self._remove_pod(reference)
        for reference in [r for r in references if r.kind not in ("Pod", "Namespace")]:
            refuse_if_used(self.world, reference)
            self.world.objects.discard(reference)
            self.world.volumes.discard(reference)
        for reference in [r for r in references if r.kind == "Namespace"]:
            refuse_if_used(self.world, reference)
            for pod in list(self.world.pods_of(reference.name)):
                self._remove_pod(pod.reference)
            self.world.remove_namespace(reference.name)
        self.world.save()

    async def restart(self, pod: Reference) -> None:
        self.faults.check_available()
        found = self._pod(pod)
        for container in found.containers:
            if container.is_running:
                self._end(found, container, 143, restart=False)
            self._start(found, container)
        self.world.save()

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
        result = self._executed(pod, command, container, stdin, timeout_seconds)
        if len(result.stdout) + len(result.stderr) > max_output_bytes:
            raise OutputTooLarge(command[0], max_output_bytes)
        return result

    def _executed(
        self,
        pod: Reference,
        command: Sequence[str],
        container: str | None,
        stdin: bytes,
        timeout_seconds: float,
    ) -> ExecResult:
        self.faults.check_available()
        found = self._pod(pod)
        chosen = found.container(container)
        if not command:
            raise EngineError("There is no command to run.")
        if self.responder:
            answer = self.responder(pod, chosen.name, command, stdin)
            if answer is not None:
                return answer
        if not chosen.is_running:
            raise EngineError(f"Container {chosen.name} of pod {pod.name} is not running.")
        try:
            return run(self._process(found, chosen), command, stdin)
        except StillRunning as error:
            raise EngineError(
                f"{command[0]} did not finish within {timeout_seconds:g} s and was ended."
            ) from error

    def events(self) -> AsyncIterator[EngineEvent]:
        self.faults.check_available()
        return self._events(self._listen())

    def removal_commands(self, namespace: str) -> Sequence[str]:
        """Return none: nothing really runs on the host."""
        return ()

    async def close(self) -> None:
        for task in self._deaths:
            task.cancel()

    # For tests: changes that the control plane did not make

    def kill(self, pod: Reference, exit_code: int = 137) -> None:
        """End the first container; the pod's policy decides whether it starts again."""
        found = self._pod(pod)
        self._end(found, found.containers[0], exit_code)
        self.world.save()

    def show_accelerators(self, accelerators: Sequence[Accelerator]) -> None:
        """Have these GPUs from now on."""
        self._capabilities = replace(self._capabilities, accelerators=tuple(accelerators))

    def lose(self, pod: Reference) -> None:
        """Remove the pod without an event."""
        self.world.take(pod)
        self.world.save()

    # Internals

    def _apply_object(self, manifest: Manifest) -> None:
        reference = manifest.reference
        if isinstance(manifest, Namespace):
            self.world.add_namespace(manifest.name)
            return
        self._require_namespace(reference)
        if isinstance(manifest, VirtualNetwork):
            check_network(manifest, self.world.networks(), self.world.members())
        elif isinstance(manifest, VolumeClaim):
            fill_claim(self.world, self.faults, manifest)
        self.world.objects[reference] = manifest

    async def _apply_pod(self, manifest: Pod) -> bool:
        reference = manifest.reference
        self._require_namespace(reference)
        self._require_references(manifest)
        existing = self.world.pods.get(reference)
        if member := manifest.member:
            check_member(member, self.world.network, self.world.holders)
        if existing and existing.manifest.fingerprint != manifest.fingerprint:
            self._remove_pod(reference)
            existing = None
        if existing:
            self.world.change(existing, manifest)
        else:
            containers = [FakeContainer(container) for container in manifest.containers]
            address = str(member.interface.address) if member else self.world.address_of(reference)
            existing = FakePod(manifest, address, containers)
            self.world.add(existing)
            self.world.save()
        if self._clock and self.faults.apply_seconds:
            await self._clock.sleep(self.faults.apply_seconds)
        if self.faults.start_gate:
            await self.faults.start_gate.wait()
        self.faults.check_ports(manifest)
        due = [container for container in existing.containers if existing.is_due(container)]
        for container in due:
            self._start(existing, container)
        return bool(due)

    def _require_namespace(self, reference: Reference) -> None:
        if reference.namespace not in self.world.namespaces:
            raise EngineError(f"Namespace {reference.namespace} does not exist; apply it before its objects.")

    def _require_references(self, manifest: Pod) -> None:
        for needed in manifest.required_objects:
            if needed not in self.world.objects:
                raise EngineError(f"{needed.kind} {needed.name} does not exist; apply it before the pod.")
        require_images(self.world, self.faults, manifest)

    def _start(self, pod: FakePod, container: FakeContainer) -> None:
        container.state = ContainerState.RUNNING
        container.started_at = self._now()
        container.ports.clear()
        self._notify(EventKind.POD_STARTED, pod.reference)
        command = program_of(self.world, container)
        seconds = self.faults.die_after_seconds.get(pod.reference.name)
        if self._clock and seconds is not None:
            task = asyncio.create_task(self._die_later(pod, container, seconds))
            self._deaths.add(task)
            task.add_done_callback(self._deaths.discard)
        if not command:
            return
        try:
            result = run(self._process(pod, container), command)
        except StillRunning:
            return
        container.logs += log_lines(result.stdout + result.stderr)
        # A program that is not known here is treated as a daemon that serves the ports it declares.
        if result.exit_code == 127:
            container.ports |= {port.container_port for port in container.manifest.ports or ()}
        elif container.is_running:
            self._end(pod, container, result.exit_code, restart=False)

    async def _die_later(self, pod: FakePod, container: FakeContainer, seconds: float) -> None:
        assert self._clock is not None
        await self._clock.sleep(seconds)
        if container.is_running:
            self._end(pod, container, 1)

    def _end(self, pod: FakePod, container: FakeContainer, exit_code: int, *, restart: bool = True) -> None:
        container.state = ContainerState.EXITED
        container.exit_code = exit_code
        container.ports.clear()
        self._notify(EventKind.POD_DIED, pod.reference, exit_code)
        if restart and pod.is_due(container):
            container.restart_count += 1
            self._start(pod, container)

    def _remove_pod(self, reference: Reference) -> None:
        if (pod := self.world.take(reference)) is None:
            return
        for container in pod.containers:
            if container.is_running:
                self._end(pod, container, 143, restart=False)
        self._notify(EventKind.POD_REMOVED, reference)

    def _pod(self, reference: Reference) -> FakePod:
        pod = self.world.pods.get(reference)
        if pod is None:
            raise EngineError(f"Pod {reference.name} of namespace {reference.namespace} does not exist.")
        return pod

    def _process(self, pod: FakePod, container: FakeContainer) -> Process:
        return Process(self.world, pod, container, lambda code: self._end(pod, container, code))

    def _probe_answers(self, pod: FakePod, container: FakeContainer) -> bool:
        probe = container.manifest.readiness_probe
        if probe is None:
            return True
        if probe.exec:
            return run(self._process(pod, container), probe.exec.command).exit_code == 0
        action = probe.tcp_socket or probe.http_get
        return action is not None and action.port in container.ports

    def _now(self) -> datetime:
        return self._clock.now() if self._clock else self.world.tick()

    def _listen(self) -> asyncio.Queue[EngineEvent]:
        self._listeners.append(asyncio.Queue())
        return self._listeners[-1]

    async def _events(self, queue: asyncio.Queue[EngineEvent]) -> AsyncIterator[EngineEvent]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)

    def _notify(self, kind: EventKind, pod: Reference, exit_code: int | None = None) -> None:
        event = EngineEvent(kind, pod, self._now(), exit_code)
        for queue in self._listeners:
            queue.put_nowait(event)
        self.wake_log_readers()
