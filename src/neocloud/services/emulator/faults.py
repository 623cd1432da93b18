"""The faults that are wanted now, and the operations that one holds up. In memory: a restart forgets."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.services.emulator.resources import FAULT_ID_PREFIX, PACKAGE, Fault
from neocloud.services.emulator.rules import is_about, is_of_resource

KEPT = 1000
"""So many faults are remembered for `List`; the oldest that are used up are forgotten first."""
ARMING_SECONDS = 0.02


class FaultBook:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._faults: dict[str, Any] = {}
        self._held: dict[str, datetime] = {}
        self._arming = 0

    def add(self, spec: Any, effect: str = "") -> Any:
        fault = Fault(id=contract.new_id(FAULT_ID_PREFIX), spec=spec, effect=effect)
        fault.created_at.FromDatetime(self._clock.now())
        if not is_of_resource(spec) and not spec.unlimited:
            fault.calls_left = spec.count or 1
        self._faults[fault.id] = fault
        self._forget_old()
        return fault

    def all(self) -> list[Any]:
        return list(self._faults.values())

    def clear(self, fault_id: str = "") -> int:
        """Forget one or all, and let go of operations that are held up; says how many were forgotten."""
        wanted = [fault_id] if fault_id else list(self._faults)
        cleared = sum(self._faults.pop(each, None) is not None for each in wanted)
        if not fault_id:
            self._held.clear()
        return cleared

    def meet(self, path: str) -> list[Any]:
        """The specs of the faults that a call at this path meets now, oldest first. Counts the call."""
        if path.startswith(PACKAGE):
            return []
        met = [fault for fault in self._faults.values() if _is_active(fault) and is_about(fault.spec, path)]
        for fault in met:
            fault.calls_met += 1
            if not fault.spec.unlimited:
                fault.calls_left -= 1
        return [fault.spec for fault in met]

    @contextmanager
    def arming(self) -> Iterator[None]:
        """While a call is served whose operation will be held up: nothing may be finished before that."""
        self._arming += 1
        try:
            yield
        finally:
            self._arming -= 1

    def hold(self, resource_id: str, delay: timedelta) -> None:
        self._held[resource_id] = self._clock.now() + delay

    def held_seconds(self, resource_id: str) -> float:
        """How long the resource's operations are still held up; 0 when they are not."""
        until = self._held.get(resource_id)
        left = (until - self._clock.now()).total_seconds() if until else 0.0
        if until and left <= 0:
            del self._held[resource_id]
        return max(left, ARMING_SECONDS if self._arming else 0.0)

    def _forget_old(self) -> None:
        used_up = [fault.id for fault in self._faults.values() if not _is_active(fault)]
        for fault_id in used_up[: max(0, len(self._faults) - KEPT)]:
            del self._faults[fault_id]


def _is_active(fault: Any) -> bool:
    return not is_of_resource(fault.spec) and (fault.spec.unlimited or fault.calls_left > 0)
