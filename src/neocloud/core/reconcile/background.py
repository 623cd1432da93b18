"""Work that takes longer than a run of a reconciler may: it continues beside the runs, which only look
whether it has ended. The worker has room for a few runs of the whole cloud at a time.

The work is in this process alone. A run after a restart starts it again, so it has to be repeatable.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

LabelT = TypeVar("LabelT")


@dataclass(frozen=True)
class Work(Generic[LabelT]):
    label: LabelT
    """Data for the caller once the work has ended."""
    task: asyncio.Task[None]


class BackgroundWork(Generic[LabelT]):
    """At most one piece of work of each resource."""

    def __init__(self, most_at_a_time: int | None) -> None:
        """None: the work itself waits until there is room."""
        self._room = nullcontext() if most_at_a_time is None else asyncio.Semaphore(most_at_a_time)
        self._found: dict[str, Work[LabelT]] = {}

    def start(
        self, resource_id: str, label: LabelT, work: Callable[[], Coroutine[object, None, object]]
    ) -> None:
        """Begin when there is room. The caller has made sure that the resource has no work."""

        async def run() -> None:
            async with self._room:
                await work()

        task = asyncio.create_task(run())
        task.add_done_callback(_retrieve)
        self._found[resource_id] = Work(label, task)

    def find(self, resource_id: str) -> Work[LabelT] | None:
        """Return the work of a resource that is in progress, or has ended and was not forgotten."""
        return self._found.get(resource_id)

    def is_going_on(self, resource_id: str) -> bool:
        """Return whether work is in progress. Ended work is removed, and its exception is raised."""
        found = self._found.get(resource_id)
        if found is None or not found.task.done():
            return found is not None
        del self._found[resource_id]
        found.task.result()
        return False

    def cancel(self, resource_id: str) -> None:
        """Forget the work, and end it if it is in progress."""
        found = self._found.pop(resource_id, None)
        if found is not None:
            found.task.cancel()


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take note of what it raised: at the end of the process no run asks, and asyncio would log it."""
    if not task.cancelled():
        task.exception()
