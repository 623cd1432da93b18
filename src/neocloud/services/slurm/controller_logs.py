"""Wake clusters and their pools when the controller of Slurm writes a line to its log.

slurmctld logs each change of a node's state and each start and end of a job, and nothing while it is idle, so
reconcilers need not ask Slurm periodically. The content of a line is ignored, because users of the cluster
can cause lines, and its root can suppress them. The first costs at most as much as asking periodically; the
resync finds what the second hides.
"""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, field

from neocloud.core.clock import Clock
from neocloud.core.reconcile.wakes import Wakes
from neocloud.core.service import Dependencies
from neocloud.engines.base import Engine, EngineError, Reference

CONTROLLER_CONTAINER = "controller"
CLUSTER_SECONDS = 10.0
POOL_SECONDS = 5.0
"""The least time between two wakes, however much is written."""


@dataclass
class _ThrottledWake:
    """Wakes resources when it is due, but not again before the least time has passed."""

    least_seconds: float
    ids: frozenset[str] = frozenset()
    is_due: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def run(self, clock: Clock, wakes: Wakes) -> None:
        while True:
            await self.is_due.wait()
            self.is_due.clear()
            wakes.wake(*self.ids)
            await clock.sleep(self.least_seconds)


@dataclass
class _Followed:
    wakes: tuple[_ThrottledWake, ...]
    readers: dict[Reference, asyncio.Task[None]] = field(default_factory=dict[Reference, asyncio.Task[None]])


class ControllerLogs:
    """Follows the controllers of clusters; a reconciler says at each run which there are."""

    def __init__(self, engine: Engine, clock: Clock, wakes: Wakes) -> None:
        self._engine, self._clock, self._wakes = engine, clock, wakes
        self._clusters: dict[str, _Followed] = {}

    @classmethod
    def of(cls, dependencies: Dependencies) -> "ControllerLogs":
        return cls(dependencies.engine, dependencies.clock, dependencies.provided.get(Wakes))

    def follow(self, cluster_id: str, pods: Iterable[Reference], pools: Iterable[str]) -> None:
        """Wake the cluster and its pools when one of these controllers writes something.

        May be repeated: one that is followed stays so, and one whose log has ended, with its container, is
        followed again.
        """
        followed = self._clusters.get(cluster_id)
        if followed is None:
            cluster = _ThrottledWake(CLUSTER_SECONDS, frozenset({cluster_id}))
            followed = self._clusters[cluster_id] = _Followed((cluster, _ThrottledWake(POOL_SECONDS)))
            for each_wake in followed.wakes:
                each_wake.task = asyncio.create_task(each_wake.run(self._clock, self._wakes))
        followed.wakes[1].ids = frozenset(pools)
        wanted = set(pods)
        for pod, reader in list(followed.readers.items()):
            if pod not in wanted or reader.done():
                del followed.readers[pod]
                reader.cancel()
        for pod in wanted - followed.readers.keys():
            followed.readers[pod] = asyncio.create_task(self._read(pod, followed.wakes))

    def forget(self, cluster_id: str) -> None:
        followed = self._clusters.pop(cluster_id, None)
        if followed is not None:
            tasks = [*followed.readers.values(), *(each.task for each in followed.wakes)]
            for task in tasks:
                if task is not None:
                    task.cancel()

    async def _read(self, pod: Reference, wakes: Iterable[_ThrottledWake]) -> None:
        try:
            lines = self._engine.logs(pod, container=CONTROLLER_CONTAINER, follow=True, tail=1)
            async with aclosing(lines):  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
                async for _ in lines:
                    for each_wake in wakes:
                        each_wake.is_due.set()
        except EngineError:
            return  # there is none now: its start wakes the cluster, which follows it
        for each_wake in wakes:
            each_wake.is_due.set()  # it has ended
