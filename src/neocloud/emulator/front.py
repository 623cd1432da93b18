"""Middleware of the emulator: injects faults, and answers a change when its operation is finished.

Late answers make the emulator deterministic: a read after a change returns its outcome, never an intermediate
state. Operations that a fault holds up, or that wait for something else, are answered unfinished.
"""

from contextlib import ExitStack
from typing import Any

from neocloud.core import wire
from neocloud.core.clock import Clock
from neocloud.core.store import Store
from neocloud.server import Request, Serve
from neocloud.services.emulator import FaultBook
from neocloud.services.emulator.rules import BEFORE, kind_of, refusal

OPERATIONS = frozenset({"nebius.common.v1.Operation", "nebius.common.v1alpha1.Operation"})
PATIENCE_SECONDS = 1.0
FIRST_LOOK_SECONDS = 0.002
LOOK_GROWTH = 1.5
LONGEST_LOOK_SECONDS = 0.05


class Front:
    def __init__(self, book: FaultBook, store: Store, clock: Clock) -> None:
        self._book = book
        self._store = store
        self._clock = clock

    async def __call__(self, request: Request, serve: Serve) -> Any:
        met = self._book.meet(_tenant(request), request.rpc.path)
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

    async def _serve(self, request: Request, serve: Serve, met: list[Any]) -> Any:
        delays = [
            spec.slow_operation.delay.ToTimedelta() for spec in met if kind_of(spec) == "slow_operation"
        ]
        with ExitStack() as stack:
            if delays:
                stack.enter_context(self._book.arming())
            answer = await serve(request)
            if request.rpc.output.DESCRIPTOR.full_name not in OPERATIONS or not _is_change(request):
                return answer
            for delay in delays:
                self._book.hold(_tenant(request), answer.resource_id, delay)
        return await self._finished(request, answer)

    async def _finished(self, request: Request, answer: Any) -> Any:
        deadline = self._clock.monotonic() + PATIENCE_SECONDS
        pause = FIRST_LOOK_SECONDS
        while not answer.HasField("status"):
            if self._book.held_seconds(answer.resource_id) or self._clock.monotonic() > deadline:
                break
            await self._clock.sleep(pause)
            pause = min(pause * LOOK_GROWTH, LONGEST_LOOK_SECONDS)
            row = await self._store.read(lambda tx: tx.get_operation(answer.id))
            if row is None:
                break
            if row.code is not None:
                return wire.operation_message(row, request.rpc.output)
        return answer


def _tenant(request: Request) -> str:
    return request.subject.tenant_id if request.subject else ""


def _is_change(request: Request) -> bool:
    """Looking at an operation is none: who asks wants to see it as it is."""
    return request.rpc.path not in _LOOKS


_LOOKS = frozenset(f"{name}.OperationService/Get" for name in ("nebius.common.v1", "nebius.common.v1alpha1"))
