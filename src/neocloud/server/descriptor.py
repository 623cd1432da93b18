# pyright: strict

"""The shape of a kind, read from the contract: its classes, methods, states and result fields.

Worked out once at start; a kind whose contract does not fit the generic verbs is refused then, not when the
first request comes.
"""

import re
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.kind import Kind
from neocloud.server.validation import NAMED_BY_RULES


class DescriptorError(Exception):
    """A service's table does not fit the contract; a mistake in the service, told at start."""


@dataclass(frozen=True)
class KindDescriptor:
    kind: Kind
    resource: Any
    """The resource's message class."""
    word: str
    """What people call it: "node group"."""
    rpcs: dict[str, contract.Rpc]
    """All methods of the kind's service by name, served here or not."""
    behaviors: frozenset[str]

    def new_status(self) -> tuple[bytes, str]:
        """Status and state of a resource that was just accepted."""
        state = self.kind.initial_state
        status = wire.with_state(self.kind.message, b"", state)
        if self.kind.is_reconciled and self.has("status"):
            empty: Any = self.resource()
            message: Message = type(empty.status)()
            message.ParseFromString(status)
            if "reconciling" in message.DESCRIPTOR.fields_by_name:
                setattr(message, "reconciling", True)  # noqa: B010  a field that only some statuses have
            status = message.SerializeToString()
        return status, state

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
        for field in rpc.output.DESCRIPTOR.fields:
            if field.is_repeated and field.message_type is not None and field.message_type.full_name == name:
                return field.name
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
