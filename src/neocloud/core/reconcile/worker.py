"""The worker: leases what is due and reconciles it, several resources at a time.

The queue is in the store, so a killed worker loses nothing: its leases expire, or the next worker takes them
over. In memory are only the tasks that run and the ids that were enqueued since the queue was last read.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.kind import Kind
from neocloud.core.reconcile.context import WorkerContext
from neocloud.core.reconcile.reconciler import AnyReconciler
from neocloud.core.reconcile.run import ReconcileRun, back_off_seconds
from neocloud.core.store.protocol import Lease, Resource, Store, StoreError, Transaction

logger = logging.getLogger(__name__)

_SHORTEST_WAIT_SECONDS = 0.02


class Worker:
    """Reconciles the kinds of its reconcilers until stopped."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        reconcilers: Sequence[AnyReconciler],
        *,
        kinds: Iterable[Kind] = (),
        new_id: Callable[[str], str] = contract.new_id,
        concurrency: int = 8,
        lease_seconds: float = 10.0,
        poll_seconds: float = 1.0,
        take_over: bool = True,
        after_run: Callable[[str], None] = lambda kind: None,
        on_result: Callable[[str, str, float], None] = lambda kind, result, seconds: None,
    ) -> None:
        """`kinds` are those that reconcilers create children of. `take_over` says that no other worker uses
        the store, so leases found at the start belong to a dead one. `after_run` is called with the kind of
        each resource whose run has ended and whose result is written; `on_result` with the kind, the result
        and the duration of each run."""
        self._store = store
        self._clock = clock
        self._reconcilers = {reconciler.kind: reconciler for reconciler in reconcilers}
        by_name = {kind.message: kind for kind in kinds}
        self._context = WorkerContext(
            store, clock, by_name, new_id, self.notify, lease_seconds, on_result=on_result
        )
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._take_over = take_over
        self._after_run = after_run
        self._is_new = True
        self._enqueued: set[str] = set()
        self._notified = asyncio.Event()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._is_stopping = False
        self._grace_is_over = asyncio.Event()
        self._store_errors = 0

    async def run(self) -> None:
        """Run until `stop`. Cancelling abandons the runs as a crash would, but releases their leases."""
        try:
            while not self._is_stopping:
                self._notified.clear()
                await self._wait(await self._take_due())
            await self._grace_is_over.wait()
        finally:
            await self._cancel_runs()

    def enqueue(self, resource_id: str) -> None:
        """Reconcile this resource now. Call it in the worker's event loop; an unknown id is ignored."""
        self._enqueued.add(resource_id)
        self._notified.set()

    def notify(self) -> None:
        """Take what has become due in the store now. Call it in the worker's event loop."""
        self._notified.set()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Take nothing new, let runs end within the grace, then cancel the rest and release their leases."""
        self._is_stopping = True
        self._notified.set()
        running = set(self._runs.values())
        if running:
            grace = asyncio.create_task(self._clock.sleep(grace_seconds))
            ended = asyncio.gather(*running, return_exceptions=True)
            await asyncio.wait({grace, ended}, return_when=asyncio.FIRST_COMPLETED)
            grace.cancel()
        await self._cancel_runs()
        self._grace_is_over.set()

    async def _take_due(self) -> float:
        """Start runs for what is due; return the seconds until the queue is to be read again."""
        try:
            await self._store_enqueued()
            due_at = await self._store.read(lambda tx: tx.next_due(self._kinds))
            is_due = due_at is not None and due_at <= self._clock.now()
            if is_due and len(self._runs) < self._concurrency:
                leased, due_at = await self._lease_due()
                for lease, resource, request_id in leased:
                    self._start(lease, resource, request_id)
        except StoreError as error:
            self._store_errors += 1
            delay = back_off_seconds(self._store_errors)
            logger.error("The worker cannot use its store: %s Trying again in %g s.", error, delay)
            return delay
        self._store_errors = 0
        if due_at is None or len(self._runs) >= self._concurrency:
            return self._poll_seconds
        until_due = (due_at - self._clock.now()).total_seconds()
        return min(self._poll_seconds, max(_SHORTEST_WAIT_SECONDS, until_due))

    async def _store_enqueued(self) -> None:
        """Write enqueued ids to the store before acting on them. At the start every resource is enqueued."""
        enqueued, self._enqueued = self._enqueued, set()
        is_new, self._is_new = self._is_new, False
        if not enqueued and not is_new:
            return

        def write(tx: Transaction) -> None:
            now = self._clock.now()
            if is_new and self._take_over:
                tx.clear_leases(self._kinds)
            if is_new:
                tx.enqueue_all(self._kinds, now)
            for resource_id in sorted(enqueued):
                tx.enqueue(resource_id, now)

        try:
            await self._store.write(write)
        except StoreError:
            self._enqueued |= enqueued
            self._is_new = is_new
            raise

    async def _lease_due(self) -> tuple[list[tuple[Lease, Resource, str]], datetime | None]:
        """Return leased resources, each with the id of the request that its run serves, and when another is
        due.

        The requests are looked up after the leases are written, so that nobody else waits to write.
        """
        free = self._concurrency - len(self._runs)

        def take(tx: Transaction) -> list[tuple[Lease, Resource]]:
            now = self._clock.now()
            until = now + timedelta(seconds=self._lease_seconds)
            taken: list[tuple[Lease, Resource]] = []
            for resource_id in tx.due(self._kinds, now, free):
                if resource_id in self._runs:
                    continue  # its lease expired because this process was held up; the run renews it
                lease = tx.lease(resource_id, secrets.token_hex(8), now, until)
                resource = tx.get(resource_id)
                if lease is not None and resource is not None:
                    taken.append((lease, resource))
            return taken

        leased = await self._store.write(take)
        requests, due_at = await self._after_lease([resource for _, resource in leased])
        return [(*each, request_id) for each, request_id in zip(leased, requests, strict=True)], due_at

    async def _after_lease(self, resources: Sequence[Resource]) -> tuple[list[str], datetime | None]:
        """Return the ids of the requests of these resources, and when another resource is due."""
        try:
            return await self._store.read(
                lambda tx: ([_request_of(tx, each) for each in resources], tx.next_due(self._kinds))
            )
        except StoreError as error:  # the resources are leased, and a run can do without
            logger.error("The requests of %d runs cannot be read: %s", len(resources), error)
            return [""] * len(resources), None

    def _start(self, lease: Lease, resource: Resource, request_id: str) -> None:
        reconciler = self._reconcilers[resource.kind]
        run = ReconcileRun(self._context, reconciler, resource, lease, request_id)
        task = asyncio.create_task(run.run(), name=f"reconcile {resource.id}")
        self._runs[resource.id] = task
        task.add_done_callback(lambda done: self._ended(resource, done))

    def _ended(self, resource: Resource, task: asyncio.Task[None]) -> None:
        del self._runs[resource.id]
        self._notified.set()
        self._after_run(resource.kind)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("The run over %s broke: %s", resource.id, error, exc_info=error)

    async def _wait(self, seconds: float) -> None:
        """Wait until notified or until this time has passed."""
        if self._notified.is_set() or self._is_stopping:
            return
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        notified = asyncio.ensure_future(self._notified.wait())
        try:
            await asyncio.wait({sleeping, notified}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            notified.cancel()

    async def _cancel_runs(self) -> None:
        running = list(self._runs.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    @property
    def under_way(self) -> int:
        """Return the number of runs in progress."""
        return len(self._runs)

    async def count_due(self, most: int) -> int:
        """Return how many resources wait for a run, `most` at most."""
        return len(await self._store.read(lambda tx: tx.due(self._kinds, self._clock.now(), most)))

    @property
    def _kinds(self) -> list[str]:
        return list(self._reconcilers)


def _request_of(tx: Transaction, resource: Resource) -> str:
    """Return the id of the newest request that waits for this resource, or else for one that owns it."""
    unfinished, _ = tx.list_operations(resource_id=resource.id, unfinished=True)
    if unfinished:
        return unfinished[0].request_id
    owner = tx.get(resource.owner_id) if resource.owner_id else None
    return _request_of(tx, owner) if owner is not None else ""
