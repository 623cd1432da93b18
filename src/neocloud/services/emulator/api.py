"""The injected faults, the operations that they delay, and the methods that inject, list and clear them.

All of it is in memory, so a restart clears it. Faults reach resources by the interface `Incidents`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.emulator.v1 import (
    ClearFaultsRequest,
    ClearFaultsResponse,
    Fault,
    FaultSpec,
    InjectFaultRequest,
    ListFaultsRequest,
    ListFaultsResponse,
)
from neocloud.services.emulator.rules import is_of_resource, kind_of, matches_call, violations
from neocloud.services.iam.types import lineage

FAULT_ID_PREFIX = "fault"
PACKAGE = "neocloud.emulator."
"""Calls of this package match no faults. Otherwise nobody could clear a fault that is too broad."""
PERMISSION = "emulator.faults.manage"
MAX_FAULTS = 1000
"""The faults that `List` shows; the oldest used ones are removed first."""
ARMING_SECONDS = 0.02


class Incidents(Protocol):
    """Incidents of resources. Each method returns what it did, and raises ApiError when it cannot."""

    async def crash(self, resource_id: str, pod: str) -> str: ...

    async def preempt(self, resource_id: str) -> str: ...

    async def plan_maintenance(self, resource_id: str, delay_seconds: float) -> str: ...


@dataclass(frozen=True)
class _HeldRequest:
    """An operation that a fault delays."""

    tenant_id: str
    until: datetime


class FaultRegistry:
    """The faults of each tenant. They match only its calls, and no other tenant sees or clears them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_tenant: dict[str, dict[str, Fault]] = {}
        self._held: dict[str, _HeldRequest] = {}
        self._arming = 0

    def add(self, tenant_id: str, spec: FaultSpec, effect: str = "") -> Fault:
        fault = Fault(id=contract.new_id(FAULT_ID_PREFIX), spec=spec, effect=effect)
        fault.created_at.FromDatetime(self._clock.now())
        if not is_of_resource(spec) and not spec.unlimited:
            fault.calls_left = spec.count or 1
        faults = self._by_tenant.setdefault(tenant_id, {})
        faults[fault.id] = fault
        _remove_old(faults)
        return fault

    def all(self, tenant_id: str) -> list[Fault]:
        return list(self._by_tenant.get(tenant_id, {}).values())

    def clear(self, tenant_id: str, fault_id: str = "") -> int:
        """Remove one fault or all, and the delays of operations with all. Return how many faults were
        removed."""
        faults = self._by_tenant.get(tenant_id, {})
        wanted = [fault_id] if fault_id else list(faults)
        cleared = sum(faults.pop(each, None) is not None for each in wanted)
        if not fault_id:
            self._held = {name: held for name, held in self._held.items() if held.tenant_id != tenant_id}
        return cleared

    def match(self, tenant_id: str, path: str) -> list[FaultSpec]:
        """Return the specs of the faults that match a tenant's call of this path now, oldest first, and count
        the call. A caller without a tenant (""), such as one that signs in, matches the faults of the only
        tenant that has any; with several such tenants it matches none."""
        if path.startswith(PACKAGE):
            return []
        if not tenant_id and len(self._by_tenant) == 1:
            (tenant_id,) = self._by_tenant
        faults = self._by_tenant.get(tenant_id, {})
        met = [fault for fault in faults.values() if _is_active(fault) and matches_call(fault.spec, path)]
        for fault in met:
            fault.calls_met += 1
            if not fault.spec.unlimited:
                fault.calls_left -= 1
        return [fault.spec for fault in met]

    @contextmanager
    def arming(self) -> Generator[None]:
        """While a call is served whose operation will be delayed, let no operation finish."""
        self._arming += 1
        try:
            yield
        finally:
            self._arming -= 1

    def hold(self, tenant_id: str, resource_id: str, delay: timedelta) -> None:
        self._held[resource_id] = _HeldRequest(tenant_id, self._clock.now() + delay)

    def held_seconds(self, resource_id: str) -> float:
        """Return for how long the resource's operations are still delayed; 0 when they are not."""
        held = self._held.get(resource_id)
        left = (held.until - self._clock.now()).total_seconds() if held else 0.0
        if held and left <= 0:
            del self._held[resource_id]
        return max(left, ARMING_SECONDS if self._arming else 0.0)


def _remove_old(faults: dict[str, Fault]) -> None:
    used_up = [fault.id for fault in faults.values() if not _is_active(fault)]
    for fault_id in used_up[: max(0, len(faults) - MAX_FAULTS)]:
        del faults[fault_id]


def _is_active(fault: Fault) -> bool:
    return not is_of_resource(fault.spec) and (fault.spec.unlimited or fault.calls_left > 0)


async def inject(call: Call, request: InjectFaultRequest) -> Fault:
    wrong = list(violations(request.spec))
    if wrong:
        raise contract.bad_request(wrong)
    effect = await _cause_incident(call, request.spec) if is_of_resource(request.spec) else ""
    return _faults(call).add(_tenant(call), request.spec, effect)


async def list_faults(call: Call, request: ListFaultsRequest) -> ListFaultsResponse:
    return ListFaultsResponse(items=_faults(call).all(_tenant(call)))


async def clear(call: Call, request: ClearFaultsRequest) -> ClearFaultsResponse:
    cleared = _faults(call).clear(_tenant(call), request.id)
    if request.id and not cleared:
        raise contract.not_found("fault", request.id)
    return ClearFaultsResponse(cleared=cleared)


async def _cause_incident(call: Call, spec: FaultSpec) -> str:
    """Cause the incident of a resource now, and return what it did."""
    await _require_own(call, spec.resource_id)
    incidents = call.dependencies.provided.get(Incidents)
    kind = kind_of(spec)
    if kind == "pod_crash":
        return await incidents.crash(spec.resource_id, spec.pod_crash.pod)
    if kind == "preemption":
        return await incidents.preempt(spec.resource_id)
    delay = spec.maintenance.delay.ToTimedelta().total_seconds()
    return await incidents.plan_maintenance(spec.resource_id, delay)


async def _require_own(call: Call, resource_id: str) -> None:
    """Raise ApiError (not found) for a resource of another tenant."""
    rows = await call.dependencies.store.read(lambda tx: list(lineage(resource_id, tx.get)))
    if not rows or rows[-1].id != _tenant(call):
        raise contract.not_found("resource", resource_id)


def _tenant(call: Call) -> str:
    assert call.subject is not None, "The permission was checked."
    return call.subject.tenant_id


def _faults(call: Call) -> FaultRegistry:
    return call.dependencies.provided.get(FaultRegistry)


METHODS = (
    Method(
        "neocloud.emulator.v1.FaultService/Inject",
        inject,
        PERMISSION,
        is_change=True,
        has_outside_effects=True,
    ),
    Method("neocloud.emulator.v1.FaultService/List", list_faults, PERMISSION),
    Method(
        "neocloud.emulator.v1.FaultService/Clear", clear, PERMISSION, is_change=True, has_outside_effects=True
    ),
)
