# pyright: standard
"""Kill a worker at a random moment of every change, many times, and check the final state.

A worker talks to the outside only through its store and its engine. Both are wrapped so that at a chosen
call, before or after it has taken effect, the worker is cut off: nothing it does afterwards reaches
anything, as after `kill -9`. Then a new worker starts on what is left. Moments are drawn from a seed; a
failure names it.

    await crash_everywhere(new_story, rounds=50)
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Protocol

from neocloud.core.reconcile import Worker
from neocloud.core.store import Store, Transaction
from neocloud.testing.waiting import FakeClock

logger = logging.getLogger(__name__)

_MOST_CRASHES = 3


class Crashed(BaseException):
    """The simulated end of the process. Not an Exception, so that the worker does not catch it."""


class CrashStory(Protocol):
    """A cloud of its own and its changes. Everything but the worker survives crashes."""

    store: Store
    engine: Any
    clock: FakeClock
    actions: Sequence[Callable[[], Awaitable[None]]]
    """Each changes the desired state, as a request of a user does: create, scale, delete."""
    seconds: float
    """The (fake) time within which the desired state must be reached, crashes included."""

    def worker(self, store: Store, engine: Any) -> Worker:
        """Return a worker as the server builds it, on this store and engine."""
        ...

    async def is_converged(self) -> bool:
        """Return whether the desired state is reached and the operations have ended."""
        ...

    async def check(self) -> None:
        """Raise AssertionError for orphans, duplicates and missing resources."""
        ...

    async def close(self) -> None: ...


class Fuse:
    """A counter of calls that crashes at one of them; None never crashes."""

    def __init__(self, calls: int | None = None) -> None:
        self.count = 0
        self.place = ""
        self.is_blown = False
        self._calls = calls

    def tick(self, place: str) -> None:
        if not self.is_blown:
            self.count += 1
            self.place = place
            self.is_blown = self.count == self._calls
        if self.is_blown:
            raise Crashed(self.place)


class Fragile:
    """An object, with its async methods on a fuse: they may crash before and after they take effect."""

    def __init__(self, target: Any, fuse: Fuse) -> None:
        self._target = target
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute

        async def call(*arguments: Any, **options: Any) -> Any:
            self._fuse.tick(f"before {name}")
            result = await attribute(*arguments, **options)
            self._fuse.tick(f"after {name}")
            return result

        return call


async def crash_everywhere(
    new_story: Callable[[], Awaitable[CrashStory]], *, rounds: int = 50, seed: int = 20260101
) -> int:
    """Run the story `rounds` times, each action with one to three crashes; return the number of crashes."""
    lengths = await _undisturbed(await new_story())
    crashes = 0
    for number in range(rounds):
        random = Random(seed + number)
        story = await new_story()
        trace = [f"seed {seed + number}"]
        try:
            for action, length in zip(story.actions, lengths, strict=True):
                await action()
                for _ in range(random.randint(1, _MOST_CRASHES)):
                    crashes += await _crash_once(story, Fuse(random.randint(1, length)), trace)
                await _run(story, Fuse())
                await story.check()
        except BaseException as error:
            error.add_note("The crashes so far: " + "; ".join(trace))
            raise
        finally:
            await story.close()
    logger.info("%d crashes in %d rounds from seed %d", crashes, rounds, seed)
    return crashes


async def _undisturbed(story: CrashStory) -> list[int]:
    """Return the calls of each action without a crash: the moments at which one is possible."""
    lengths: list[int] = []
    for action in story.actions:
        await action()
        fuse = Fuse()
        await _run(story, fuse)
        await story.check()
        lengths.append(fuse.count)
    await story.close()
    return lengths


async def _crash_once(story: CrashStory, fuse: Fuse, trace: list[str]) -> bool:
    await _run(story, fuse)
    name = f"call {fuse.count}"
    trace.append(f"{name} ({fuse.place})" if fuse.is_blown else f"none, done at {name}")
    return fuse.is_blown


async def _run(story: CrashStory, fuse: Fuse) -> None:
    """Run a worker until the fuse blows or the desired state is reached; then end it without cleanup."""
    worker = story.worker(Fragile(story.store, fuse), Fragile(story.engine, fuse))  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())

    async def is_over() -> bool:
        return fuse.is_blown or await story.is_converged()

    try:
        await story.clock.run_until(is_over, within=story.seconds)
    finally:
        had_crashed, fuse.is_blown = fuse.is_blown, True  # from here on nothing it does has an effect
        running.cancel()
        await asyncio.wait({running})
        fuse.is_blown = had_crashed
        if not running.cancelled():
            running.exception()  # it is the crash; asked for, so that asyncio does not report it


_WRITES = frozenset(
    (
        *("insert", "update", "delete", "enqueue", "enqueue_all", "put_secret"),
        *("insert_operation", "update_operation", "audit", "remember"),
        *("reserve", "release", "count", "put_mark", "remove_mark", "append_event"),
        *("archive_events", "put_snapshot", "forget_log"),
    )
)


class ProcessDied(Exception):
    """The error for a caller in the crashing process. Its transaction is rolled back."""


class MortalStore:
    """A store whose process dies where its fuse says: before a write, before a commit or after it.

    Nothing is written from then on, until `revive` starts the next process.
    """

    def __init__(self, store: Store, fuse: Fuse) -> None:
        self._store = store
        self.fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def revive(self, fuse: Fuse) -> None:
        self.fuse = fuse

    async def write(self, work: Callable[[Transaction], Any]) -> Any:
        def mortal(tx: Transaction) -> Any:
            try:
                result = work(MortalTransaction(tx, self.fuse))  # type: ignore[arg-type]
                self.fuse.tick("before commit")
            except Crashed as crash:
                raise ProcessDied(str(crash)) from None
            return result

        result = await self._store.write(mortal)
        try:
            self.fuse.tick("after commit")
        except Crashed as crash:
            raise ProcessDied(str(crash)) from None
        return result


class MortalTransaction:
    """A transaction with its writes on a fuse."""

    def __init__(self, tx: Transaction, fuse: Fuse) -> None:
        self._tx = tx
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        if name in _WRITES:
            self._fuse.tick(f"before {name}")
        return getattr(self._tx, name)
