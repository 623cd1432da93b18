"""What the contract says about its fields and resources beyond their types.

Options read from a private pool come back as stock classes that do not know the contract's extensions, so
their bytes are parsed again with the pool's own option classes. Each answer is computed once.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from neocloud.core.contract.registry import message, pool


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


def annotations(field: Any) -> FieldAnnotations:
    """The annotations of a field descriptor."""
    return message_annotations(field.containing_type)[field.name]


@cache
def message_annotations(descriptor: Any) -> dict[str, FieldAnnotations]:
    """The annotations of all fields of a message descriptor, by field name."""
    return {field.name: _read(field) for field in descriptor.fields}


@cache
def resource_behaviors(descriptor: Any) -> frozenset[str]:
    """Names of nebius.ResourceBehavior of a message descriptor: MOVABLE, UNNAMED, IMMUTABLE_NAME."""
    options = _options(descriptor, "MessageOptions")
    return _names(options, "nebius.resource_behavior")


def _read(field: Any) -> FieldAnnotations:
    options = _options(field, "FieldOptions")
    behaviors = _names(options, "nebius.field_behavior")
    if field.containing_oneof is not None:
        behaviors |= _names(_options(field.containing_oneof, "OneofOptions"), "nebius.oneof_behavior")
    extension = _extension("nebius.nid")
    nid = None
    if options.HasExtension(extension):
        settings = options.Extensions[extension]
        nid = Nid(tuple(settings.resource), tuple(settings.parent_resource))
    return FieldAnnotations(
        behaviors=behaviors,
        is_sensitive=bool(options.Extensions[_extension("nebius.sensitive")]),
        is_credentials=bool(options.Extensions[_extension("nebius.credentials")]),
        nid=nid,
    )


def _options(descriptor: Any, class_name: str) -> Any:
    return message(f"google.protobuf.{class_name}").FromString(descriptor.GetOptions().SerializeToString())


@cache
def _extension(name: str) -> Any:
    return pool().FindExtensionByName(name)


def _names(options: Any, extension_name: str) -> frozenset[str]:
    extension = _extension(extension_name)
    names = extension.enum_type.values_by_number
    return frozenset(names[number].name for number in options.Extensions[extension])
