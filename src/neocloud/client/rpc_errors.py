# pyright: strict
"""Translation of gRPC errors to ClientError.

The server's own messages already name the next step and are passed on unchanged. Only errors that the server
cannot report itself (no answer, unknown caller) are worded here.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import grpc

from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import ServiceError

DETAILS_TRAILER = "grpc-status-details-bin"


def from_rpc_error(error: grpc.RpcError, endpoint: str) -> ClientError:
    """Translate a gRPC error; `endpoint` is named if nothing answered there."""
    status = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    code = status.name
    found = error.trailing_metadata() if isinstance(error, grpc.Call) else ()
    trailers = cast("Iterable[tuple[str, bytes]]", found or ())
    details = next((value for key, value in trailers if key == DETAILS_TRAILER), None)
    if details is not None:
        known = contract.from_status(details)
        is_passing = status is grpc.StatusCode.UNAVAILABLE
        return ClientError(code, known.message, _next_step(code), _violations(known.details), is_passing)
    if status is grpc.StatusCode.UNAVAILABLE:
        return ClientError(
            code, f"Nothing answers at {endpoint}", "Start the cloud with `neo up`, or see `neo status`"
        )
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ClientError(
            code, f"{endpoint} did not answer in time", "Try again; `neo status` shows whether it is running"
        )
    message = (error.details() if isinstance(error, grpc.Call) else "") or str(error)
    return ClientError(code, message, _next_step(code))


def _violations(details: "Iterable[ServiceError]") -> tuple[tuple[str, str], ...]:
    return tuple(
        (violation.field, violation.message)
        for detail in details
        if detail.WhichOneof("details") == "bad_request"
        for violation in detail.bad_request.violations
    )


def _next_step(code: str) -> str:
    if code == "UNAUTHENTICATED":
        return "Sign in again with `neo login`"
    if code == "UNIMPLEMENTED":
        return "`neo --help` lists what this cloud serves"
    return ""


def code_name(number: int) -> str:
    """Return the name of a status code: 5 is "NOT_FOUND"."""
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), "UNKNOWN")
