"""The inputs of verbs: the decoded request, its endpoint, the runtime of the server, the shape of a kind.

The shape is read from the contract once at start: classes, methods, states and result fields. A kind whose
contract does not fit the generic verbs is refused then, not when the first request comes.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.contract import Rpc
from neocloud.core.kind import Kind
from neocloud.core.readers import ResourceReader, Subject, TransactionReader
from neocloud.core.service import (
    Authenticator,
    Authorizer,
    CreateDefaults,
    Defaults,
    Dependencies,
    FindDefaults,
)
from neocloud.core.store.protocol import Store, Transaction
from neocloud.engines.base import Capabilities
from neocloud.server.validation import MAX_REQUEST_BYTES, NAMED_BY_RULES

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
    """The caller's message, where another method serves it with another message."""
    notes: set[str] = field(default_factory=set[str], compare=False)
    """Facts that are recorded already."""

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
    """The server's treatment of one method of the contract."""

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
    """The dependencies of the running server, the same for every request."""

    dependencies: Dependencies
    authenticator: Authenticator
    authorizer: Authorizer
    kinds: dict[str, Kind]
    """All served kinds by message name."""
    notify: Callable[[], None]
    inventory: Callable[[], Capabilities | None]
    defaults: Defaults = field(default_factory=dict[str, tuple[tuple[str, CreateDefaults], ...]])
    """Functions that create default resources in new ones."""
    made_with: Mapping[str, FindDefaults] = field(default_factory=dict[str, FindDefaults])
    """Functions by kind that find the default resources that are deleted with one."""

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


class DescriptorError(Exception):
    """A service's table does not fit the contract; a mistake in the service, told at start."""


@dataclass(frozen=True)
class KindDescriptor:
    kind: Kind
    resource: Any
    """The resource's message class."""
    word: str
    """The noun for people: "node group"."""
    rpcs: dict[str, contract.Rpc]
    """All methods of the kind's service by name, served here or not."""
    behaviors: frozenset[str]

    def new_status(self) -> tuple[bytes, str]:
        """Status and state of a resource that was just accepted."""
        state = self.kind.initial_state
        return self.reconciling_status(wire.with_state(self.kind.message, b"", state)), state

    def reconciling_status(self, status: bytes) -> bytes:
        """Return the status of a resource whose spec has just changed: reconciling, if its kind says so."""
        if not self.kind.is_reconciled or not self.has("status"):
            return status
        empty: Any = self.resource()
        message: Message = type(empty.status)()
        message.ParseFromString(status)
        if "reconciling" not in message.DESCRIPTOR.fields_by_name:
            return status
        setattr(message, "reconciling", True)  # noqa: B010  a field that only some statuses have
        return message.SerializeToString()

    def state_of(self, resource: Any) -> str:
        """The state's name in a resource's status."""
        field = resource.status.DESCRIPTOR.fields_by_name.get("state") if self.has("status") else None
        if field is None or field.enum_type is None:
            return self.kind.initial_state
        return field.enum_type.values_by_number[resource.status.state].name

    def list_field(self) -> str:
        """The field of the List result that holds the resources: usually `items`."""
        rpc = self.rpcs["List"]
        name = self.resource.DESCRIPTOR.full_name
        for found in rpc.output.DESCRIPTOR.fields:
            if found.is_repeated and found.message_type is not None and found.message_type.full_name == name:
                return found.name
        raise DescriptorError(f"{rpc.path} does not answer with {name}; give the service a Method for it.")

    def has(self, field: str) -> bool:
        return field in self.resource.DESCRIPTOR.fields_by_name


def descriptor_of(kind: Kind) -> KindDescriptor:
    resource = contract.message(kind.message)
    if "metadata" not in resource.DESCRIPTOR.fields_by_name:
        raise DescriptorError(f"{kind.message} has no metadata; serve it with Methods instead of a Kind.")
    rpcs = contract.services().get(kind.rpc)
    if rpcs is None:
        raise DescriptorError(f"The contract has no service {kind.rpc}, named by kind {kind.message}.")
    _check_states(kind, resource)
    return KindDescriptor(
        kind=kind,
        resource=resource,
        word=re.sub(r"(?<=[a-z])(?=[A-Z])", " ", resource.DESCRIPTOR.name).lower(),
        rpcs={rpc.name: rpc for rpc in rpcs},
        behaviors=_behaviors(kind, resource),
    )


def _behaviors(kind: Kind, resource: Any) -> frozenset[str]:
    found = contract.resource_behaviors(resource.DESCRIPTOR)
    if kind.is_named_anyway:
        found -= {"UNNAMED"}
    return found | {NAMED_BY_RULES} if kind.is_named_by_rules else found


def require_operation_answer(rpc: contract.Rpc) -> None:
    """Raises DescriptorError when a changing method answers with something else than an Operation."""
    output = rpc.output.DESCRIPTOR.full_name
    if output not in ("nebius.common.v1.Operation", "nebius.common.v1alpha1.Operation"):
        raise DescriptorError(f"{rpc.path} answers with {output}; give the service a Method for it.")


def _check_states(kind: Kind, resource: Any) -> None:
    status = resource.DESCRIPTOR.fields_by_name.get("status")
    state = status.message_type.fields_by_name.get("state") if status is not None else None
    if state is None or state.enum_type is None:
        return
    needed = {kind.initial_state, *([kind.deleting_state] if kind.is_reconciled else [])}
    missing = sorted(needed - set(state.enum_type.values_by_name) - {""})
    if missing:
        raise DescriptorError(f"{kind.message} has no state {', '.join(missing)} in its status.")
