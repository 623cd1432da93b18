"""Faults of an emulated cloud: requests built from flat arguments of a command or a test."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from neocloud.client.connection import Client
from neocloud.client.errors import ClientError

if TYPE_CHECKING:
    from neocloud.messages.neocloud.emulator.v1 import Fault

INJECT = "neocloud.emulator.v1.FaultService/Inject"
LIST = "neocloud.emulator.v1.FaultService/List"
CLEAR = "neocloud.emulator.v1.FaultService/Clear"


class FaultKind(StrEnum):
    """Kind of fault. The last three affect a resource, immediately; the others affect calls."""

    QUOTA_EXCEEDED = "quota-exceeded"
    NO_CAPACITY = "no-capacity"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline-exceeded"
    INTERNAL = "internal"
    ABORTED = "aborted"
    PERMISSION_DENIED = "permission-denied"
    TOO_MANY_REQUESTS = "too-many-requests"
    SLOW_CALL = "slow-call"
    SLOW_OPERATION = "slow-operation"
    POD_CRASH = "pod-crash"
    PREEMPTION = "preemption"
    MAINTENANCE = "maintenance"


OF_RESOURCES = frozenset({FaultKind.POD_CRASH, FaultKind.PREEMPTION, FaultKind.MAINTENANCE})
DELAYED = frozenset({FaultKind.SLOW_CALL, FaultKind.SLOW_OPERATION, FaultKind.MAINTENANCE})
PLAIN = OF_RESOURCES | DELAYED | {FaultKind.QUOTA_EXCEEDED, FaultKind.NO_CAPACITY}
DEFAULT_DELAY_SECONDS = 5.0


def inject(
    client: Client,
    kind: FaultKind | str,
    *,
    calls: str = "",
    count: int = 1,
    unlimited: bool = False,
    resource_id: str = "",
    pod: str = "",
    delay_seconds: float | None = None,
    answer_lost: bool = False,
) -> "Fault":
    """Inject one fault and return the Fault. Raises ClientError."""
    kind = FaultKind(kind)
    detail = _detail(kind, pod, delay_seconds, answer_lost)
    spec: dict[str, object] = {"resource_id": resource_id, **detail}
    if kind not in OF_RESOURCES:
        spec |= {"calls": calls, "count": count, "unlimited": unlimited}
    elif calls:
        spec["calls"] = calls
    return client.call(INJECT, {"spec": spec})


def _detail(
    kind: FaultKind, pod: str, delay_seconds: float | None, answer_lost: bool
) -> Mapping[str, Mapping[str, object]]:
    _refuse_misplaced(kind, pod, delay_seconds, answer_lost)
    if kind not in PLAIN:
        return {"refusal": {"code": kind.name, "answer_lost": answer_lost}}
    name = kind.value.replace("-", "_")
    if kind in DELAYED:
        fallback = 0.0 if kind is FaultKind.MAINTENANCE else DEFAULT_DELAY_SECONDS
        return {name: {"delay": f"{fallback if delay_seconds is None else delay_seconds:.3f}s"}}
    return {name: {"pod": pod} if pod else {}}


def _refuse_misplaced(kind: FaultKind, pod: str, delay_seconds: float | None, answer_lost: bool) -> None:
    """Raise ClientError for an argument that the kind does not use."""
    misplaced = [
        name
        for name, is_given, is_used in (
            ("a pod", bool(pod), kind is FaultKind.POD_CRASH),
            ("a delay", delay_seconds is not None, kind in DELAYED),
            ("a lost answer", answer_lost, kind not in PLAIN),
        )
        if is_given and not is_used
    ]
    if misplaced:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{kind.value} does not use {misplaced[0]}",
            "Omit it, or choose another kind",
        )
