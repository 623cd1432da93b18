"""Errors as the contract's clients understand them: a code, a message, and ServiceError details.

One function per kind of error fixes its code and its retry advice, so that all services answer alike. A
message says what happened and what to do next, and never holds a secret or a traceback.
"""

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from neocloud.core.contract.registry import is_id, message, pack, unpack

_MAX_VIOLATION = 1200
_MAX_VIOLATIONS = 2000
"""Characters of one violation, and of all together. Each appears three times: in the message, in the status
and in its details."""


class Code(IntEnum):
    """google.rpc.Code; the numbers are gRPC's."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class FieldViolation(Protocol):
    @property
    def field(self) -> str: ...

    @property
    def message(self) -> str: ...


class ApiError(Exception):
    """A refused request. Raised anywhere below the server, which turns it into a status."""

    def __init__(
        self,
        code: Code,
        message: str,
        details: Sequence[Any] = (),
        *,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """How long a client should wait before the same call; None: not known, or retrying does not help."""
        self.code = code
        self.message = message
        self.details = tuple(details)
        self.recorded_as = self
        """The error in the audit log: of a resource that the caller may not know of, the true reason."""

    def status(self, service: str = "") -> Any:
        """Return the error as a google.rpc.Status; `service` fills the details that do not name one."""
        status = message("google.rpc.Status")(code=int(self.code), message=self.message)
        for detail in self.details:
            named = type(detail)()
            named.CopyFrom(detail)
            named.service = named.service or service
            status.details.append(pack(named))
        if self.retry_after_seconds is not None:
            info = message("google.rpc.RetryInfo")()
            info.retry_delay.FromMilliseconds(math.ceil(self.retry_after_seconds * 1000))
            status.details.append(pack(info))
        return status


def from_status(serialized: bytes) -> ApiError:
    """Return the error in a google.rpc.Status, which clients get in the grpc-status-details-bin trailer."""
    status = message("google.rpc.Status").FromString(serialized)
    service_error = message("nebius.common.v1.ServiceError").DESCRIPTOR.full_name
    details = [unpack(found) for found in status.details if found.type_url.endswith(f"/{service_error}")]
    return ApiError(Code(status.code), status.message, details)


def bad_request(violations: Iterable[FieldViolation | tuple[str, str]], message_text: str = "") -> ApiError:
    """INVALID_ARGUMENT. Each violation has a field path and says what would be right."""
    pairs = [(v[0], v[1]) if isinstance(v, tuple) else (v.field, v.message) for v in violations]
    pairs = _shortened(pairs)
    text = message_text or "The request is not valid: " + "; ".join(f"{name} {why}" for name, why in pairs)
    detail = {"violations": [{"field": name, "message": why} for name, why in pairs]}
    return _error(Code.INVALID_ARGUMENT, text, "bad_request", detail)


def _shortened(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the violations that fit, the outermost fields first, and then how many more there are.

    An error travels in trailers, which clients refuse when they are longer than 8 KiB."""
    cut = [(name[:_MAX_VIOLATION], _cut(why)) for name, why in pairs]
    if sum(_length(name) + _length(why) for name, why in cut) <= _MAX_VIOLATIONS:
        return cut
    shown: list[tuple[str, str]] = []
    left = _MAX_VIOLATIONS
    for name, why in sorted(cut, key=lambda pair: pair[0].count(".")):
        left -= _length(name) + _length(why)
        if left < 0:
            break
        shown.append((name, why))
    return [*shown, ("", f"and {len(cut) - len(shown)} more")]


def _cut(text: str) -> str:
    """Return the text, or as many whole words of it as fit."""
    if len(text) <= _MAX_VIOLATION:
        return text
    start = text[: _MAX_VIOLATION - 4]
    return f"{start.rpartition(' ')[0] or start} ..."


def _length(text: str) -> int:
    """Return the length in a trailer, where each byte that is not ASCII takes three characters."""
    return sum(1 if letter.isascii() else 3 * len(letter.encode()) for letter in text)


def bad_field(field: str, why: str) -> ApiError:
    """INVALID_ARGUMENT for one field."""
    return bad_request([(field, why)])


def not_found(kind: str, identifier: str, needs: str = "") -> ApiError:
    """`needs` says, in a sentence, which right the caller lacks if there is such a resource."""
    is_name = kind == "resource" and identifier and not is_id(identifier)
    hint = "It is not an id; give the id of the resource." if is_name else "Check the id and the project."
    text = f"There is no {kind} {identifier!r} here, or you may not see it. {hint}{needs and f' {needs}'}"
    return _error(Code.NOT_FOUND, text, "resource_not_found", {"resource_id": identifier})


def already_exists(kind: str, name: str, resource_id: str = "") -> ApiError:
    article = "An" if kind[:1] in "aeio" else "A"
    text = (
        f"{article} {kind} named {name!r} exists already. Choose another name, or use the one that is there."
    )
    return _error(Code.ALREADY_EXISTS, text, "resource_already_exists", {"resource_id": resource_id or name})


def bad_state(resource_id: str, why: str) -> ApiError:
    """FAILED_PRECONDITION: the resource must change before the request can succeed."""
    detail = {"resource_id": resource_id, "message": why}
    return _error(Code.FAILED_PRECONDITION, why, "bad_resource_state", detail)


def conflict(resource_id: str, why: str) -> ApiError:
    """ABORTED: another request changed the resource; the whole read, change and write must be repeated."""
    detail = {"resource_id": resource_id, "message": why}
    return _error(Code.ABORTED, why, "resource_conflict", detail, retry="UNIT_OF_WORK")


def operation_conflict(operation_id: str, resource_id: str, why: str) -> ApiError:
    """FAILED_PRECONDITION: an unfinished operation does not allow another one."""
    detail = {"conflicting_operation_id": operation_id, "resource_id": resource_id}
    return _error(Code.FAILED_PRECONDITION, why, "operation_conflict", detail)


def operation_aborted(operation_id: str, aborted_by: str, resource_id: str, why: str) -> ApiError:
    """ABORTED: the end of an operation that a later one replaces."""
    detail = {"operation_id": operation_id, "aborted_by_operation_id": aborted_by, "resource_id": resource_id}
    return _error(Code.ABORTED, why, "operation_aborted", detail)


def quota_failure(violations: Iterable[tuple[str, str, str, str]], message_text: str = "") -> ApiError:
    """RESOURCE_EXHAUSTED; each violation is (quota, limit, requested, message)."""
    found = [
        {"quota": quota, "limit": limit, "requested": requested, "message": why}
        for quota, limit, requested, why in violations
    ]
    text = message_text or "The request goes over a quota: " + "; ".join(v["message"] for v in found)
    return _error(Code.RESOURCE_EXHAUSTED, text, "quota_failure", {"violations": found}, retry="NOTHING")


def not_enough_resources(resource_type: str, requested: str, why: str) -> ApiError:
    """RESOURCE_EXHAUSTED: allowed, but the machines lack the capacity."""
    violation = {"resource_type": resource_type, "requested": requested, "message": why}
    detail = {"violations": [violation]}
    return _error(Code.RESOURCE_EXHAUSTED, why, "not_enough_resources", detail, retry="NOTHING")


def too_many_requests(why: str, *, retry_after_seconds: float | None = None) -> ApiError:
    error = _error(Code.RESOURCE_EXHAUSTED, why, "too_many_requests", {"violation": why}, retry="CALL")
    error.retry_after_seconds = retry_after_seconds
    return error


def permission_denied(permission: str, resource_id: str, why: str = "") -> ApiError:
    text = why or (f"Permission {permission!r} on {resource_id!r} is missing. Ask an administrator of it.")
    return _error(Code.PERMISSION_DENIED, text, "permission_denied", {"resource_id": resource_id})


def unauthenticated(why: str) -> ApiError:
    return ApiError(Code.UNAUTHENTICATED, why)


def unimplemented(path: str) -> ApiError:
    return ApiError(
        Code.UNIMPLEMENTED, f"{path} is not implemented by this cloud. `neo status` lists its services."
    )


def no_such_method(path: str) -> ApiError:
    """UNIMPLEMENTED, for a path that the API does not have."""
    return ApiError(Code.UNIMPLEMENTED, f"The API has no method {path[:200]!r}. Check its spelling.")


def unavailable(why: str) -> ApiError:
    """UNAVAILABLE: the same call may succeed in a moment; clients retry."""
    return ApiError(Code.UNAVAILABLE, why)


def internal(request_id: str) -> ApiError:
    text = f"Something went wrong inside the cloud. Its log has the cause under request id {request_id}."
    return _error(Code.INTERNAL, text, "internal_error", {"request_id": request_id})


def _error(code: Code, text: str, detail: str, content: dict[str, Any], *, retry: str = "") -> ApiError:
    service_error = message("nebius.common.v1.ServiceError")
    built = service_error(code=detail, **{detail: content})
    if retry:
        built.retry_type = service_error.RetryType.Value(retry)
    return ApiError(code, text, (built,))
