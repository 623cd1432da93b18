"""The faults that are wanted now, and the operations that one holds up. In memory: a restart forgets."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.messages.neocloud.emulator.v1 import Fault
from neocloud.services.emulator.resources import FAULT_ID_PREFIX, PACKAGE
from neocloud.services.emulator.rules import is_about, is_of_resource

KEPT = 1000
"""So many faults are remembered for `List`; the oldest that are used up are forgotten first."""
ARMING_SECONDS = 0.02


@dataclass(frozen=True)
class _Held:
    """An operation that is held up."""

    tenant_id: str
    until: datetime


class FaultBook:
    """Each tenant has its own faults: they meet its calls, and nobody else sees or clears them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_tenant: dict[str, dict[str, Any]] = {}
        self._held: dict[str, _Held] = {}
        self._arming = 0

    def add(self, tenant_id: str, spec: Any, effect: str = "") -> Any:
        fault = Fault(id=contract.new_id(FAULT_ID_PREFIX), spec=spec, effect=effect)
        fault.created_at.FromDatetime(self._clock.now())
        if not is_of_resource(spec) and not spec.unlimited:
            fault.calls_left = spec.count or 1
        faults = self._by_tenant.setdefault(tenant_id, {})
        faults[fault.id] = fault
        _forget_old(faults)
        return fault

    def all(self, tenant_id: str) -> list[Any]:
        return list(self._by_tenant.get(tenant_id, {}).values())

    def clear(self, tenant_id: str, fault_id: str = "") -> int:
        """Forget one or all, and let go of operations that are held up; says how many were forgotten."""
        faults = self._by_tenant.get(tenant_id, {})
        wanted = [fault_id] if fault_id else list(faults)
        cleared = sum(faults.pop(each, None) is not None for each in wanted)
        if not fault_id:
            self._held = {name: held for name, held in self._held.items() if held.tenant_id != tenant_id}
        return cleared

    def meet(self, tenant_id: str, path: str) -> list[Any]:
        """The specs of the faults that a tenant's call at this path meets now, oldest first. Counts the
        call. A caller that nobody knows yet, such as one that signs in, has no tenant ("") and meets what
        the only tenant that injected faults wants; of several tenants' faults it meets none."""
        if path.startswith(PACKAGE):
            return []
        if not tenant_id and len(self._by_tenant) == 1:
            (tenant_id,) = self._by_tenant
        faults = self._by_tenant.get(tenant_id, {})
        met = [fault for fault in faults.values() if _is_active(fault) and is_about(fault.spec, path)]
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

    def hold(self, tenant_id: str, resource_id: str, delay: timedelta) -> None:
        self._held[resource_id] = _Held(tenant_id, self._clock.now() + delay)

    def held_seconds(self, resource_id: str) -> float:
        """How long the resource's operations are still held up; 0 when they are not."""
        held = self._held.get(resource_id)
        left = (held.until - self._clock.now()).total_seconds() if held else 0.0
        if held and left <= 0:
            del self._held[resource_id]
        return max(left, ARMING_SECONDS if self._arming else 0.0)


def _forget_old(faults: dict[str, Any]) -> None:
    used_up = [fault.id for fault in faults.values() if not _is_active(fault)]
    for fault_id in used_up[: max(0, len(faults) - KEPT)]:
        del faults[fault_id]


def _is_active(fault: Any) -> bool:
    return not is_of_resource(fault.spec) and (fault.spec.unlimited or fault.calls_left > 0)
