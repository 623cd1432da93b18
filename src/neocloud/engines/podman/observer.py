"""Observe the pods of one namespace, and watch Podman's events.

Events are read from the file that Podman appends them to. Podman's own stream of them asks that file four
times a second, which costs a third of a percent of a core, and ends with the service.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NotRequired, TypedDict

from cachetools import FIFOCache, LRUCache

from neocloud.engines.base import (
    EngineEvent,
    EventKind,
    Observation,
    ObservedPod,
    Reference,
)
from neocloud.engines.manifest import NetworkPolicy, Pod, Service, VirtualNetwork
from neocloud.engines.podman.components import Components, address_of
from neocloud.engines.podman.containers import Row, by_pod, container_name, observed_pod
from neocloud.engines.podman.followed_file import followed_lines
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.libpod import Libpod, NotFound
from neocloud.engines.podman.probes import Prober
from neocloud.engines.podman.translate import SANDBOX

logger = logging.getLogger(__name__)

_RECORDED = (VirtualNetwork, Service, NetworkPolicy)
_KINDS = {
    "start": EventKind.POD_STARTED,
    "died": EventKind.POD_DIED,
    "remove": EventKind.POD_REMOVED,
}
_MARKS = tuple(f'"Status":"{name}"'.encode() for name in _KINDS)
"""A line with none of these need not be decoded: most are of commands in containers."""
_REMEMBERED = 20_000


@dataclass(frozen=True)
class _Run:
    """One run of a container, as Podman's list shows it, with details that only an inspection shows."""

    shown: tuple[object, ...]
    started_at: datetime
    restart_count: int


class Observer:
    """Reads the state of all objects of a namespace."""

    def __init__(self, components: Components, libpod: Libpod, prober: Prober) -> None:
        self._components = components
        self._libpod = libpod
        self._prober = prober
        self._runs: dict[str, dict[str, _Run]] = {}
        """Runs by namespace and container id: inspected once for each run of a container."""
        self._exits: LRUCache[Reference, int] = LRUCache(_REMEMBERED)
        """The code that a container of each pod ended with last."""

    async def noted(self, events: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
        """Yield the events, and keep exit codes: Podman forgets that of a container that it starts again."""
        async for event in events:
            self._note(event)
            yield event

    def _note(self, event: EngineEvent) -> None:
        if event.kind is EventKind.POD_REMOVED:
            self._exits.pop(event.pod, None)
        elif event.kind is EventKind.POD_DIED and event.exit_code is not None:
            self._exits[event.pod] = event.exit_code

    async def observe(self, namespace: str) -> Observation:
        rows = await self._components.pods.rows(namespace)
        # After the inspection, so that each is read once and all are of the same moment.
        runs = await self._inspect(namespace, rows)
        applied = {pod.reference: pod for pod in self._components.objects.list(namespace, Pod)}
        network = self._components.networks.find(namespace)
        pods: dict[Reference, list[Row]] = {pod: [] for pod in applied}
        pods |= by_pod(rows)
        found = [
            self._pod(pod, of_pod, runs, applied.get(pod), address_of(pod, applied.get(pod), network))
            for pod, of_pod in pods.items()
        ]
        found.sort(key=lambda pod: pod.reference.name)
        unsized = self._components.volumes.unsized(namespace)
        return Observation(tuple(found), frozenset(self._others(namespace)), frozenset(unsized))

    async def _inspect(self, namespace: str, rows: Sequence[Row]) -> dict[str, _Run]:
        """Return the current run of each container; only those that changed are inspected."""
        known = self._runs.get(namespace, {})
        containers = [row for row in rows if container_name(row) != SANDBOX]

        async def run_of(row: Row) -> _Run | None:
            shown = (row["State"], row["Pid"], row["StartedAt"], row["ExitCode"])
            run = known.get(row["Id"])
            if run and run.shown == shown:
                return run
            try:
                found = await self._libpod.get(f"/containers/{row['Id']}/json")
            except NotFound:
                return None
            return _Run(shown, datetime.fromisoformat(found["State"]["StartedAt"]), found["RestartCount"])

        runs = await asyncio.gather(*(run_of(row) for row in containers))
        found = {row["Id"]: run for row, run in zip(containers, runs, strict=True) if run}
        self._runs[namespace] = found
        if not found:
            del self._runs[namespace]
        return found

    def _pod(
        self,
        reference: Reference,
        rows: Sequence[Row],
        runs: Mapping[str, _Run],
        applied: Pod | None,
        ip: str | None,
    ) -> ObservedPod:
        inspected = {container_name(row): runs[row["Id"]] for row in rows if row["Id"] in runs}
        starts: dict[str, datetime | None] = {name: run.started_at for name, run in inspected.items()}
        return observed_pod(
            reference,
            rows,
            applied,
            ip=ip,
            ready=self._prober.is_ready(reference, starts),
            restart_count=sum(run.restart_count for run in inspected.values()),
            last_exit=self._exits.get(reference),
        )

    def _others(self, namespace: str) -> list[Reference]:
        if self._components.networks.find(namespace) is None:
            return []
        others = [Reference("Namespace", namespace, namespace)]
        for kind, config_mounts in self._components.config_mounts.items():
            others += [Reference(kind, namespace, name) for name in config_mounts.names(namespace)]
        for kind in _RECORDED:
            others += [manifest.reference for manifest in self._components.objects.list(namespace, kind)]
        claims = self._components.volumes.claims(namespace)
        return others + [Reference("PersistentVolumeClaim", namespace, name) for name in claims]


class PodmanEvent(TypedDict):
    """An event as Podman writes it. Those of Podman itself have no id and no attributes."""

    ID: NotRequired[str]
    Type: NotRequired[str]
    Status: str
    Time: str
    """RFC 3339, in nanoseconds."""
    Attributes: NotRequired[Mapping[str, str] | None]
    ContainerExitCode: NotRequired[int]
    """Left out where it is 0."""


class SeenEvents:
    """Filters repeated events: when the file has grown long, Podman puts its second half in its place."""

    def __init__(self, since: float) -> None:
        self._since = datetime.fromtimestamp(since, UTC)
        self._seen: FIFOCache[tuple[str, str, str], None] = FIFOCache(_REMEMBERED)

    def is_new(self, event: PodmanEvent) -> bool:
        key = (event["Time"], event.get("ID", ""), event["Status"])
        if key in self._seen or _time_of(event) < self._since:
            return False
        self._seen[key] = None
        return True


async def watch(layout: Layout, since: float) -> AsyncIterator[EngineEvent]:
    """Yield the events after the Unix time `since`, without end.

    They are read from the file that Podman writes, so those that happen while its service is down, or is
    started again, are not missed.
    """
    seen = SeenEvents(since)
    async with aclosing(followed_lines(layout.events_log)) as lines:
        async for line in lines:
            if not any(mark in line for mark in _MARKS):
                continue
            try:
                raw: PodmanEvent = json.loads(line)
                event = pod_event(raw, layout.label) if seen.is_new(raw) else None
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("An event of Podman cannot be read: %s: %.200r", error, line)
                continue
            if event:
                yield event


def pod_event(raw: PodmanEvent, home: str) -> EngineEvent | None:
    """Return the event of the pod, None for an event that does not concern a pod of this home."""
    attributes = raw.get("Attributes") or {}
    kind = _KINDS.get(raw["Status"])
    if kind is None or raw.get("Type") != "container" or attributes.get("neocloud.home") != home:
        return None
    # A pod is removed with the container that holds its network; other events of the sandbox do not count.
    part = "neocloud.network" if kind is EventKind.POD_REMOVED else "neocloud.container"
    if attributes.get(part) in (None, SANDBOX):
        return None
    return EngineEvent(
        kind=kind,
        pod=Reference("Pod", attributes["neocloud.namespace"], attributes["neocloud.pod"]),
        at=_time_of(raw),
        exit_code=raw.get("ContainerExitCode", 0) if kind is EventKind.POD_DIED else None,
    )


def _time_of(event: PodmanEvent) -> datetime:
    return datetime.fromisoformat(event["Time"])
