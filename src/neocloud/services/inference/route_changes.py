"""Notifies waiting calls that routes may have changed: the spec or status of a deployment, model or budget.

The notification comes before the change is committed. A call that then reads in a write transaction
(`Store.write`) takes its turn among the writers, so it sees the change.
"""

import asyncio

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.services.inference.types import BUDGET, DEPLOYMENT, MODEL

_KINDS = frozenset({DEPLOYMENT, MODEL, BUDGET})


class RouteChanges:
    """The changes of one store, for one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    def watch(self, tx: Transaction, old: Resource | None, new: Resource | None) -> None:
        """A store's Watcher: called in the store's thread, before the change is committed."""
        row = new or old
        if row is not None and row.kind in _KINDS and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._notify)

    def after_run(self, kind: str) -> None:
        """Notify after a reconciler has written the status of a resource of this kind."""
        if kind in _KINDS:
            self._notify()

    def listen(self) -> asyncio.Event:
        """Return an event that is set at the next change. Call it before reading the routes."""
        self._loop = asyncio.get_running_loop()
        return self._changed

    async def wait(self, changed: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set that `listen` returned, or the time is over."""
        waiting = asyncio.ensure_future(changed.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
