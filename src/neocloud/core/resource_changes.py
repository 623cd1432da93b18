"""Tell waiting calls, such as the long polls of data planes, that resources of some kinds have changed.

A notification comes before the change is committed. A call that then reads in a write transaction
(`Store.write`) takes its turn among the writers, so it sees the change.
"""

import asyncio
import secrets
from collections.abc import Collection, Iterable

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Resource, Transaction

_VERSION_BYTES = 6


class ResourceChanges:
    """The changes of resources of these kinds in one store, for one event loop."""

    def __init__(self, clock: Clock, kinds: Collection[str]) -> None:
        self._clock = clock
        self._kinds = frozenset(kinds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._start, self._count = secrets.token_hex(_VERSION_BYTES), 0

    @property
    def version(self) -> str:
        """Another text after each change, and after each start. Read it before the rows: then it is never
        newer than what was read."""
        return f"{self._start}-{self._count}"

    def watch(self, tx: Transaction, old: Resource | None, new: Resource | None) -> None:
        """A store's Watcher: called in the store's thread, before the change is committed."""
        row, loop = new or old, self._loop
        if row is None or row.kind not in self._kinds or loop is None or loop.is_closed():
            return
        loop.call_soon_threadsafe(self.notify)

    def after_run(self, kind: str) -> None:
        """Notify after a reconciler has written the status of a resource of this kind."""
        if kind in self._kinds:
            self.notify()

    def listen(self) -> asyncio.Event:
        """Return an event that is set at the next change. Call it before reading the rows."""
        self._loop = asyncio.get_running_loop()
        return self._changed

    async def wait(self, changed: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set that `listen` returned, or the time is over."""
        await self.wait_any((changed,), seconds)

    async def wait_any(self, events: Iterable[asyncio.Event], seconds: float) -> None:
        """Wait until one of these events is set, or the time is over."""
        waiting = [asyncio.ensure_future(event.wait()) for event in events]
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({*waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*waiting, sleeping):
                each.cancel()

    def notify(self) -> None:
        """Publish a change that no Watcher gets, after it is committed; from the event loop."""
        self._count += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
