"""The filter language of events: parse text into a tree, and decide whether an event matches. Pure.

    service.name = 'iam' AND resource.hierarchy.id:'project-e00' AND regex(resource.metadata.name, '^test.*$')

`=` equals, `!=` not equals, `:` contains, `regex(field, 'pattern')`; AND, OR, NOT and brackets. A field with
several values (the hierarchy) matches when one of them does. Patterns are RE2's: no text makes them slow.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

from neocloud.core import contract
from neocloud.core.store.audit_query import (
    EVERYTHING,
    OBJECT_METHOD,
    AllOf,
    AnyOf,
    AuditEvent,
    Condition,
    Is,
    Not,
    Test,
)

if TYPE_CHECKING:
    from lark import Token, UnexpectedToken

MAX_LENGTH = 4096
MAX_DEPTH = 32
_PATTERN_BYTES = 1 << 20
_re2: Any = re2  # it has no types
_GRAMMAR = r"""
?either: both (_OR both)*
?both: one (_AND one)*
?one: _NOT one -> without
    | "(" either ")" -> nested
    | _REGEX "(" FIELD "," TEXT ")" -> matches
    | FIELD SIGN TEXT -> compare

_AND: /AND(?![\w.])/
_OR: /OR(?![\w.])/
_NOT: /NOT(?![\w.])/
_REGEX: /regex(?![\w.])/
SIGN: "!=" | "=" | ":"
TEXT: /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"/
FIELD.-1: /[A-Za-z_][\w.]*|\S/
%ignore /\s+/
"""
"""FIELD also takes each character that begins no other token, so that the parser reports it."""
_TESTS = {"=": Test.EQUALS, ":": Test.CONTAINS}


class _Pattern(Protocol):
    """A compiled pattern of RE2."""

    def search(self, text: str) -> object | None: ...


class FilterError(Exception):
    """The text is not a filter; the message says where, and what was expected."""


def access_key_of(event: AuditEvent) -> str:
    """Return the access key that signed a request to an object; "" of other events."""
    if not event.method.startswith(OBJECT_METHOD) or not event.request:
        return ""
    return contract.unpack(contract.message("google.protobuf.Any").FromString(event.request)).access_key_id


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
"""Fields that are columns of an event, so the database can search by them."""
FIELDS: Mapping[str, Callable[[AuditEvent], Sequence[str]]] = {
    **{field: _column(name) for field, name in _COLUMNS.items()},
    "authentication.static_key_credential.id": lambda event: [access_key_of(event)],
    "authentication.subject.service_account_id": _of("service_account"),
    "authentication.subject.tenant_user_id": _of("user"),
    "authentication.token_credential.masked_token": lambda event: [],
    "resource.hierarchy.id": _level(0),
    "resource.hierarchy.name": _level(1),
}
"""The values of each field in an event. Tokens are not stored, so their field has no values."""
_EXPECTED = {
    "FIELD": f"a field: {', '.join(sorted(FIELDS))}",
    "SIGN": "=, != or :",
    "TEXT": "a value in quotes",
    "LPAR": "(",
    "COMMA": ",",
    "RPAR": ")",
}
"""How an error names what the grammar accepts; the first that fits."""
_AT_END = "AND, OR or the end"
"""How an error names what may follow a whole filter."""


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
    """Return the tree of a filter; an empty text matches every event. Raise FilterError."""
    if len(text) > MAX_LENGTH:
        raise FilterError(f"is longer than {MAX_LENGTH} characters; make it shorter")
    if not text.strip():
        return Both(())
    from lark import UnexpectedToken  # noqa: PLC0415 - loaded by the first filter

    try:
        return _parser()(text).node
    except UnexpectedToken as error:
        raise _wrong(error, text) from None


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
    """Return a condition for the database that every matching event meets; `matches` decides."""
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
        case _:
            return EVERYTHING


@dataclass(frozen=True)
class _Part:
    """A node while the text is parsed, with its depth: brackets and NOT count."""

    node: Node
    depth: int = 1

    def inside(self, node: Node) -> "_Part":
        if self.depth >= MAX_DEPTH:
            raise FilterError(f"is nested more than {MAX_DEPTH} deep; make it simpler")
        return _Part(node, self.depth + 1)


class _Nodes:
    """Makes nodes of the grammar's rules; the parser calls the method named like the rule."""

    def either(self, parts: Sequence[_Part]) -> _Part:
        return _Part(Either(tuple(part.node for part in parts)), max(part.depth for part in parts))

    def both(self, parts: Sequence[_Part]) -> _Part:
        return _Part(Both(tuple(part.node for part in parts)), max(part.depth for part in parts))

    def without(self, parts: Sequence[_Part]) -> _Part:
        return parts[0].inside(Without(parts[0].node))

    def nested(self, parts: Sequence[_Part]) -> _Part:
        return parts[0].inside(parts[0].node)

    def matches(self, tokens: Sequence[str]) -> _Part:
        field, pattern = tokens
        return _Part(Matches(str(field), _checked(_unquoted(pattern))))

    def compare(self, tokens: Sequence[str]) -> _Part:
        field, sign, value = tokens
        if sign == "!=":
            return _Part(Without(Compare(str(field), Test.EQUALS, _unquoted(value))))
        return _Part(Compare(str(field), _TESTS[sign], _unquoted(value)))


@cache
def _parser() -> Callable[[str], _Part]:
    """Return the parser. It is built at the first filter, so that a server starts without it."""
    from lark import Lark, Token  # noqa: PLC0415 - loaded by the first filter

    def check(token: Token) -> Token:
        return token if token in FIELDS else token.update(type="UNKNOWN")

    parser = Lark(
        _GRAMMAR,
        start="either",
        parser="lalr",
        lexer="basic",
        transformer=_Nodes(),  # pyright: ignore[reportArgumentType] - any object with the names of the rules
        lexer_callbacks={"FIELD": check},
    )
    return cast("Callable[[str], _Part]", parser.parse)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(['\"\\])", r"\1", text[1:-1])


def _wrong(error: "UnexpectedToken", text: str) -> FilterError:
    """Say where the text goes wrong, and what the grammar accepts there."""
    wanted = next((words for name, words in _EXPECTED.items() if name in error.accepts), _AT_END)
    token: Token = error.token
    if token.type == "$END":
        return FilterError(f"ends at character {len(text) + 1}, where {wanted} must be")
    return FilterError(
        f"has {str(token)!r} at character {(token.start_pos or 0) + 1}, where {wanted} must be"
    )


def _checked(pattern: str) -> str:
    try:
        _compiled(pattern)
    except _re2.error as error:
        why = error.args[0].decode(errors="replace") if error.args else "it cannot be read"
        raise FilterError(f"has {pattern!r}, which is not a pattern of RE2: {why}") from None
    return pattern


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> _Pattern:
    options = _re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    return _re2.compile(pattern, options)
