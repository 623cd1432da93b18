# pyright: strict
"""What the contract says about its fields and resources beyond their types.

Options read from a private pool come back as stock classes that do not know the contract's extensions, so
their bytes are parsed again with the pool's own option classes. Each answer is computed once.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.message import Message

from neocloud.core.contract.registry import Field, MessageType, message, pool


@dataclass(frozen=True)
class Nid:
    """What the id in a field may stand for: type prefixes of the resource and of its allowed parents."""

    resources: tuple[str, ...]
    parents: tuple[str, ...]


@dataclass(frozen=True)
class FieldAnnotations:
    behaviors: frozenset[str] = frozenset()
    """Names of nebius.FieldBehavior, including those of the field's oneof."""
    is_sensitive: bool = False
    is_credentials: bool = False
    nid: Nid | None = None

    @property
    def is_output_only(self) -> bool:
        return "OUTPUT_ONLY" in self.behaviors or "PUBLIC_OUTPUT_ONLY" in self.behaviors

    @property
    def is_input_only(self) -> bool:
        return "INPUT_ONLY" in self.behaviors

    @property
    def is_secret(self) -> bool:
        return self.is_sensitive or self.is_credentials


def annotations(field: Field) -> FieldAnnotations:
    """Return the annotations of a field."""
    owner = field.containing_type
    assert owner is not None, f"{field.full_name} is an extension."
    return message_annotations(owner)[field.name]


@cache
def message_annotations(descriptor: MessageType) -> dict[str, FieldAnnotations]:
    """Return the annotations of all fields of a message type, by field name."""
    return {field.name: _read(field) for field in descriptor.fields}


@cache
def resource_behaviors(descriptor: MessageType) -> frozenset[str]:
    """Return the names of nebius.ResourceBehavior of a message type: MOVABLE, UNNAMED, IMMUTABLE_NAME."""
    return _names(_with_extensions(descriptor.GetOptions()), "nebius.resource_behavior")


def _read(field: Field) -> FieldAnnotations:
    options = _with_extensions(field.GetOptions())
    behaviors = _names(options, "nebius.field_behavior")
    if field.containing_oneof is not None:
        of_oneof = _with_extensions(field.containing_oneof.GetOptions())
        behaviors |= _names(of_oneof, "nebius.oneof_behavior")
    nid = None
    if options.HasExtension(_extension("nebius.nid")):
        settings = options.Extensions[_extension("nebius.nid")]
        nid = Nid(tuple(settings.resource), tuple(settings.parent_resource))
    return FieldAnnotations(
        behaviors=behaviors,
        is_sensitive=bool(options.Extensions[_extension("nebius.sensitive")]),
        is_credentials=bool(options.Extensions[_extension("nebius.credentials")]),
        nid=nid,
    )


def _with_extensions(options: Message) -> Message:
    return message(options.DESCRIPTOR.full_name).FromString(options.SerializeToString())


@cache
def _extension(name: str) -> Any:
    return pool().FindExtensionByName(name)


def _names(options: Message, extension_name: str) -> frozenset[str]:
    extension = _extension(extension_name)
    names = extension.enum_type.values_by_number
    return frozenset(names[number].name for number in options.Extensions[extension])
