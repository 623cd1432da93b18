"""Validation of a fault, the calls that it matches, and the error of a refusal. Pure."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from neocloud.core import contract
from neocloud.core.contract import ApiError, Code
from neocloud.messages.neocloud.emulator.v1 import FaultSpec

OF_RESOURCES = frozenset({"pod_crash", "preemption", "maintenance"})
BEFORE = frozenset({"quota_exceeded", "no_capacity", "refusal"})
"""Kinds of faults that refuse a call."""
OPERATIONS = frozenset({"nebius.common.v1.Operation", "nebius.common.v1alpha1.Operation"})
INJECTED = "Injected by the emulator."


def kind_of(spec: FaultSpec) -> str:
    return spec.WhichOneof("fault") or ""


def is_of_resource(spec: FaultSpec) -> bool:
    return kind_of(spec) in OF_RESOURCES


def violations(spec: FaultSpec) -> Iterable[tuple[str, str]]:
    if is_of_resource(spec):
        if not spec.resource_id:
            yield "spec.resource_id", f"is required: {kind_of(spec)} happens to a resource"
        for name in ("calls", "count", "unlimited"):
            if getattr(spec, name):
                yield f"spec.{name}", f"has no meaning for {kind_of(spec)}, which happens once; leave it out"
        return
    if spec.resource_id:
        yield "spec.resource_id", f"has no meaning for {kind_of(spec)}, which applies to calls; leave it out"
    which = " that starts an operation" if kind_of(spec) == "slow_operation" else ""
    if not spec.calls:
        yield "spec.calls", "is required: the calls, such as DiskService/Create"
    elif not any(matches_call(spec, path) for path in _paths()):
        yield (
            "spec.calls",
            f"matches no method{which}: {spec.calls!r}; write Service/Method, such as DiskService/Create",
        )


def _paths() -> Iterable[str]:
    return (rpc.path for rpcs in contract.services().values() for rpc in rpcs)


def matches_call(spec: FaultSpec, path: str) -> bool:
    """Return whether the fault matches the method "package.Service/Method". A delay of operations matches
    only methods that start one, so that reads do not use it up."""
    if kind_of(spec) == "slow_operation" and not starts_operation(path):
        return False
    without_package = path.rpartition(".")[2]
    return any(fnmatchcase(name, spec.calls) for name in (path, without_package))


def starts_operation(path: str) -> bool:
    """Return whether the method answers with a new operation."""
    service, _, _ = path.partition("/")
    if service.endswith(".OperationService"):
        return False
    return contract.method(path).output.DESCRIPTOR.full_name in OPERATIONS


def _quota_of(path: str) -> str:
    """Return the name by which quotas count what a method creates, such as "compute.disk.count"."""
    package, noun = path.partition("/")[0].rsplit(".", 1)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", noun.removesuffix("Service")).lower()
    return f"{package.split('.')[-2]}.{words}.count"


def refusal(spec: FaultSpec, path: str) -> ApiError:
    """Return the error for a call of this path."""
    kind = kind_of(spec)
    if kind == "quota_exceeded":
        name = spec.quota_exceeded.quota or _quota_of(path)
        return contract.quota_failure([(name, "0", "1", f"Quota {name} is used up. {INJECTED}")])
    if kind == "no_capacity":
        return contract.not_enough_resources(
            path.partition("/")[0], "1", f"There is no capacity for {path} now. {INJECTED}"
        )
    name = type(spec.refusal).Code.Name(spec.refusal.code)
    if name == "TOO_MANY_REQUESTS":
        return contract.too_many_requests(f"Too many calls of {path}. {INJECTED}")
    return ApiError(Code[name], f"{path} is answered with {name}. {INJECTED}")
