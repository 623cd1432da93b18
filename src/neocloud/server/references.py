"""Ids of other resources that a request names: found by the contract's own `nid` annotation.

A caller who names a resource in a request must be allowed to see it; otherwise a subnet, a disk or a service
account of another tenant could be used, or found out about, through a resource of one's own. Covers every
kind and method there is: an annotated field needs no further code. What the method itself is about (its id,
its parent) is the permission check's business and not looked at here.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Kind

_SUBJECT_FIELDS = frozenset({"id", "parent_id", "metadata"})
"""On the request itself: what the method is about."""
_ANY_KIND = "*"


def references(request: Any) -> Iterator[tuple[str, str]]:
    """(field path, id) of each resource that the request names besides its own."""
    for field, content in request.ListFields():
        if field.name not in _SUBJECT_FIELDS:
            yield from _in_field(request.DESCRIPTOR, field, content, field.name)


def spec_references(spec: Any) -> Iterator[tuple[str, str]]:
    """The same for the spec of a resource that is there already."""
    yield from _in_message(spec, "spec.")


def acting_prefixes(kinds: Iterable[Kind]) -> frozenset[str]:
    """Id prefixes of accounts: kinds that a resource acts as when it names one. To name those needs more than
    to see them."""
    return frozenset(kind.id_prefix for kind in kinds if kind.reference_verb != Kind.reference_verb)


def acts_as(spec: Any, prefixes: frozenset[str]) -> frozenset[str]:
    """Ids of the accounts that a resource with this spec acts as."""
    return frozenset(named for _, named in spec_references(spec) if contract.id_prefix(named) in prefixes)


def _in_message(message: Any, path: str) -> Iterator[tuple[str, str]]:
    if not _may_name_others(message.DESCRIPTOR):
        return
    for field, content in message.ListFields():
        yield from _in_field(message.DESCRIPTOR, field, content, f"{path}{field.name}")


def _in_field(owner: Any, field: Any, content: Any, path: str) -> Iterator[tuple[str, str]]:
    if field.message_type is None:
        if _is_reference(owner, field):
            values = enumerate(content) if field.is_repeated else ((None, content),)
            yield from ((path if at is None else f"{path}[{at}]", value) for at, value in values if value)
    elif not field.is_repeated:
        yield from _in_message(content, f"{path}.")
    elif field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is not None:
            for key in content:
                yield from _in_message(content[key], f"{path}[{key}].")
    else:
        for index, item in enumerate(content):
            yield from _in_message(item, f"{path}[{index}].")


def _is_reference(owner: Any, field: Any) -> bool:
    nid = contract.message_annotations(owner)[field.name].nid
    return nid is not None and _ANY_KIND not in nid.resources


@cache
def _may_name_others(descriptor: Any) -> bool:
    """Worked out once: most messages name nobody."""
    seen: set[str] = set()

    def search(current: Any) -> bool:
        if current.full_name in seen:
            return False
        seen.add(current.full_name)
        return any(
            _is_reference(current, field) if field.message_type is None else search(field.message_type)
            for field in current.fields
        )

    return search(descriptor)
