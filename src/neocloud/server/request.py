# pyright: strict

"""A decoded request, the endpoint that serves it, and what the server serves with."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract
from neocloud.core.contract import Rpc
from neocloud.core.kind import Kind
from neocloud.core.readers import ResourceReader, Subject, TransactionReader
from neocloud.core.service import Authenticator, Authorizer, CreateDefaults, Defaults, Dependencies
from neocloud.core.store.protocol import Store, Transaction
from neocloud.engines.base import Capabilities
from neocloud.server.validation import MAX_REQUEST_BYTES

IDEMPOTENCY_HEADER = "x-idempotency-key"
RESET_MASK_HEADER = "x-resetmask"
SOURCE_HEADER = ":source"
"""The address that the call came from, set by grpc_server and http_server. No client can send a header whose
name begins with a colon."""


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
    notes: set[str] = field(default_factory=set[str], compare=False)
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


Serve = Callable[[Request], Awaitable[Message]]


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


@dataclass(frozen=True)
class Runtime:
    """What the server needs while it runs, the same for every request."""

    dependencies: Dependencies
    authenticator: Authenticator
    authorizer: Authorizer
    kinds: dict[str, Kind]
    """All served kinds by message name."""
    notify: Callable[[], None]
    inventory: Callable[[], Capabilities | None]
    defaults: Defaults = field(default_factory=dict[str, tuple[tuple[str, CreateDefaults], ...]])
    """What creates default resources in new ones."""

    @property
    def store(self) -> Store:
        return self.dependencies.store

    def now(self) -> datetime:
        return self.dependencies.clock.now()

    def reader(self, tx: Transaction, subject: Subject | None, now: datetime) -> ResourceReader:
        """Return what the rules may look up while the server writes a resource for this caller."""
        provided = self.dependencies.provided
        return TransactionReader(tx, now, inventory=self.inventory(), subject=subject, provided=provided)

    async def authenticate(self, authorization: str) -> Subject:
        """Return the subject of an Authorization header."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise contract.unauthenticated("The call carries no token. Send 'authorization: Bearer TOKEN'.")
        return await self.authenticator.authenticate(token.strip())
