"""The language that events are filtered by: from text to a tree, and whether an event matches. Pure.

    service.name = 'iam' AND resource.hierarchy.id:'project-e00' AND regex(resource.metadata.name, '^test.*$')

`=` equals, `!=` not equals, `:` contains, `regex(field, 'pattern')`; AND, OR, NOT and brackets. A field with
several values (the hierarchy) matches when one of them does. Patterns are RE2's: no text makes them slow.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from neocloud.core.store.audit_query import EVERYTHING, AllOf, AnyOf, AuditEvent, Condition, Is, Not, Test

MAX_LENGTH = 4096
MAX_DEPTH = 32
_PATTERN_BYTES = 1 << 20
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_][\w.]*)|(?P<sign>!=|[=:(),])|(?P<bad>\S))"""
)
_TESTS = {"=": Test.EQUALS, ":": Test.CONTAINS}


class FilterError(Exception):
    """The text is no filter; the message says where, and what would be right."""


def _of(kind: str) -> Callable[[AuditEvent], Sequence[str]]:
    return lambda event: [event.subject] if event.subject_kind == kind else []


def _level(number: int) -> Callable[[AuditEvent], Sequence[str]]:
    return lambda event: [level[number] for level in json.loads(event.hierarchy or "[]")]


def _column(name: str) -> Callable[[AuditEvent], Sequence[str]]:
    return lambda event: [getattr(event, name)]


_COLUMNS = {
    "action": "action",
    "authentication.subject.name": "subject_name",
    "resource.metadata.id": "resource_id",
    "resource.metadata.name": "resource_name",
    "resource.metadata.type": "resource_kind",
    "service.name": "service",
    "status": "status",
    "type": "type",
}
"""Fields that are columns of an event, so the database can look for them."""
FIELDS: Mapping[str, Callable[[AuditEvent], Sequence[str]]] = {
    **{field: _column(name) for field, name in _COLUMNS.items()},
    "authentication.static_key_credential.id": lambda event: [],
    "authentication.subject.service_account_id": _of("service_account"),
    "authentication.subject.tenant_user_id": _of("user"),
    "authentication.token_credential.masked_token": lambda event: [],
    "resource.hierarchy.id": _level(0),
    "resource.hierarchy.name": _level(1),
}
"""The values of each field in an event. Of keys and tokens nothing is kept."""


@dataclass(frozen=True)
class Compare:
    field: str
    test: Test
    value: str


@dataclass(frozen=True)
class Matches:
    field: str
    pattern: str


@dataclass(frozen=True)
class Both:
    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Either:
    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Without:
    part: "Node"


Node = Compare | Matches | Both | Either | Without


def parse(text: str) -> Node:
    """The tree of a filter; one that lets everything pass when there is none. Raises FilterError."""
    if len(text) > MAX_LENGTH:
        raise FilterError(f"is longer than {MAX_LENGTH} characters; make it shorter")
    return _Parser(text).whole() if text.strip() else Both(())


def matches(node: Node, event: AuditEvent) -> bool:
    match node:
        case Compare(field, Test.EQUALS, value):
            return value in FIELDS[field](event)
        case Compare(field, _, value):
            return any(value in found for found in FIELDS[field](event))
        case Matches(field, pattern):
            return any(_compiled(pattern).search(found) for found in FIELDS[field](event))
        case Both(parts):
            return all(matches(part, event) for part in parts)
        case Either(parts):
            return any(matches(part, event) for part in parts)
        case Without(part):
            return not matches(part, event)


def condition(node: Node) -> Condition:
    """What every event that matches fulfils, for the database: it narrows the search, `matches` decides."""
    match node:
        case Compare(field, test, value) if field in _COLUMNS:
            return Is(_COLUMNS[field], test, value)
        case Compare("resource.hierarchy.id", Test.EQUALS, value):
            return Is("hierarchy", Test.CONTAINS, f"[{json.dumps(value, ensure_ascii=False)}, ")
        case Compare(field, test, value) if field.startswith("authentication.subject."):
            return Is("subject", test, value)
        case Both(parts):
            return AllOf(tuple(condition(part) for part in parts))
        case Either(parts):
            return AnyOf(tuple(condition(part) for part in parts))
        case Without(Compare(field, test, value)) if field in _COLUMNS:
            return Not(Is(_COLUMNS[field], test, value))
    return EVERYTHING


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._either()
        if self._kind() != "end":
            raise self._wrong("AND, OR or the end")
        return node

    def _either(self) -> Node:
        parts = [self._both()]
        while self._takes("OR"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _both(self) -> Node:
        parts = [self._one()]
        while self._takes("AND"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _one(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FilterError(f"is nested more than {MAX_DEPTH} deep; make it simpler")
        node = self._nested()
        self._depth -= 1
        return node

    def _nested(self) -> Node:
        if self._takes("NOT"):
            return Without(self._one())
        if self._takes("("):
            node = self._either()
            self._needs(")")
            return node
        if self._takes("regex"):
            self._needs("(")
            field = self._field()
            self._needs(",")
            pattern = self._value()
            self._needs(")")
            return Matches(field, _checked(pattern))
        return self._compare()

    def _compare(self) -> Node:
        field = self._field()
        sign = self._word()
        if sign not in ("=", "!=", ":"):
            raise self._wrong("=, != or :")
        self._next += 1
        value = self._value()
        if sign == "!=":
            return Without(Compare(field, Test.EQUALS, value))
        return Compare(field, _TESTS[sign], value)

    def _field(self) -> str:
        name = self._word()
        if self._kind() != "word" or name not in FIELDS:
            raise self._wrong(f"a field: {', '.join(sorted(FIELDS))}")
        self._next += 1
        return name

    def _value(self) -> str:
        if self._kind() != "text":
            raise self._wrong("a value in quotes")
        text = self._word()[1:-1]
        self._next += 1
        return re.sub(r"\\(['\"\\])", r"\1", text)

    def _takes(self, word: str) -> bool:
        is_it = self._word() == word and self._kind() != "text"
        self._next += is_it
        return is_it

    def _needs(self, word: str) -> None:
        if not self._takes(word):
            raise self._wrong(word)

    def _kind(self) -> str:
        return self._tokens[self._next][0]

    def _word(self) -> str:
        return self._tokens[self._next][1]

    def _wrong(self, wanted: str) -> FilterError:
        kind, word, place = self._tokens[self._next]
        found = "ends" if kind == "end" else f"has {word!r}"
        return FilterError(f"{found} at character {place + 1}, where {wanted} must be")


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "bad"
        yield kind, found.group(kind), found.start(kind)
    yield "end", "", len(text)


def _checked(pattern: str) -> str:
    try:
        _compiled(pattern)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if error.args else "it cannot be read"
        raise FilterError(f"has {pattern!r}, which is no pattern of RE2: {why}") from None
    return pattern


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    return re2.compile(pattern, options)
