"""The methods of the emulator: inject, list and clear faults."""

from neocloud.core import contract
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
from neocloud.services.emulator.faults import PERMISSION, FaultRegistry, Incidents
from neocloud.services.emulator.rules import is_of_resource, kind_of, violations
from neocloud.services.iam.types import lineage


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
