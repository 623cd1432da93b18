"""What an administrator may do: inject faults, see them, clear them."""

from typing import Any

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.emulator.v1 import ClearFaultsResponse, ListFaultsResponse
from neocloud.services.emulator.faults import FaultBook
from neocloud.services.emulator.resources import PERMISSION, Incidents
from neocloud.services.emulator.rules import is_of_resource, kind_of, violations
from neocloud.services.iam.types import lineage


async def inject(call: Call, request: Any) -> Any:
    wrong = list(violations(request.spec))
    if wrong:
        raise contract.bad_request(wrong)
    effect = await _cause(call, request.spec) if is_of_resource(request.spec) else ""
    return _book(call).add(_tenant(call), request.spec, effect)


async def list_faults(call: Call, request: Any) -> Any:
    return ListFaultsResponse(items=_book(call).all(_tenant(call)))


async def clear(call: Call, request: Any) -> Any:
    cleared = _book(call).clear(_tenant(call), request.id)
    if request.id and not cleared:
        raise contract.not_found("fault", request.id)
    return ClearFaultsResponse(cleared=cleared)


async def _cause(call: Call, spec: Any) -> str:
    """Make it happen to the resource, now."""
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
    """Raises ApiError (not found) for what lies in another tenant."""
    rows = await call.dependencies.store.read(lambda tx: list(lineage(resource_id, tx.get)))
    if not rows or rows[-1].id != _tenant(call):
        raise contract.not_found("resource", resource_id)


def _tenant(call: Call) -> str:
    assert call.subject is not None, "The permission was asked for."
    return call.subject.tenant_id


def _book(call: Call) -> FaultBook:
    return call.dependencies.provided.get(FaultBook)


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
