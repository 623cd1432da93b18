"""The worker: takes what is due, runs passes over it side by side, and survives everything but being killed.

The queue is in the store, so killing the worker loses nothing: leases of the dead run out, or the next worker
takes them over. What the worker holds in memory is only which passes run and who was woken just now.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.reconcile.context import ChildKind, WorkerContext
from neocloud.core.reconcile.leased_pass import LeasedPass
from neocloud.core.reconcile.one_pass import back_off_seconds
from neocloud.core.reconcile.reconciler import Reconciler
from neocloud.core.store.protocol import Lease, Resource, Store, StoreError, Transaction

log = logging.getLogger(__name__)

_SHORTEST_WAIT_SECONDS = 0.02


class Worker:
    """Reconciles the kinds of its reconcilers until stopped."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        reconcilers: Sequence[Reconciler],
        *,
        kinds: Iterable[ChildKind] = (),
        new_id: Callable[[str], str] = contract.new_id,
        concurrency: int = 8,
        lease_seconds: float = 10.0,
        poll_seconds: float = 1.0,
        take_over: bool = True,
        after_pass: Callable[[str], None] = lambda kind: None,
    ) -> None:
        """`kinds` are those that reconcilers make children of. `take_over` says that no other worker uses the
        store: leases found at the start are of the dead. `after_pass` is told the kind of each
        resource that a pass has ended over, after what it found was written."""
        self._store = store
        self._clock = clock
        self._reconcilers = {reconciler.kind: reconciler for reconciler in reconcilers}
        self._around = WorkerContext(
            store, clock, {kind.message: kind for kind in kinds}, new_id, self.notify
        )
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._take_over = take_over
        self._after_pass = after_pass
        self._is_new = True
        self._enqueued: set[str] = set()
        self._notified = asyncio.Event()
        self._passes: dict[str, asyncio.Task[None]] = {}
        self._is_stopping = False
        self._grace_is_over = asyncio.Event()
        self._store_errors = 0

    async def run(self) -> None:
        """Returns after `stop`; cancelling it abandons the passes as a crash would, but gives leases back."""
        try:
            while not self._is_stopping:
                self._notified.clear()
                await self._wait(await self._look())
            await self._grace_is_over.wait()
        finally:
            await self._cancel_passes()

    def enqueue(self, resource_id: str) -> None:
        """Reconcile this resource now. Call it in the worker's event loop; an unknown id is ignored."""
        self._enqueued.add(resource_id)
        self._notified.set()

    def notify(self) -> None:
        """Take what has become due in the store now. Call it in the worker's event loop."""
        self._notified.set()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Take nothing new, let passes end within the grace, then cancel the rest; leases are given back."""
        self._is_stopping = True
        self._notified.set()
        running = set(self._passes.values())
        if running:
            grace = asyncio.create_task(self._clock.sleep(grace_seconds))
            ended = asyncio.gather(*running, return_exceptions=True)
            await asyncio.wait({grace, ended}, return_when=asyncio.FIRST_COMPLETED)
            grace.cancel()
        await self._cancel_passes()
        self._grace_is_over.set()

    async def _look(self) -> float:
        """Start passes for what is due; says how long to wait before looking again."""
        try:
            await self._store_enqueued()
            for lease, resource in await self._take():
                self._start(lease, resource)
            due_at = await self._store.read(lambda tx: tx.next_due(self._kinds))
        except StoreError as error:
            self._store_errors += 1
            delay = back_off_seconds(self._store_errors)
            log.error("The worker cannot use its store: %s Again in %g s.", error, delay)
            return delay
        self._store_errors = 0
        if due_at is None or len(self._passes) >= self._concurrency:
            return self._poll_seconds
        until_due = (due_at - self._clock.now()).total_seconds()
        return min(self._poll_seconds, max(_SHORTEST_WAIT_SECONDS, until_due))

    async def _store_enqueued(self) -> None:
        """Make wakes durable before acting on them. At the start all are woken: nobody looked before."""
        enqueued, self._enqueued = self._enqueued, set()
        is_new, self._is_new = self._is_new, False
        if not enqueued and not is_new:
            return

        def note(tx: Transaction) -> None:
            now = self._clock.now()
            if is_new and self._take_over:
                tx.clear_leases(self._kinds)
            if is_new:
                tx.enqueue_all(self._kinds, now)
            for resource_id in sorted(enqueued):
                tx.enqueue(resource_id, now)

        try:
            await self._store.write(note)
        except StoreError:
            self._enqueued |= enqueued
            self._is_new = is_new
            raise

    async def _take(self) -> list[tuple[Lease, Resource]]:
        free = self._concurrency - len(self._passes)
        if free <= 0 or not await self._store.read(lambda tx: tx.due(self._kinds, self._clock.now(), 1)):
            return []

        def take(tx: Transaction) -> list[tuple[Lease, Resource]]:
            now = self._clock.now()
            until = now + timedelta(seconds=self._lease_seconds)
            taken: list[tuple[Lease, Resource]] = []
            for resource_id in tx.due(self._kinds, now, free):
                if resource_id in self._passes:
                    continue  # its lease ran out because this process was held up; it renews by itself
                lease = tx.lease(resource_id, secrets.token_hex(8), now, until)
                resource = tx.get(resource_id)
                if lease is not None and resource is not None:
                    taken.append((lease, resource))
            return taken

        return await self._store.write(take)

    def _start(self, lease: Lease, resource: Resource) -> None:
        leased = LeasedPass(
            self._around, self._reconcilers[resource.kind], resource, lease, self._lease_seconds
        )
        task = asyncio.create_task(leased.run(), name=f"reconcile {resource.id}")
        self._passes[resource.id] = task
        task.add_done_callback(lambda done: self._ended(resource, done))

    def _ended(self, resource: Resource, task: asyncio.Task[None]) -> None:
        del self._passes[resource.id]
        self._notified.set()
        self._after_pass(resource.kind)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("The pass over %s broke: %s", resource.id, error, exc_info=error)

    async def _wait(self, seconds: float) -> None:
        """Until poked or until this time has passed."""
        if self._notified.is_set() or self._is_stopping:
            return
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        notified = asyncio.ensure_future(self._notified.wait())
        try:
            await asyncio.wait({sleeping, notified}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            notified.cancel()

    async def _cancel_passes(self) -> None:
        running = list(self._passes.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    @property
    def _kinds(self) -> list[str]:
        return list(self._reconcilers)
