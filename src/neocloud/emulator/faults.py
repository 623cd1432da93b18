# pyright: standard, reportMissingModuleSource=false
"""Faults in an emulated cloud: the middleware that applies them to calls, delays of reconcilers, incidents.

The middleware also answers a change only when its operation is finished. Late answers make the emulator
deterministic: a read after a change returns its outcome, never an intermediate state. Operations that a fault
delays, or that wait for something else, are answered unfinished.

Reconcilers get short retries, because nothing takes time in this world. An operation that a fault delays
waits before its first step for as long as the fault says. Resources are observed rarely, because nothing
changes without an event.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Generic, cast

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.clock import Clock
from neocloud.core.reconcile.reconciler import (
    Context,
    Reconciler,
    ReconcileResult,
    RetryLater,
    ScopeT,
    Step,
)
from neocloud.core.store import Store
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.neocloud.emulator.v1 import FaultSpec
from neocloud.server import Request, Serve
from neocloud.services.compute.api.maintenance import plan_maintenance, preempt
from neocloud.services.emulator import FaultRegistry
from neocloud.services.emulator.rules import BEFORE, OPERATIONS, kind_of, refusal

MAX_WAIT_SECONDS = 5.0
"""Changes take milliseconds, and on a busy machine longer."""
FIRST_POLL_SECONDS = 0.002
POLL_GROWTH = 1.5
MAX_POLL_SECONDS = 0.05
_OPERATION_READS = frozenset(
    f"{name}.OperationService/Get" for name in ("nebius.common.v1", "nebius.common.v1alpha1")
)
SHORTEST_SECONDS = 0.05
GROWTH = 1.5
RESYNC_SECONDS = 600.0
HELD_UP = "Wait for an injected delay"


class EmulatorMiddleware:
    def __init__(self, faults: FaultRegistry, store: Store, clock: Clock) -> None:
        self._faults = faults
        self._store = store
        self._clock = clock

    async def __call__(self, request: Request, serve: Serve) -> Message:
        met = self._faults.match(_tenant(request), request.rpc.path)
        for spec in met:
            if kind_of(spec) == "slow_call":
                await self._clock.sleep(spec.slow_call.delay.ToTimedelta().total_seconds())
            elif kind_of(spec) in BEFORE and not spec.refusal.answer_lost:
                raise refusal(spec, request.rpc.path)
        answer = await self._serve(request, serve, met)
        for spec in met:
            if spec.refusal.answer_lost:
                raise refusal(spec, request.rpc.path)
        return answer

    async def _serve(self, request: Request, serve: Serve, met: list[FaultSpec]) -> Message:
        delays = [
            spec.slow_operation.delay.ToTimedelta() for spec in met if kind_of(spec) == "slow_operation"
        ]
        with ExitStack() as stack:
            if delays:
                stack.enter_context(self._faults.arming())
            answer = await serve(request)
            if request.rpc.output.DESCRIPTOR.full_name not in OPERATIONS or not _is_change(request):
                return answer
            operation = cast(Operation, answer)
            for delay in delays:
                self._faults.hold(_tenant(request), operation.resource_id, delay)
        return await self._finished(request, operation)

    async def _finished(self, request: Request, answer: Operation) -> Operation:
        deadline = self._clock.monotonic() + MAX_WAIT_SECONDS
        pause = FIRST_POLL_SECONDS
        while not answer.HasField("status"):
            if self._faults.held_seconds(answer.resource_id) or self._clock.monotonic() > deadline:
                break
            await self._clock.sleep(pause)
            pause = min(pause * POLL_GROWTH, MAX_POLL_SECONDS)
            row = await self._store.read(lambda tx: tx.get_operation(answer.id))
            if row is None:
                break
            if row.code is not None:
                return wire.operation_message(row, request.rpc.output)
        return answer


def _tenant(request: Request) -> str:
    return request.subject.tenant_id if request.subject else ""


def _is_change(request: Request) -> bool:
    """Return whether a call changes something. Reads of an operation are not delayed."""
    return request.rpc.path not in _OPERATION_READS


class EmulatorIncidents:
    """Implements `services.emulator.Incidents`."""

    def __init__(self, engine: FakeEngine, store: Store, clock: Clock) -> None:
        self._engine = engine
        self._store = store
        self._clock = clock

    async def crash(self, resource_id: str, pod: str) -> str:
        """Crash pods of a resource, in the namespace that is named after it."""
        observed = await self._engine.observe(resource_id)
        names = [each.reference.name for each in observed.pods if pod in ("", each.reference.name)]
        if not names:
            what = f"pod {pod!r} of" if pod else "pod of"
            raise contract.bad_state(resource_id, f"There is no {what} {resource_id} that could crash.")
        for name in names:
            self._engine.kill(Reference("Pod", resource_id, name))
        return f"Crashed: {', '.join(names)}."

    async def preempt(self, resource_id: str) -> str:
        await preempt(self._store, resource_id, self._clock.now())
        return f"Preempted: {resource_id} is being stopped."

    async def plan_maintenance(self, resource_id: str, delay_seconds: float) -> str:
        now = self._clock.now()
        deadline = now + timedelta(seconds=delay_seconds)
        event_id = await plan_maintenance(
            self._store, resource_id, now=now, deadline=deadline, reason="Planned by an injected fault."
        )
        return f"Planned: maintenance event {event_id}, due by {deadline.isoformat()}."


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
