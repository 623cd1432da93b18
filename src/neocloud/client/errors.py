"""The one error a client raises: what happened, and what to do next; and how gRPC errors become it.

The server's own messages already name the next step and are passed on unchanged. Only errors that the server
cannot report itself (no answer, unknown caller) are worded here. gRPC and the contract are imported only when
an error is translated, because `neo --help` needs neither.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc

    from neocloud.messages.nebius.common.v1 import ServiceError

DETAILS_TRAILER = "grpc-status-details-bin"


@dataclass
class ClientError(Exception):
    """A call failed. `code` is the gRPC status by name ("NOT_FOUND"), also for errors found on this side."""

    code: str
    message: str
    next_step: str = ""
    violations: tuple[tuple[str, str], ...] = ()
    """Invalid fields: (`spec.node_sets[0].count`, description)."""
    may_be_repeated: bool = False
    """Whether a server answered that the same call may succeed in a moment."""
    is_unanswered: bool = False
    """Whether nothing answered, as while a server starts again."""

    def __str__(self) -> str:
        lines = [_sentence(self.message)]
        lines += [
            f"  {field}: {message}" for field, message in self.violations if message not in self.message
        ]
        if self.next_step:
            lines.append(_sentence(self.next_step))
        return "\n".join(lines) if len(lines) > 2 else " ".join(lines)


class ReleasesApart(ClientError):
    """`neo` and the cloud are of releases that do not work together."""


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def from_rpc_error(error: "grpc.RpcError", endpoint: str) -> ClientError:
    """Translate a gRPC error; `endpoint` is named if nothing answered there."""
    import grpc  # noqa: PLC0415

    from neocloud.core import contract  # noqa: PLC0415

    status = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    code = status.name
    details = trailer(error, DETAILS_TRAILER) if isinstance(error, grpc.Call) else None
    if isinstance(details, bytes):
        known = contract.from_status(details)
        is_passing = status is grpc.StatusCode.UNAVAILABLE
        return ClientError(code, known.message, _next_step(code), _violations(known.details), is_passing)
    if status is grpc.StatusCode.UNAVAILABLE:
        return ClientError(
            code,
            f"Nothing answers at {endpoint}",
            "Start the cloud with `neo up`, or see `neo status`",
            is_unanswered=True,
        )
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ClientError(
            code, f"{endpoint} did not answer in time", "Try again; `neo status` shows whether it is running"
        )
    message = (error.details() if isinstance(error, grpc.Call) else "") or str(error)
    return ClientError(code, message, _next_step(code))


def trailer(call: "grpc.Call", name: str) -> str | bytes | None:
    """Return this trailer of an answer; None where there is none."""
    found: Iterable[tuple[str, str | bytes]] = call.trailing_metadata() or ()
    return next((value for key, value in found if key == name), None)


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
    import grpc  # noqa: PLC0415

    return next((code.name for code in grpc.StatusCode if code.value[0] == number), "UNKNOWN")
