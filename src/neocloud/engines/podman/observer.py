# pyright: strict
"""Observe the pods of one namespace, and watch Podman's events.

The event stream survives restarts of the Podman service: it connects again and requests what it missed.
Podman polls its event file four times a second, so the end of a container is reported after 0.1 to 0.4 s.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NotRequired, TypedDict

from neocloud.engines.base import (
    EngineEvent,
    EngineUnavailable,
    EventKind,
    Observation,
    ObservedPod,
    Reference,
)
from neocloud.engines.manifest import NetworkPolicy, Pod, Service, VirtualNetwork
from neocloud.engines.podman.components import Components, address_of
from neocloud.engines.podman.containers import Row, by_pod, container_name, observed_pod
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
_REMEMBERED = 20_000
_RECONNECT_SECONDS = 0.2


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
        """By namespace and container id: inspected once for each run of a container."""
        self._exits: OrderedDict[Reference, int] = OrderedDict()
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
            self._exits.move_to_end(event.pod)
            if len(self._exits) > _REMEMBERED:
                self._exits.popitem(last=False)

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


class Actor(TypedDict):
    ID: str
    Attributes: Mapping[str, str]


class PodmanEvent(TypedDict):
    """An event as Podman reports it. Those of Podman itself have no actor."""

    Type: NotRequired[str]
    Action: str
    Actor: Actor
    timeNano: int


class SeenEvents:
    """Filters repeated events: the file is read again after a reconnect and when Podman rotates it."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._seen: OrderedDict[tuple[int, str, str], None] = OrderedDict()

    def is_new(self, event: PodmanEvent) -> bool:
        key = (event["timeNano"], event["Actor"]["ID"], event["Action"])
        if event["timeNano"] / 1e9 < self._since or key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return True


async def watch(libpod: Libpod, layout: Layout, since: float) -> AsyncIterator[EngineEvent]:
    """Yield the events after the Unix time `since`, without end."""
    seen = SeenEvents(since)
    filters = {"label": [f"neocloud.home={layout.label}"]}
    while True:
        params = {"stream": True, "since": f"{since:.6f}", "filters": filters}
        try:
            await libpod.request("GET", "/_ping")  # starts the service again if it ended
            async with libpod.stream("/events", **params) as response:
                async for line in response.aiter_lines():
                    raw = json.loads(line)
                    event = pod_event(raw) if raw.get("Actor") and seen.is_new(raw) else None
                    if event:
                        yield event
        except EngineUnavailable as error:
            logger.warning("The stream of Podman's events ended: %s Connecting again.", error)
        await asyncio.sleep(_RECONNECT_SECONDS)


def pod_event(raw: PodmanEvent) -> EngineEvent | None:
    """Return the event of the pod, None for an event that does not concern a pod."""
    attributes = raw["Actor"]["Attributes"]
    kind = _KINDS.get(raw["Action"])
    if kind is None or raw.get("Type") != "container":
        return None
    # A pod is removed with the container that holds its network; other events of the sandbox do not count.
    part = "neocloud.network" if kind is EventKind.POD_REMOVED else "neocloud.container"
    if attributes.get(part) in (None, SANDBOX):
        return None
    code = attributes.get("containerExitCode")
    return EngineEvent(
        kind=kind,
        pod=Reference("Pod", attributes["neocloud.namespace"], attributes["neocloud.pod"]),
        at=datetime.fromtimestamp(raw["timeNano"] / 1e9, UTC),
        exit_code=int(code) if kind is EventKind.POD_DIED and code is not None else None,
    )
