"""Check messages: their size and depth, the contract's annotations, and the rules that all resources share.

Pure: sees messages, not the store. Rules of one kind belong to its service. The size is checked for every
method alike, before anything else reads the content: bytes, how much is in the request and how deep, labels
and texts. A field whose length the contract limits is checked by its annotation; every other text has a bound
here.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

import protovalidate
from google.protobuf.message import Message

from neocloud.core import contract
from neocloud.core.json_values import is_list, is_object
from neocloud.core.kind import AnyRules, Violation

MAX_NAME_BYTES = 1024
OWN_PACKAGE = "neocloud."
NAMED_BY_RULES = "NAMED_BY_RULES"
"""Stands beside the contract's behaviors of a kind whose rules say what a name may be."""
RESERVED_LABELS = "neocloud.dev/"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_VALIDATOR = protovalidate.Validator()


def annotation_violations(message: Message) -> list[Violation]:
    """Return the violations of field annotations (required, ranges, patterns, CEL) in this message."""
    found = _VALIDATOR.collect_violations(message)
    return [Violation(_path(violation), violation.proto.message) for violation in found]


def check(message: Message) -> None:
    """Raise ApiError when the message breaks its annotations."""
    violations = annotation_violations(message)
    if violations:
        raise contract.bad_request(violations)


def check_request(rules: AnyRules, request: Message) -> None:
    """Raise ApiError when the kind's rules refuse the request by itself. Not for a transaction."""
    if violations := list(rules.request_violations(request)):
        raise contract.bad_request(violations)


def check_present(message: Message, *fields: str) -> None:
    """Raise ApiError when one of these text fields is empty; annotations do not say it everywhere."""
    missing = [name for name in fields if not getattr(message, name)]
    if missing:
        raise contract.bad_request((name, "is required") for name in missing)


def refuse_unserved(message: Message, served: Collection[str]) -> None:
    """Raise ApiError for a set field that nothing here honours; ignoring it would change what was asked."""
    unserved = [field.name for field, _ in message.ListFields() if field.name not in served]
    if unserved:
        raise contract.bad_request(
            (name, "is not supported by this cloud; leave it unset") for name in unserved
        )


def name_violations(kind: str, behaviors: Collection[str], new: str, old: str | None) -> Iterator[Violation]:
    """Yield the violations of a resource's name; `old` is None for a new one."""
    if not new or new == old:
        return
    if "UNNAMED" in behaviors:
        yield Violation("metadata.name", "must be empty: resources of this kind have no names")
    elif old is not None and "IMMUTABLE_NAME" in behaviors:
        yield Violation("metadata.name", f"cannot be changed after creation; it is {old!r}")
    elif NAMED_BY_RULES not in behaviors and kind.startswith(OWN_PACKAGE) and not _LABEL.fullmatch(new):
        yield Violation(
            "metadata.name",
            f"is {new!r}; must be 1 to 63 of a-z, 0-9 and '-', and start and end with a letter or digit",
        )
    elif len(new.encode()) > MAX_NAME_BYTES or _UNPRINTABLE.search(new) or new != new.strip():
        yield Violation(
            "metadata.name",
            f"must be at most {MAX_NAME_BYTES} bytes, without control characters or outer spaces",
        )


def label_violations(new: Mapping[str, str], old: Mapping[str, str]) -> Iterator[Violation]:
    """Labels that a user may not set because the cloud reads them."""
    for key, value in new.items():
        if key.startswith(RESERVED_LABELS) and old.get(key) != value:
            yield Violation(
                f"metadata.labels[{key}]", f"labels that begin with {RESERVED_LABELS} are the cloud's own"
            )


def immutable_violations(new: Message, old: Message, path: str = "") -> Iterator[Violation]:
    """Fields that are set once and differ now."""
    known = contract.message_annotations(new.DESCRIPTOR)
    for field in new.DESCRIPTOR.fields:
        name = f"{path}{field.name}"
        before, after = getattr(old, field.name), getattr(new, field.name)
        is_kept_choice = known[field.name].is_immutable_choice and old.HasField(field.name)
        if is_kept_choice and new.HasField(field.name):
            yield from immutable_violations(after, before, f"{name}.")
        elif "IMMUTABLE" in known[field.name].behaviors:
            if before != after or _presence(old, field) != _presence(new, field):
                yield Violation(name, "cannot be changed after creation; create a new resource instead")
        elif field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        elif not field.is_repeated:
            yield from immutable_violations(after, before, f"{name}.")
        elif len(before) == len(after):
            for index, (old_item, new_item) in enumerate(zip(before, after, strict=True)):
                yield from immutable_violations(new_item, old_item, f"{name}[{index}].")


def _presence(message: Message, field: contract.Field) -> bool:
    return field.has_presence and message.HasField(field.name)


def _path(violation: protovalidate.Violation) -> str:
    if violation.proto.field is None:
        return ""
    path = ""
    for element in violation.proto.field.elements:
        path += f".{element.field_name}" if path else str(element.field_name)
        if element.subscript is not None:
            path += f"[{element.subscript.value}]"
    return path


MAX_REQUEST_BYTES = 256 * 1024
"""Default size of a whole request, encoded as it was sent; a method may declare more."""
MAX_NODES = 10_000
"""Fields that are set, elements of lists and entries of maps, all together."""
MAX_ELEMENTS = 512
"""Messages in one list: each costs the annotations' validator up to 160 microseconds."""
MAX_DEPTH = 50
"""Messages within messages, or JSON within JSON."""
MAX_LABELS = 64
MAX_LABEL_KEY_BYTES = 63
MAX_LABEL_VALUE_BYTES = 255
MAX_DESCRIPTION_BYTES = 1024
MAX_TEXT_BYTES = 16 * 1024
"""Length of a text or bytes field without a limit of its own. The longest that clients send are tokens."""

_DESCRIPTIONS = frozenset({"description", "title", "reason", "image_family_human_readable"})
_LABELS = "labels"
_MOST_TOLD = 20
_RULES_WITH_A_LENGTH = ("max_len", "max_bytes", "len", "len_bytes")
_LIMITED_TOGETHER = frozenset(
    {"nebius.ai.v1.EndpointSpec.FileInjection.content", "nebius.ai.v1.JobSpec.FileInjection.content"}
)
"""Fields whose rules limit all of them together; their method has a larger request for it."""


class _TooMuch(Exception):
    """There are more nodes, or they lie deeper; the message says which."""


def check_size(size: int, limit: int) -> None:
    """Raise ApiError when a request of so many bytes is over the limit of its method."""
    if size > limit:
        raise contract.bad_request(
            [], f"The request is larger than the {limit} bytes that this method takes. Send less at once."
        )


def check_bounds(message: Message, size: int) -> None:
    """Raise ApiError when a decoded request of `size` encoded bytes holds more than it may."""
    if size <= MAX_LABEL_KEY_BYTES:
        return  # too small to break any limit
    try:
        walk = _Walk()
        found = walk.violations(message)
    except _TooMuch as error:
        raise contract.bad_request([], str(error)) from None
    if found:
        raise contract.bad_request(found)


def check_tree(content: object) -> None:
    """Raise ApiError when parsed JSON has too many nodes or is too deep to be turned into a message."""
    level, nodes = [content], 0
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for each in level:
            if is_object(each):
                below.extend(each.values())
            elif is_list(each):
                below.extend(each)
        nodes += len(below)
        if nodes > MAX_NODES:
            raise contract.bad_request([], _TOO_MANY)
        if not below:
            return
        level = below
    raise contract.bad_request([], _TOO_DEEP)


_TOO_MANY = f"The request has more than {MAX_NODES} fields and elements. Send less at once."
_TOO_DEEP = f"The request is nested more than {MAX_DEPTH} deep. Send it with less nesting."


class _Walk:
    """Over one message. Recursion ends at MAX_DEPTH."""

    def __init__(self) -> None:
        self._nodes = 0
        self._found: list[Violation] = []

    def violations(self, message: Message) -> list[Violation]:
        self._visit(message, "", 0)
        return self._found

    def _visit(self, message: Message, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _TooMuch(_TOO_DEEP)
        set_fields = message.ListFields()
        self._count(len(set_fields))
        plan = _plan(message.DESCRIPTOR)
        for field, content in set_fields:
            name = field.name
            limit, is_many, inner = plan.get(name, _NOTHING)
            if is_many:
                self._count(len(content))
                if inner is _LABELS:
                    self._check_labels(content, f"{path}{name}")
                elif inner is not None or limit:
                    self._visit_many(content, limit, inner, f"{path}{name}", depth)
            elif inner is not None:
                self._visit(content, f"{path}{name}.", depth + 1)
            elif limit and len(content) * 4 > limit:
                self._check_text(content, limit, f"{path}{name}")

    def _visit_many(self, content: Any, limit: int, inner: str | None, path: str, depth: int) -> None:
        if inner == _MESSAGE and len(content) > MAX_ELEMENTS:
            self._add(path, f"are {len(content)}; at most {MAX_ELEMENTS} are taken")
            return
        for at, key, each in _elements(content):
            if key is not None:
                self._check_text(key, MAX_TEXT_BYTES, f"{path}[{at}]")
            if inner == _MESSAGE:
                self._visit(each, f"{path}[{at}].", depth + 1)
            elif limit:
                self._check_text(each, limit, f"{path}[{at}]")

    def _check_labels(self, labels: Any, path: str) -> None:
        if len(labels) > MAX_LABELS:
            self._add(path, f"are {len(labels)}; at most {MAX_LABELS} are taken")
            return
        for key, value in labels.items():
            name = f"{path}[{key[:MAX_LABEL_KEY_BYTES]}]"
            self._check_text(key, MAX_LABEL_KEY_BYTES, name, "has a key that")
            self._check_text(value, MAX_LABEL_VALUE_BYTES, name)

    def _check_text(self, content: Any, limit: int, path: str, what: str = "") -> None:
        size = len(content) if isinstance(content, bytes) else len(content.encode())
        if size > limit:
            self._add(path, f"{what} is {size} bytes long; at most {limit} are taken".lstrip())

    def _add(self, path: str, why: str) -> None:
        if len(self._found) < _MOST_TOLD:
            self._found.append(Violation(path, why))

    def _count(self, more: int) -> None:
        self._nodes += more
        if self._nodes > MAX_NODES:
            raise _TooMuch(_TOO_MANY)


_MESSAGE = "message"
_NOTHING = (0, False, None)


def _elements(content: Any) -> Iterator[tuple[Any, str | None, Any]]:
    """(what an error names it by, its key where it is text, the element) of a list or a map."""
    if hasattr(content, "items"):
        for key in content:
            is_text = isinstance(key, str)
            yield (key[:MAX_LABEL_KEY_BYTES] if is_text else key), (key if is_text else None), content[key]
    else:
        for index, each in enumerate(content):
            yield index, None, each


@cache
def _plan(descriptor: contract.MessageType) -> dict[str, tuple[int, bool, str | None]]:
    """Return by field: the limit of its texts (0: none), whether it is repeated, and its content."""
    return {field.name: _of_field(field) for field in descriptor.fields}


def _of_field(field: contract.Field) -> tuple[int, bool, str | None]:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        value = inner.fields_by_name["value"]
        if field.name == _LABELS and value.message_type is None:
            return 0, True, _LABELS
        limit, _, what = _of_field(value)
        return limit, True, what or "scalar"
    if inner is not None:
        return 0, field.is_repeated, _MESSAGE
    return text_limit(field), field.is_repeated, None


def text_limit(field: contract.Field) -> int:
    """Return the bytes that a field's text may have; 0 when it is not a text, or its own rule says."""
    is_text = field.cpp_type == field.CPPTYPE_STRING
    if not is_text or field.full_name in _LIMITED_TOGETHER or _has_own_length(field):
        return 0
    return MAX_DESCRIPTION_BYTES if field.name in _DESCRIPTIONS else MAX_TEXT_BYTES


def _has_own_length(field: contract.Field) -> bool:
    options = contract.message("google.protobuf.FieldOptions").FromString(
        field.GetOptions().SerializeToString()
    )
    rules = options.Extensions[contract.pool().FindExtensionByName("buf.validate.field")]
    rules = rules.repeated.items if field.is_repeated else rules
    return any(
        of_kind.HasField(name)
        for of_kind in (rules.string, rules.bytes)
        for name in _RULES_WITH_A_LENGTH
        if name in of_kind.DESCRIPTOR.fields_by_name
    )
