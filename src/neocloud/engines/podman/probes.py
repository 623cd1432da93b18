"""Readiness and liveness probes, run by the engine, because Podman's health checks need systemd.

Until a pod has answered once it is probed often, because somebody waits for it; after that in its own period,
and immediately when it was started again since. A port that is open stays open until its container ends, so
one that has answered is probed seldom: each connection costs a process of sshd.
A container counts as ready if it answered after its last start.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.manifest import HttpGet, Pod, Probe, fingerprint
from neocloud.engines.podman.layout import pod_field
from neocloud.engines.podman.network.security_rules import PROBE_MARK

logger = logging.getLogger(__name__)

_FIRST_TCP_SECONDS = 0.1
_FIRST_EXEC_SECONDS = 0.5
_FIRST_ANSWERS_SECONDS = 2.0
_PERIOD_SECONDS = 10
_OPEN_PORT_SECONDS = 10.0
"""The shortest period of a port that has answered."""
_FAILURES = 3
_STATUS_BYTES = 16
"""Bytes read of an HTTP response, enough for its status."""

RunCommand = Callable[[Reference, str, list[str], float], Awaitable[int]]
"""(pod, container, command, timeout) to exit code."""


@dataclass
class ReadinessState:
    """Results of one readiness probe so far."""

    threshold: int
    last_success: float = 0.0
    failures: int = 0
    probed: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the wait for the next probe."""

    @property
    def answers(self) -> bool:
        return bool(self.last_success) and self.failures < self.threshold

    def note(self, *, success: bool) -> bool:
        """Note a result. Return whether it changes what `answers` says."""
        before = self.answers
        if success:
            self.last_success, self.failures = time.time(), 0
        else:
            self.failures += 1
        self.probed.set()
        return self.answers != before

    def is_ready(self, started_at: datetime | None) -> bool:
        """Return whether the container has answered since its start and did not fail too often after it."""
        if started_at and self.last_success < started_at.timestamp():
            self.wanted.set()
        since = started_at.timestamp() if started_at else float("inf")
        return self.last_success >= since and self.answers


class Prober:
    """Runs one task for each probe of each followed pod."""

    def __init__(
        self,
        run: RunCommand,
        restart: Callable[[Reference], Awaitable[None]],
        changed: Callable[[Reference], None] = lambda pod: None,
    ) -> None:
        """`changed` is called with a pod of which a readiness probe answers, or does not any more."""
        self._run = run
        self._restart = restart
        self._changed = changed
        self._tasks: dict[Reference, list[asyncio.Task[None]]] = {}
        self._specs: dict[Reference, str] = {}
        self._states: dict[tuple[Reference, str], ReadinessState] = {}

    def follow(self, pod: Pod, address: str, *, adopted: bool = False) -> None:
        """Start to probe a pod; does nothing for a pod that is followed with this spec already.

        An adopted pod has run before, so it is probed immediately.
        """
        reference = pod.reference
        spec = fingerprint({"spec": pod.spec(), "address": address})
        if self._specs.get(reference) == spec:
            return
        self.forget(reference)
        self._specs[reference] = spec
        tasks = self._tasks.setdefault(reference, [])
        for container in pod.containers:
            probes = _ProbeRunner(self._run, reference, container.name, address)
            if probe := container.readiness_probe:
                state = ReadinessState(_threshold(probe))
                self._states[reference, container.name] = state
                delay = 0 if adopted else probe.initial_delay_seconds or 0
                changed = partial(self._changed, reference)
                tasks.append(asyncio.create_task(_watch_readiness(probes, probe, state, delay, changed)))
            if probe := container.liveness_probe:
                startup = container.startup_probe
                tasks.append(asyncio.create_task(_watch_liveness(probes, probe, startup, self._restart)))

    async def first_answers(self) -> None:
        """Wait, for a short time at most, until every probe has run once: before that nothing is known."""
        waiting = [state.probed.wait() for state in self._states.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_ANSWERS_SECONDS):
                await asyncio.gather(*waiting)

    def forget(self, reference: Reference) -> None:
        """Stop to probe a pod."""
        for task in self._tasks.pop(reference, []):
            task.cancel()
        self._specs.pop(reference, None)
        for key in [key for key in self._states if key[0] == reference]:
            del self._states[key]

    def is_ready(self, reference: Reference, started: Mapping[str, datetime | None]) -> bool:
        """Return whether all containers, given with their start times, have answered since."""
        return all(
            state.is_ready(started.get(container))
            for (pod, container), state in self._states.items()
            if pod == reference
        )

    def close(self) -> None:
        for reference in list(self._tasks):
            self.forget(reference)


@dataclass(frozen=True)
class _ProbeRunner:
    """Runs the probes of one container."""

    run: RunCommand
    reference: Reference
    container: str
    address: str

    async def succeeds(self, probe: Probe) -> bool:
        timeout = float(_given(probe.timeout_seconds, 1))
        try:
            async with asyncio.timeout(timeout):
                if probe.tcp_socket:
                    return await _connects(self.address, probe.tcp_socket.port)
                if probe.http_get:
                    return await _gets(self.address, probe.http_get)
                command = list(probe.exec.command) if probe.exec else []
                return await self.run(self.reference, self.container, command, timeout) == 0
        except (EngineError, OSError, TimeoutError):
            return False


async def _connects(address: str, port: int) -> bool:
    with _marked_socket() as probe:
        await asyncio.get_running_loop().sock_connect(probe, (address, port))
    return True


async def _gets(address: str, action: HttpGet) -> bool:
    """Send a GET request; only the status counts, as in Kubernetes: 200 to 399."""
    loop = asyncio.get_running_loop()
    request = f"GET {action.path or '/'} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    with _marked_socket() as probe:
        await loop.sock_connect(probe, (address, action.port))
        await loop.sock_sendall(probe, request.encode())
        response = b""
        while len(response) < _STATUS_BYTES and (part := await loop.sock_recv(probe, _STATUS_BYTES)):
            response += part
    status = response.split(b" ", 2)[1:2]
    return response.startswith(b"HTTP/") and bool(status) and status[0][:1] in (b"2", b"3")


def _marked_socket() -> socket.socket:
    """Return a socket with our mark, which passes the pod's security groups: they do not affect readiness."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    probe.setblocking(False)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, PROBE_MARK)
    return probe


async def _watch_readiness(
    probes: _ProbeRunner, probe: Probe, state: ReadinessState, delay: float, changed: Callable[[], None]
) -> None:
    period = float(_given(probe.period_seconds, _PERIOD_SECONDS))
    later = max(period, _OPEN_PORT_SECONDS) if probe.tcp_socket else period
    first = min(period, _FIRST_EXEC_SECONDS if probe.exec else _FIRST_TCP_SECONDS)
    await asyncio.sleep(delay)
    while True:
        if state.note(success=await probes.succeeds(probe)):
            changed()
        if not state.last_success or state.failures:
            await asyncio.sleep(first)
            continue
        state.wanted.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(later):
                await state.wanted.wait()


async def _watch_liveness(
    probes: _ProbeRunner,
    probe: Probe,
    startup: Probe | None,
    restart: Callable[[Reference], Awaitable[None]],
) -> None:
    """Restart the pod if the probe fails too often; a startup probe has to succeed once before it counts."""
    delay = probe.initial_delay_seconds or 0
    period = float(_given(probe.period_seconds, _PERIOD_SECONDS))
    failures = 0
    await asyncio.sleep(delay)
    if startup:
        await _until_started(probes, startup)
    while True:
        await asyncio.sleep(period)
        failures = 0 if await probes.succeeds(probe) else failures + 1
        if failures >= _threshold(probe):
            logger.warning(
                "Container %s failed its liveness probe %d times; the pod is restarted",
                probes.container,
                failures,
                extra=pod_field(probes.reference),
            )
            with contextlib.suppress(EngineError):
                await restart(probes.reference)
            failures = 0
            await asyncio.sleep(delay)
            if startup:
                await _until_started(probes, startup)


async def _until_started(probes: _ProbeRunner, startup: Probe) -> None:
    """Wait for the startup probe, for its number of periods at most; then the liveness probe decides."""
    for _ in range(_threshold(startup)):
        if await probes.succeeds(startup):
            return
        await asyncio.sleep(float(_given(startup.period_seconds, _PERIOD_SECONDS)))


def _threshold(probe: Probe) -> int:
    return _FAILURES if probe.failure_threshold is None else probe.failure_threshold


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
