"""The base of all manifests: a kind, names, labels, a form as a dictionary, and checks of their fields.

Pure. Frozen dataclasses are read from the dictionaries that Kubernetes uses, and written as such. Engines
turn names into paths and rule sets, so a name that passes `check_name` cannot leave a folder.
"""

import hashlib
import json
import re
import types
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from ipaddress import IPv4Address, IPv4Network
from typing import Any, ClassVar, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from neocloud.engines.base import EngineError, KubernetesObject, Reference

Document = Mapping[str, object]
Type = TypeVar("Type")
Address = TypeVar("Address", IPv4Address, IPv4Network)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti)?")
_SCALE = {
    None: Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(1000),
    "Ki": Decimal(1024),
    "M": Decimal(1000) ** 2,
    "Mi": Decimal(1024) ** 2,
    "G": Decimal(1000) ** 3,
    "Gi": Decimal(1024) ** 3,
    "T": Decimal(1000) ** 4,
    "Ti": Decimal(1024) ** 4,
}
_EXAMPLES: Mapping[type, str] = {
    IPv4Address: "an IPv4 address such as 10.128.0.5",
    IPv4Network: "an IPv4 range such as 10.128.0.0/24",
}
_EXPECTED = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class ManifestError(EngineError):
    """An invalid manifest. The message names the field and says what to write instead."""

    def __init__(self, problem: str, *, field: str = "", where: str = "") -> None:
        super().__init__(f"{where}: {field} {problem}".removeprefix(": ").replace(":  ", " ").strip())
        self.problem = problem
        self.field = field
        self.where = where

    def within(self, outer: str) -> "ManifestError":
        """Return the same error, as it appears in the object whose field `outer` has the wrong one."""
        return ManifestError(self.problem, field=f"{outer}.{self.field}".rstrip("."), where=self.where)

    def of(self, where: str) -> "ManifestError":
        """The same error with the name of its object in front, such as "Pod web"."""
        return self if self.where else ManifestError(self.problem, field=self.field, where=where)


def check_name(value: object, field: str, *, label: bool = False) -> None:
    """Refuse what is not a DNS name (or a single DNS label), and with it every path trick."""
    pattern = _LABEL if label else _NAME
    if not isinstance(value, str) or not pattern.fullmatch(value) or ".." in value:
        dots = "" if label else ", dots"
        raise ManifestError(
            f"{value!r} is not valid; use lower-case letters, digits{dots} and dashes, "
            f"at most {63 if label else 253} of them, with a letter or digit at both ends.",
            field=field,
        )


PLATFORM_SERVICES_ANNOTATION = "neocloud.dev/platform-services"
"""Names, with commas, of the platform services that pods may reach. An annotation, which releases that do not
know it ignore."""


def read_platform_services(annotations: Mapping[str, str]) -> tuple[str, ...]:
    text = annotations.get(PLATFORM_SERVICES_ANNOTATION, "")
    return tuple(text.split(",")) if text else ()


def platform_services_annotation(names: Sequence[str]) -> Mapping[str, str]:
    return {PLATFORM_SERVICES_ANNOTATION: ",".join(names)} if names else {}


def check_platform_services(names: Sequence[str]) -> None:
    check_unique(names, "platform services")
    for name in names:
        check_name(name, "platform services", label=True)


def check_port(value: object, field: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise ManifestError(f"is {value!r}; a port is a number from 1 to 65535.", field=field)


def check_choice(value: object, known: Sequence[str], field: str) -> None:
    if value not in known:
        raise ManifestError(f"is {value!r}; use one of {', '.join(known)}.", field=field)


def check_unique(values: Sequence[object], field: str) -> None:
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ManifestError(f"{value} is given twice.", field=field)


def quantity(value: object, field: str) -> Decimal:
    """Return a Kubernetes quantity such as `500m`, `2` or `4Gi` as a number; never negative."""
    match = _QUANTITY.fullmatch(str(value))
    if not match:
        raise ManifestError(
            f"is {value!r}, which is not a quantity; write it like 2, 500m, 4Gi or 1T.", field=field
        )
    try:
        return Decimal(match[1]) * _SCALE[match[2]]
    except InvalidOperation as error:
        raise ManifestError(f"is {value!r}, which is too large.", field=field) from error


def parse_address(kind: type[Address], value: object, field: str) -> Address:
    """Read an IPv4Address or IPv4Network."""
    try:
        return kind(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ManifestError(f"is {value!r}; it must be {_EXAMPLES[kind]}.", field=field) from error


def fingerprint(spec: Document) -> str:
    """Equal for equal specs, whatever the order of their keys."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_mapping(value: object, field: str) -> Document:
    if not isinstance(value, Mapping):
        raise ManifestError(f"must be a mapping, not {value!r}.", field=field)
    return cast(Document, value)


def as_list(value: object, field: str) -> Sequence[object]:
    """The list; an empty one for None."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ManifestError(f"must be a list, not {value!r}.", field=field)
    return cast(Sequence[object], value)


def encode(value: object, without: Sequence[str] = ()) -> Any:
    """Return a dataclass as a dictionary with Kubernetes' keys. A field that has its default is left out."""
    if is_dataclass(value):
        return {
            key: encode(getattr(value, each.name))
            for key, each in _keys(type(value)).items()
            if each.name not in without and getattr(value, each.name) != _default(each)
        }
    if isinstance(value, Mapping):
        return {key: encode(each) for key, each in cast(Mapping[str, object], value).items()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in cast(Sequence[object], value)]
    if isinstance(value, IPv4Address | IPv4Network):
        return str(value)
    return value


def decode(kind: type[Type], document: Document, **more: object) -> Type:
    """Build a dataclass from a dictionary; `more` are fields that the dictionary does not hold.

    Raises ManifestError for a field that is not known, is missing or has the wrong type.
    """
    keys, hints = _keys(kind), _hints(kind)
    given = dict(more)
    for key, value in document.items():
        known = keys.get(key)
        if known is None or known.name in more:
            raise ManifestError("is not supported by this engine.", field=key)
        if value is not None:
            given[known.name] = _decoded(hints[known.name], value, key)
    for key, each in keys.items():
        if each.name not in given and each.default is MISSING and each.default_factory is MISSING:
            raise ManifestError("is missing.", field=key)
    return kind(**given)


@cache
def _keys(kind: type) -> Mapping[str, Field[Any]]:
    """Fields by Kubernetes' key; a field with the key "" is not a part of the dictionary."""
    found = {each.metadata.get("key", _camel(each.name)): each for each in fields(kind)}
    return {key: each for key, each in found.items() if key}


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _default(each: Field[Any]) -> object:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _decoded(hint: Any, value: object, key: str) -> object:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        chosen = [each for each in arguments if each is not types.NoneType]
        if len(chosen) == 1:
            return _decoded(chosen[0], value, key)
        if not isinstance(value, tuple(chosen)) or isinstance(value, bool):
            raise ManifestError(f"must be a number or text, not {value!r}.", field=key)
        return value
    if origin is tuple:
        return tuple(
            _decoded(arguments[0], each, f"{key}[{n}]") for n, each in enumerate(as_list(value, key))
        )
    if origin is not None:
        items = as_mapping(value, key).items()
        return {name: _decoded(arguments[1], each, f"{key}.{name}") for name, each in items}
    if is_dataclass(hint):
        try:
            return decode(cast(type[object], hint), as_mapping(value, ""))
        except ManifestError as error:
            raise error.within(key) from error
    if hint is object:
        return value
    if hint in _EXAMPLES:
        return parse_address(cast(type[IPv4Address], hint), value, key)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ManifestError(f"must be {_EXPECTED[hint]}, not {value!r}.", field=key)
    return value


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The metadata of a manifest in its form as a dictionary."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Manifest(ABC):
    """An object for an engine. It is valid: a wrong field raises ManifestError when it is made."""

    kind: ClassVar[str]
    api_version: ClassVar[str] = "v1"
    has_label_name: ClassVar[bool] = False
    """Whether its name is a single DNS label."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        check_name(self.name, f"{self.kind} name", label=self.has_label_name)
        check_name(self.reference.namespace, f"namespace of {self.kind} {self.name}", label=True)
        try:
            self._check()
        except ManifestError as error:
            raise error.of(f"{self.kind} {self.name}") from error

    @property
    @abstractmethod
    def reference(self) -> Reference: ...

    def to_dict(self) -> KubernetesObject:
        """Return it as Kubernetes writes it."""
        metadata: KubernetesObject = {"name": self.name}
        if self.kind != "Namespace":
            metadata["namespace"] = self.reference.namespace
        for key, value in (("labels", self.labels), ("annotations", self._annotations())):
            if value:
                metadata[key] = dict(value)
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, **self._body()}

    @classmethod
    def from_dict(cls, document: Document) -> Self:
        """Read it as Kubernetes writes it. Raises ManifestError naming the first field that is wrong."""
        where = f"A {cls.kind}"
        try:
            metadata = decode(Metadata, as_mapping(document.get("metadata"), "metadata"))
            where = f"{cls.kind} {metadata.name}"
            body = {key: value for key, value in document.items() if key not in _HEAD}
            return cls._of(metadata, body)
        except ManifestError as error:
            raise error.of(where) from error

    @classmethod
    @abstractmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self: ...

    @abstractmethod
    def _body(self) -> Mapping[str, object]:
        """Everything but its head."""
        ...

    def _annotations(self) -> Mapping[str, str]:
        return {}

    def _check(self) -> None:
        """Raise ManifestError for a field that is wrong."""
        return


@dataclass(frozen=True, kw_only=True)
class Namespaced(Manifest):
    """An object of a namespace."""

    namespace: str

    @property
    def reference(self) -> Reference:
        return Reference(self.kind, self.namespace, self.name)


_HEAD = ("apiVersion", "kind", "metadata")
