"""Reconcilers in a world where nothing takes time: they wait moments where a real cloud waits seconds.

An operation that a fault holds up waits for as long as the fault says, before its first step. What is true is
looked at again seldom: nothing changes in this world without an event.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neocloud.core.reconcile.reconciler import Context, Reconciler, ReconcileResult, RetryLater, Step
from neocloud.services.emulator import FaultBook

SHORTEST_SECONDS = 0.05
GROWTH = 1.5
RESYNC_SECONDS = 600.0
HELD_UP = "Wait as the injected fault says"


@dataclass(frozen=True)
class Hurried:
    """A reconciler's scope together with what it is of."""

    resource_id: str
    inner: Any


class Hurry:
    """Makes waits of the same resource grow from moments to what its reconciler wants, so that one that waits
    for something that never comes costs nothing."""

    def __init__(self, book: FaultBook) -> None:
        self.book = book
        self._waits: dict[str, int] = {}

    def reconciler(self, inner: Reconciler) -> Reconciler:
        return HurriedReconciler(inner, self)

    def hurried(self, resource_id: str, later: RetryLater) -> RetryLater:
        waits = self._waits.get(resource_id, 0)
        self._waits[resource_id] = min(waits + 1, 100)
        delay = min(later.delay_seconds, SHORTEST_SECONDS * GROWTH**waits)
        return RetryLater(str(later), delay_seconds=delay)

    def ended(self, resource_id: str) -> None:
        self._waits.pop(resource_id, None)


class HurriedReconciler:
    def __init__(self, inner: Reconciler, hurry: Hurry) -> None:
        self.kind = inner.kind
        self._inner = inner
        self._hurry = hurry

    async def scope(self, context: Context) -> Hurried:
        resource_id = context.resource.id
        try:
            return Hurried(resource_id, await self._inner.scope(context))
        except RetryLater as later:
            raise self._hurry.hurried(resource_id, later) from later

    def steps(self, scope: Hurried) -> Sequence[Step]:
        return self._hurried(scope, self._inner.steps(scope.inner))

    def delete_steps(self, scope: Hurried) -> Sequence[Step]:
        return self._hurried(scope, self._inner.delete_steps(scope.inner))

    def status(self, scope: Hurried, result: ReconcileResult) -> ReconcileResult:
        ended = self._inner.status(scope.inner, result)
        if not result.is_done:
            return ended
        self._hurry.ended(scope.resource_id)
        return ended if ended.requeue_after is None else replace(ended, requeue_after=RESYNC_SECONDS)

    def _hurried(self, scope: Hurried, steps: Sequence[Step]) -> Sequence[Step]:
        planned = [replace(step, run=self._quick(step.run)) for step in steps]
        if self._hurry.book.held_seconds(scope.resource_id):
            planned.insert(0, Step(HELD_UP, self._wait_for_fault))
        return planned

    def _quick(self, run: Callable[[Any], Any]) -> Callable[[Hurried], Any]:
        async def quickly(scope: Hurried) -> None:
            try:
                await run(scope.inner)
            except RetryLater as later:
                raise self._hurry.hurried(scope.resource_id, later) from later

        return quickly

    async def _wait_for_fault(self, scope: Hurried) -> None:
        seconds = self._hurry.book.held_seconds(scope.resource_id)
        if seconds:
            raise RetryLater("an injected fault holds this up", delay_seconds=seconds)
