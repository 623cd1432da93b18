"""Every constraint that the contract puts on a request, with a request that breaks it.

Read from the buf.validate annotations, so a new field or a new service brings its own cases.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import protovalidate

from neocloud.core import contract

MAX_ITEMS = 5000
"""Longer lists are not built: no constraint of the contract asks for them."""
WELL_KNOWN = (
    "email",
    "hostname",
    "ip",
    "ipv4",
    "ipv6",
    "uri",
    "uri_ref",
    "uuid",
    "ip_prefix",
    "host_and_port",
)
Break = Callable[[Any], None]
"""Makes the field of this owner wrong, in place."""


@dataclass(frozen=True)
class Case:
    """One constraint: where it is, and how to break it."""

    rule: str
    steps: tuple[str, ...]
    """Fields on the way from the request to the owner of the field; the first element of each list."""
    field: str
    suffix: str
    breaks: Break

    @property
    def path(self) -> str:
        """Return the path as an error names it."""
        return ".".join((*self.steps, self.field)) + self.suffix

    @property
    def mask(self) -> str:
        """For an Update that takes the field away."""
        return ".".join((*self.steps, self.field)).replace("[0]", ".0")

    def broken(self, request: Any) -> Any:
        copy = type(request)()
        copy.CopyFrom(request)
        owner = copy
        for step in self.steps:
            name = step.removesuffix("[0]")
            if step.endswith("[0]"):
                items = getattr(owner, name)
                owner = items[0] if items else items.add()
            else:
                owner = getattr(owner, name)
                owner.SetInParent()
        self.breaks(owner)
        return copy


def cases(message_class: Any) -> Iterator[Case]:
    """All constraints of a request and of what is in it."""
    yield from _in_message(message_class.DESCRIPTOR, (), frozenset())


def expressions(message_class: Any) -> Iterator[Case]:
    """Constraints in words of CEL: broken by trying values until the validator names the rule."""
    yield from _expressions(message_class, message_class.DESCRIPTOR, (), frozenset())


@cache
def rules_of(field: Any) -> Any:
    """buf.validate.FieldRules of a field descriptor."""
    options = contract.message("google.protobuf.FieldOptions").FromString(
        field.GetOptions().SerializeToString()
    )
    return options.Extensions[contract.pool().FindExtensionByName("buf.validate.field")]


def _in_message(descriptor: Any, steps: tuple[str, ...], seen: frozenset[str]) -> Iterator[Case]:
    if descriptor.full_name in seen or descriptor.full_name.startswith("google."):
        return
    for field in descriptor.fields:
        if contract.annotations(field).is_output_only or (not steps and field.name == "status"):
            continue
        for rule, suffix, breaks in _breaks(field):
            yield Case(rule, steps, field.name, suffix, breaks)
        inner = _inner(field)
        if inner is not None:
            step = f"{field.name}[0]" if field.is_repeated else field.name
            yield from _in_message(inner, (*steps, step), seen | {descriptor.full_name})


def _inner(field: Any) -> Any | None:
    """The message type in a field, of maps none."""
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    return None if is_map else field.message_type


def _breaks(field: Any) -> Iterator[tuple[str, str, Break]]:
    rules = rules_of(field)
    if rules.required:
        yield "required", "", lambda owner: owner.ClearField(field.name)
    kind = rules.WhichOneof("type")
    if kind == "repeated":
        yield from _breaks_of_list(field, rules.repeated)
    elif kind == "map" and rules.map.max_pairs and rules.map.max_pairs < MAX_ITEMS:
        yield (
            "map.max_pairs",
            "",
            lambda owner: getattr(owner, field.name).update(
                {f"key{number}": "value" for number in range(rules.map.max_pairs + 1)}
            ),
        )
    elif kind is not None and kind != "map":
        for rule, value in _wrong_values(kind, getattr(rules, kind), bool(rules.ignore)):
            yield f"{kind}.{rule}", "", _setter(field, value)


def _breaks_of_list(field: Any, rules: Any) -> Iterator[tuple[str, str, Break]]:
    if rules.max_items and rules.max_items < MAX_ITEMS:
        yield "repeated.max_items", "", lambda owner: _extend(owner, field, rules.max_items + 1)
    if rules.min_items:
        yield "repeated.min_items", "", lambda owner: owner.ClearField(field.name)
    if rules.unique and field.message_type is None:
        yield "repeated.unique", "", lambda owner: getattr(owner, field.name).extend(["same", "same"])
    kind = rules.items.WhichOneof("type")
    if kind is not None and field.message_type is None:
        for rule, value in _wrong_values(kind, getattr(rules.items, kind), bool(rules.items.ignore)):
            yield (
                f"repeated.items.{kind}.{rule}",
                "[0]",
                lambda owner, value=value: getattr(owner, field.name).append(value),
            )


def _extend(owner: Any, field: Any, count: int) -> None:
    items = getattr(owner, field.name)
    for number in range(count):
        if field.message_type is not None:
            items.add()
        elif field.cpp_type == field.CPPTYPE_STRING and field.type != field.TYPE_BYTES:
            items.append(f"item{number}")
        else:
            items.append(number % 2)


def _setter(field: Any, value: Any) -> Break:
    def put(owner: Any) -> None:
        if field.message_type is not None:
            getattr(owner, field.name).CopyFrom(value)
        else:
            setattr(owner, field.name, value)

    return put


def _wrong_values(kind: str, rules: Any, ignores_zero: bool) -> Iterator[tuple[str, Any]]:
    if kind in ("string", "bytes"):
        yield from _wrong_text(kind, rules, ignores_zero)
    elif kind == "enum":
        if rules.defined_only:
            yield "defined_only", 9999
        if rules.not_in:
            yield "not_in", rules.not_in[0]
    elif kind == "duration":
        yield from _wrong_durations(rules)
    elif kind not in ("bool", "timestamp", "any"):
        yield from _wrong_numbers(rules)


def _wrong_text(kind: str, rules: Any, ignores_zero: bool) -> Iterator[tuple[str, Any]]:
    letter: Any = "x" if kind == "string" else b"x"
    if rules.max_len:
        yield "max_len", letter * (rules.max_len + 1)
    if rules.min_len > 1 or (rules.min_len and not ignores_zero):
        yield "min_len", letter * (rules.min_len - 1)
    if rules.HasField("len"):
        yield "len", letter * (rules.len + 1)
    if kind == "string" and rules.max_bytes:
        yield "max_bytes", "x" * (rules.max_bytes + 1)
    if kind == "string" and rules.pattern:
        yield "pattern", "\x01 no pattern of the contract allows this \x01"
    known = rules.WhichOneof("well_known")
    if kind == "string" and known in WELL_KNOWN:
        yield known, "not one at all ::"


def _wrong_numbers(rules: Any) -> Iterator[tuple[str, Any]]:
    names = {field.name for field, _ in rules.ListFields()}
    outside = {"gt": 0, "gte": -1, "lt": 0, "lte": 1}
    for name in sorted(names & outside.keys()):
        yield name, getattr(rules, name) + outside[name]
    if getattr(rules, "in"):
        yield "in", max(getattr(rules, "in")) + 1


def _wrong_durations(rules: Any) -> Iterator[tuple[str, Any]]:
    outside = {"gt": 0, "gte": -1, "lt": 0, "lte": 1}
    for name, offset in outside.items():
        if rules.HasField(name):
            bound = getattr(rules, name)
            yield name, contract.message("google.protobuf.Duration")(seconds=bound.seconds + offset)


def _expressions(
    request: Any, descriptor: Any, steps: tuple[str, ...], seen: frozenset[str]
) -> Iterator[Case]:
    if descriptor.full_name in seen or descriptor.full_name.startswith("google."):
        return
    for field in descriptor.fields:
        if contract.annotations(field).is_output_only or (not steps and field.name == "status"):
            continue
        for rule in rules_of(field).cel:
            case = _first_that_breaks(request, steps, field, rule.id)
            if case is not None:
                yield case
            elif not (rules_of(field).ignore or rules_of(field).required):  # these come first
                raise AssertionError(
                    f"No value here breaks {rule.id} of {field.full_name}; add one to _tries."
                )
        inner = _inner(field)
        if inner is not None:
            step = f"{field.name}[0]" if field.is_repeated else field.name
            yield from _expressions(request, inner, (*steps, step), seen | {descriptor.full_name})


def _first_that_breaks(request: Any, steps: tuple[str, ...], field: Any, rule_id: str) -> Case | None:
    validator = protovalidate.Validator()
    for breaks in _tries(field):
        case = Case(f"cel.{rule_id}", steps, field.name, "", breaks)
        found = validator.collect_violations(case.broken(request()))
        if any(violation.proto.rule_id == rule_id for violation in found):
            return case
    return None


def _tries(field: Any) -> Iterator[Break]:
    if field.is_repeated:
        return
    if field.message_type is None:
        for value in (
            ("", "!", "-x-", "x" * 3000, "1", "/", "a/../b") if field.cpp_type == 9 else (-1, 0, 1 << 40)
        ):
            yield _setter(field, value)
        return
    names = {each.name for each in field.message_type.fields}
    for name in ("!", "-x-", "x" * 3000):
        if "name" in names:
            yield lambda owner, name=name: setattr(getattr(owner, field.name), "name", name)
    for key in ("!" * 400, ""):
        if "labels" in names:
            yield lambda owner, key=key: getattr(owner, field.name).labels.update({key: "x" * 400})
    yield lambda owner: getattr(owner, field.name).SetInParent()
    if "seconds" in names:
        yield lambda owner: setattr(getattr(owner, field.name), "seconds", -1)
