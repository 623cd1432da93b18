"""Reconcilers with short retries, for a world in which nothing takes time.

An operation that an injected fault delays waits for as long as the fault says, before its first step.
Resources are observed rarely, because nothing changes in this world without an event.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from neocloud.core.reconcile.reconciler import (
    Context,
    Reconciler,
    ReconcileResult,
    RetryLater,
    ScopeT,
    Step,
)
from neocloud.services.emulator import FaultRegistry

SHORTEST_SECONDS = 0.05
GROWTH = 1.5
RESYNC_SECONDS = 600.0
HELD_UP = "Wait for an injected delay"


@dataclass(frozen=True)
class ShortRetriesScope(Generic[ScopeT]):
    """The scope of a reconciler, with the id of its resource."""

    resource_id: str
    inner: ScopeT


class ShortRetries:
    """The retries of all resources. Their delays grow from moments to those of the reconciler, so a resource
    that waits for something that never happens costs little."""

    def __init__(self, faults: FaultRegistry) -> None:
        self.faults = faults
        self._waits: dict[str, int] = {}

    def reconciler(self, inner: Reconciler[ScopeT]) -> Reconciler[ShortRetriesScope[ScopeT]]:
        return ShortRetriesReconciler(inner, self)

    def shortened(self, resource_id: str, later: RetryLater) -> RetryLater:
        waits = self._waits.get(resource_id, 0)
        self._waits[resource_id] = min(waits + 1, 100)
        delay = min(later.delay_seconds, SHORTEST_SECONDS * GROWTH**waits)
        return RetryLater(str(later), delay_seconds=delay)

    def ended(self, resource_id: str) -> None:
        self._waits.pop(resource_id, None)


class ShortRetriesReconciler(Generic[ScopeT]):
    def __init__(self, inner: Reconciler[ScopeT], retries: ShortRetries) -> None:
        self.kind = inner.kind
        self._inner = inner
        self._retries = retries

    async def scope(self, context: Context) -> ShortRetriesScope[ScopeT]:
        resource_id = context.resource.id
        try:
            return ShortRetriesScope(resource_id, await self._inner.scope(context))
        except RetryLater as later:
            raise self._retries.shortened(resource_id, later) from later

    def steps(self, scope: ShortRetriesScope[ScopeT]) -> Sequence[Step[ShortRetriesScope[ScopeT]]]:
        return self._with_short_retries(scope, self._inner.steps(scope.inner))

    def delete_steps(self, scope: ShortRetriesScope[ScopeT]) -> Sequence[Step[ShortRetriesScope[ScopeT]]]:
        return self._with_short_retries(scope, self._inner.delete_steps(scope.inner))

    def status(self, scope: ShortRetriesScope[ScopeT], result: ReconcileResult) -> ReconcileResult:
        ended = self._inner.status(scope.inner, result)
        if not result.is_done:
            return ended
        self._retries.ended(scope.resource_id)
        return ended if ended.requeue_after is None else replace(ended, requeue_after=RESYNC_SECONDS)

    def _with_short_retries(
        self, scope: ShortRetriesScope[ScopeT], steps: Sequence[Step[ScopeT]]
    ) -> Sequence[Step[ShortRetriesScope[ScopeT]]]:
        planned = [Step(step.name, self._shortened(step.run)) for step in steps]
        if self._retries.faults.held_seconds(scope.resource_id):
            planned.insert(0, Step(HELD_UP, self._wait_for_fault))
        return planned

    def _shortened(
        self, run: Callable[[ScopeT], Awaitable[object]]
    ) -> Callable[[ShortRetriesScope[ScopeT]], Awaitable[None]]:
        async def run_with_short_retries(scope: ShortRetriesScope[ScopeT]) -> None:
            try:
                await run(scope.inner)
            except RetryLater as later:
                raise self._retries.shortened(scope.resource_id, later) from later

        return run_with_short_retries

    async def _wait_for_fault(self, scope: ShortRetriesScope[ScopeT]) -> None:
        seconds = self._retries.faults.held_seconds(scope.resource_id)
        if seconds:
            raise RetryLater(f"Delayed by an injected fault, {seconds:.0f} s left", delay_seconds=seconds)
