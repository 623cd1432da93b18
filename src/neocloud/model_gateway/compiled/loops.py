"""Find a rule of a grammar that may stand for nothing but itself.

Such a rule is of no use, and xgrammar 0.2.8 follows it without end where a repetition leads back, until the
stack of the model server is full: `start: start?` ends the process that serves all callers.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

_TEXT = r'"(?P<text>(?:[^"\\\n]|\\.)*+)"i?'
_EXPRESSION = r"(?P<expression>/(?:[^/\\\n]|\\.)++/\w*+)"
_REPETITION = r"(?P<repetition>\{[\d,\s]*+\}|~\s*+\d++(?:\s*+\.\.\s*+\d++)?+)"
_SIGNS = r"(?P<open>[(\[])|(?P<close>[)\]])|(?P<or>\|)"
_COMMENT = r"(?P<comment>(?:\#|//)[^\n]*+)"
_EBNF = re.compile(
    "|".join(
        (
            *(_COMMENT, _TEXT, r"(?P<rule>[\w-]++)\s*+::=", r"(?P<class>\[(?:[^\]\\]|\\.)*+\])"),
            *(_REPETITION, _SIGNS, r"(?P<name>[\w-]++)"),
        )
    ),
    re.DOTALL,
)
_ATTRIBUTES = r"(?:\.-?\d++)?+(?:\[[^\]\n]*+\])?+(?:\{[^}\n]*+\})?+"
_LARK = re.compile(
    "|".join(
        (
            *(_EXPRESSION, _COMMENT, _TEXT, rf"(?P<rule>[\w-]++){_ATTRIBUTES}\s*+:", r"(?P<directive>%\w++)"),
            *(_REPETITION, r"->\s*+\w++", _SIGNS, r"(?P<name>[\w-]++)"),
        )
    ),
    re.DOTALL,
)


def find_loop(text: str, *, is_lark: bool) -> str | None:
    """Return the name of such a rule, None where there is none. Takes time in proportion to the text."""
    rules: dict[str, set[str]] = {}
    for name, body in _bodies(text, _LARK if is_lark else _EBNF):
        rules.setdefault(name, set()).update(_alone(body))
    try:
        TopologicalSorter(rules).prepare()
    except CycleError as error:
        return str(error.args[1][0])
    return None


def _bodies(text: str, part: re.Pattern[str]) -> Iterator[tuple[str, list[re.Match[str]]]]:
    """Yield each rule with its parts; directives have no name."""
    name, body = "", list[re.Match[str]]()
    for found in part.finditer(text):
        if found.lastgroup in ("rule", "directive"):
            yield name, body
            name, body = found["rule"] or "", []
        else:
            body.append(found)
    yield name, body


@dataclass
class _Group:
    alone: set[str] = field(default_factory=set[str])
    """Names that this group may stand for."""
    items: list[set[str]] = field(default_factory=list[set[str]])
    """Items of its last alternative: what each of them may stand for. Empty texts are none."""
    is_empty: bool = True

    def end_alternative(self) -> None:
        self.is_empty = self.is_empty and not self.items
        if len(self.items) == 1:
            self.alone |= self.items[0]
        self.items = []


def _alone(body: list[re.Match[str]]) -> set[str]:
    """Return the names that the rule may stand for, with nothing beside them."""
    groups = [_Group()]
    for found in body:
        kind, last = found.lastgroup, groups[-1]
        if kind == "open":
            groups.append(_Group())
        elif kind == "close" and len(groups) > 1:
            _close(groups)
        elif kind == "or":
            last.end_alternative()
        elif kind == "name":
            last.items.append({found[0]})
        elif kind in ("class", "expression") or (kind == "text" and found["text"]):
            last.items.append(set())
    while len(groups) > 1:
        _close(groups)
    groups[0].end_alternative()
    return groups[0].alone


def _close(groups: list[_Group]) -> None:
    closed = groups.pop()
    closed.end_alternative()
    if not closed.is_empty:
        groups[-1].items.append(closed.alone)
