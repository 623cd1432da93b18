"""Looks at the world of one namespace."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from neocloud.engines.base import Observation, ObservedPod, Reference
from neocloud.engines.podman.libpod import Libpod, NotFound
from neocloud.engines.podman.observation import Row, by_pod, container_name, observed_pod
from neocloud.engines.podman.parts import Parts
from neocloud.engines.podman.probes import Prober
from neocloud.engines.podman.translate import SANDBOX

_RECORDED = ("VirtualNetwork", "Service", "NetworkPolicy")


class Observer:
    def __init__(self, parts: Parts, libpod: Libpod, prober: Prober) -> None:
        self._parts = parts
        self._libpod = libpod
        self._prober = prober

    async def observe(self, namespace: str) -> Observation:
        pods = {reference: [] for reference in self._parts.pods.applied(namespace)}
        pods |= by_pod(await self._parts.pods.rows(namespace))
        seen = await asyncio.gather(*(self._pod(pod, rows) for pod, rows in pods.items()))
        found = sorted(seen, key=lambda pod: pod.reference.name)
        return Observation(tuple(found), frozenset(self._others(namespace)))

    async def _pod(self, reference: Reference, rows: Sequence[Row]) -> ObservedPod:
        starts: dict[str, datetime | None] = {}
        restarts = 0
        for row in rows:
            if container_name(row) == SANDBOX:
                continue
            try:
                found = await self._libpod.get(f"/containers/{row['Id']}/json")
            except NotFound:
                continue
            restarts += found["RestartCount"]
            starts[container_name(row)] = datetime.fromisoformat(found["State"]["StartedAt"])
        return observed_pod(
            reference,
            rows,
            self._parts.objects.get(reference),
            ip=self._parts.address(reference),
            ready=self._prober.is_ready(reference, starts),
            restart_count=restarts,
        )

    def _others(self, namespace: str) -> list[Reference]:
        if self._parts.networks.find(namespace) is None:
            return []
        others = [Reference("Namespace", namespace, namespace)]
        for kind, projections in self._parts.projections.items():
            others += [Reference(kind, namespace, name) for name in projections.names(namespace)]
        for kind in _RECORDED:
            manifests = self._parts.objects.list(namespace, kind)
            others += [Reference.of(manifest) for manifest in manifests]
        claims = self._parts.volumes.claims(namespace)
        return others + [Reference("PersistentVolumeClaim", namespace, name) for name in claims]
