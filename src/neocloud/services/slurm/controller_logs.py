"""The logs of Slurm's controllers, followed for one thing only: that something was written.

slurmctld writes a line when the state of a node changes, and when a job starts or ends, and none while
nothing happens. So a line wakes those that ask Slurm for its state, which then need not ask all the time.
What it says is not read: users of the cluster can have lines written, and its root can have none written. At
most that costs what asking all the time does, and the resync finds what was not told.
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
class _Bell:
    """Wakes some resources when it is rung, each time after the least time at the earliest."""

    least_seconds: float
    ids: frozenset[str] = frozenset()
    is_rung: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def run(self, clock: Clock, wakes: Wakes) -> None:
        while True:
            await self.is_rung.wait()
            self.is_rung.clear()
            wakes.wake(*self.ids)
            await clock.sleep(self.least_seconds)


@dataclass
class _Followed:
    bells: tuple[_Bell, ...]
    readers: dict[Reference, asyncio.Task[None]] = field(default_factory=dict)


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
            cluster = _Bell(CLUSTER_SECONDS, frozenset({cluster_id}))
            followed = self._clusters[cluster_id] = _Followed((cluster, _Bell(POOL_SECONDS)))
            for bell in followed.bells:
                bell.task = asyncio.create_task(bell.run(self._clock, self._wakes))
        followed.bells[1].ids = frozenset(pools)
        wanted = set(pods)
        for pod, reader in list(followed.readers.items()):
            if pod not in wanted or reader.done():
                del followed.readers[pod]
                reader.cancel()
        for pod in wanted - followed.readers.keys():
            followed.readers[pod] = asyncio.create_task(self._read(pod, followed.bells))

    def forget(self, cluster_id: str) -> None:
        followed = self._clusters.pop(cluster_id, None)
        if followed is not None:
            tasks = [*followed.readers.values(), *(each.task for each in followed.bells)]
            for task in tasks:
                if task is not None:
                    task.cancel()

    async def _read(self, pod: Reference, bells: Iterable[_Bell]) -> None:
        try:
            lines = self._engine.logs(pod, container=CONTROLLER_CONTAINER, follow=True, tail=1)
            async with aclosing(lines):  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
                async for _ in lines:
                    for bell in bells:
                        bell.is_rung.set()
        except EngineError:
            return  # there is none now: its start wakes the cluster, which follows it
        for bell in bells:
            bell.is_rung.set()  # it has ended
