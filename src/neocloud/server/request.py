"""A decoded request, and the endpoint that serves it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from neocloud.core import contract
from neocloud.core.contract import Rpc
from neocloud.core.readers import Subject
from neocloud.server.bounds import MAX_REQUEST_BYTES

IDEMPOTENCY_HEADER = "x-idempotency-key"
RESET_MASK_HEADER = "x-resetmask"
SOURCE_HEADER = ":source"
"""Set by the fronts: the address that the call came from. No client can send a name that begins like this."""


@dataclass(frozen=True)
class Request:
    """One decoded request with everything known about its caller. Header names are lower-case."""

    rpc: Rpc
    message: Any
    headers: Mapping[str, str]
    request_id: str
    subject: Subject | None = None
    original_message: Any = None
    """What the caller sent, where another method serves it with another message."""
    notes: set[str] = field(default_factory=set, compare=False)
    """What has been recorded of it already."""

    @property
    def original(self) -> Any:
        return self.message if self.original_message is None else self.original_message

    @cached_property
    def redacted(self) -> bytes:
        """The request without secrets, as a serialised Any: what may be kept of it."""
        return contract.pack(contract.redact(self.original)).SerializeToString()

    @property
    def subject_id(self) -> str:
        return self.subject.id if self.subject else ""


Serve = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """What the server does with one method of the contract."""

    rpc: Rpc
    serve: Serve
    is_public: bool = False
    """Anyone may call it, even without a token."""
    is_change: bool = False
    is_internal: bool = False
    """Not counted against a rate."""
    max_bytes: int = MAX_REQUEST_BYTES
    """Largest request, as it was sent."""
