"""Check messages against the contract: its annotations, and the few rules that all resources share.

Pure: sees messages, not the store. What is special to a kind belongs into its service's rules.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import protovalidate

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation

MAX_NAME_BYTES = 1024
OWN_PACKAGE = "neocloud."
NAMED_BY_RULES = "NAMED_BY_RULES"
"""Stands beside the contract's behaviors of a kind whose rules say what a name may be."""
RESERVED_LABELS = "neocloud.dev/"
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_VALIDATOR = protovalidate.Validator()


def annotation_violations(message: Any) -> list[Violation]:
    """What the field annotations (required, ranges, patterns, CEL) say against this message."""
    found = _VALIDATOR.collect_violations(message)
    return [Violation(_path(violation), violation.proto.message) for violation in found]


def check(message: Any) -> None:
    """Raise ApiError when the message breaks its annotations."""
    violations = annotation_violations(message)
    if violations:
        raise contract.bad_request(violations)


def check_request(rules: Rules, request: Any) -> None:
    """Raise ApiError when the kind's rules refuse the request by itself. Not for a transaction."""
    if violations := list(rules.request_violations(request)):
        raise contract.bad_request(violations)


def check_present(message: Any, *fields: str) -> None:
    """Raise ApiError when one of these text fields is empty; annotations do not say it everywhere."""
    missing = [name for name in fields if not getattr(message, name)]
    if missing:
        raise contract.bad_request((name, "is required") for name in missing)


def refuse_unserved(message: Any, served: Collection[str]) -> None:
    """Raise ApiError for a set field that nothing here honours; ignoring it would change what was asked."""
    unserved = [field.name for field, _ in message.ListFields() if field.name not in served]
    if unserved:
        raise contract.bad_request(
            (name, "is not supported by this cloud; leave it unset") for name in unserved
        )


def name_violations(kind: str, behaviors: Collection[str], new: str, old: str | None) -> Iterator[Violation]:
    """What is wrong with the name of a resource; `old` is None for a new one."""
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


def immutable_violations(new: Any, old: Any, path: str = "") -> Iterator[Violation]:
    """Fields that are set once and differ now."""
    known = contract.message_annotations(new.DESCRIPTOR)
    for field in new.DESCRIPTOR.fields:
        name = f"{path}{field.name}"
        before, after = getattr(old, field.name), getattr(new, field.name)
        if "IMMUTABLE" in known[field.name].behaviors:
            if before != after or _presence(old, field) != _presence(new, field):
                yield Violation(name, "cannot be changed after creation; create a new resource instead")
        elif field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        elif not field.is_repeated:
            yield from immutable_violations(after, before, f"{name}.")
        elif len(before) == len(after):
            for index, (old_item, new_item) in enumerate(zip(before, after, strict=True)):
                yield from immutable_violations(new_item, old_item, f"{name}[{index}].")


def _presence(message: Any, field: Any) -> bool:
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
