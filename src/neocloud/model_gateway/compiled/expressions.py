"""Estimate what a regular expression costs to compile, and refuse what costs too much.

The estimate is a sum over the characters and classes of the expression: each counts as often as the
repetitions of the groups around it say. Where engines differ, it counts more.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from neocloud.model_gateway.api.errors import OpenAiError, bad_request

MAX_EXPRESSION_BYTES = 4096
MAX_WEIGHT = 10_000
"""Weight of all expressions of a request together."""
MAX_LITERAL = 8_192
"""Characters of a text that is compiled as it is."""
LITERAL_OF_WEIGHT = 50_000
"""The square of its length, divided by this, weighs one: two of 4,000 that begin alike take 3 s."""
MAX_ALTERNATIVES = 500
"""Alternatives of all expressions of a request together."""
MAX_WIDE, LONGEST_WIDE, WEIGHT_OF_WIDE = 2_000, 100, 5
"""Characters of a request that a class of letters or a wider one stands for, each of which takes some 50 ms
with 150,000 tokens; how many of one repetition count: tokens are not longer; and the weight of each, which
makes a turn longer."""
WIDE, NARROW = 20, 3
"""Weight of a class that most tokens of a vocabulary match, and of another class; a character weighs 1."""
OPEN_REPETITION = 10
"""A repetition without an upper bound counts as so many."""
_MOST = 10**9

_BOUNDS = re.compile(r"\{(\d*)(,?)(\d*)\}")
_WIDE_ESCAPES = "wWDSpPX"
_MANY = re.compile(r"\^|\\[wWDSpPux]|[^\x00-\x7f]")
"""In a class: it is negated, or has a class or characters beyond ASCII."""
_LETTERS = re.compile(r"[A-Za-z]-[A-Za-z]")


class ExpressionCost(NamedTuple):
    weight: int
    alternatives: int
    wide: int
    """Characters that classes of letters stand for in repetitions with a number."""


@dataclass
class Cost:
    """The cost for the model server of compiling a request, as far as it was read."""

    weight: int = 0
    alternatives: int = 0
    beside: int = 0
    """Weight of what no bound counts: it makes a turn longer."""
    wide: int = 0
    lengths: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Limits of the length of texts, each of which is compiled once."""

    def add_expression(self, text: str, param: str) -> None:
        """Raises OpenAiError 400 where this expression, or all of them together, cost too much."""
        if len(text.encode("utf-8", "surrogatepass")) > MAX_EXPRESSION_BYTES:
            raise too_costly(param, f"is larger than {MAX_EXPRESSION_BYTES} bytes")
        weight, alternatives, wide = expression_cost(text)
        self.add(weight, alternatives, param)
        self.add_wide(wide, param)

    def add_wide(self, wide: int, param: str) -> None:
        """Raises OpenAiError 400."""
        self.wide += wide
        self.beside += wide * WEIGHT_OF_WIDE
        if self.wide > MAX_WIDE:
            found = f"has repetitions of classes of letters, or exact lengths, of more than {MAX_WIDE:,}"
            raise too_costly(param, f"{found} characters in this request")

    def add_literal(self, text: str, param: str) -> None:
        """Raises OpenAiError 400 where a text that is compiled as it is is too long."""
        if len(text) > MAX_LITERAL:
            raise too_costly(param, f"has a text of more than {MAX_LITERAL:,} characters")
        self.beside += len(text) ** 2 // LITERAL_OF_WEIGHT

    def add(self, weight: int, alternatives: int, param: str) -> None:
        """Raises OpenAiError 400."""
        self.weight += weight
        self.alternatives += alternatives
        if self.weight > MAX_WEIGHT:
            raise too_costly(
                param,
                "repeats too much: its characters and classes, each counted as often as the repetitions"
                f" around it say, are more than {MAX_WEIGHT:,} in this request",
            )
        if self.alternatives > MAX_ALTERNATIVES:
            raise too_costly(param, f"has more than {MAX_ALTERNATIVES} alternatives in this request")


def too_costly(param: str, found: str) -> OpenAiError:
    message = f"{param} {found}, and the model server would have to compile it. Use something simpler."
    return bad_request(message, param=param, code="invalid_value")


@dataclass
class _Group:
    weight: int = 0
    last: int = 0
    """Weight of its last item, which a repetition may follow."""
    is_single: bool = True
    """The last item is a character or a class."""
    is_wide: bool = False
    """The last item is a class of letters, or a wider one."""

    def put(self, weight: int, *, is_single: bool, is_wide: bool = False) -> None:
        self.weight += self.last
        self.last, self.is_single, self.is_wide = weight, is_single, is_wide

    def repeat(self, least: int, most: int | None) -> int:
        """Repeat the last item. Return how many characters of a class of letters that is."""
        times = max(least + OPEN_REPETITION if most is None else max(least, most), 1)
        wide = max(least, most or 0) if self.is_wide else 0
        if self.is_single:
            self.last = min(self.last + times - 1, _MOST)
        else:
            self.last = min(self.last * times, _MOST)
        self.is_single = self.is_wide = False
        return min(wide, LONGEST_WIDE) if wide > 1 else 0

    @property
    def total(self) -> int:
        return min(self.weight + self.last, _MOST)


def expression_cost(text: str) -> ExpressionCost:
    """Takes time in proportion to the text."""
    groups = [_Group()]
    alternatives = wide = place = 0
    while place < len(text):
        sign, group = text[place], groups[-1]
        place += 1
        if sign == "(":
            groups.append(_Group())
        elif sign == ")":
            if len(groups) > 1:
                closed = groups.pop()
                groups[-1].put(closed.total, is_single=False)
        elif sign == "|":
            alternatives += 1
            group.put(0, is_single=False)
        elif sign in "*+":
            group.repeat(int(sign == "+"), None)
        elif sign == "?":
            group.repeat(0, 1)
        elif sign == "{" and (bounds := _BOUNDS.match(text, place - 1)) and bounds[0] not in ("{}", "{,}"):
            place = bounds.end()
            wide += group.repeat(*_times(bounds))
        else:
            weight, end = _single(text, sign, place)
            is_wide = weight == WIDE or (sign == "[" and _LETTERS.search(text[place:end]) is not None)
            group.put(weight, is_single=True, is_wide=is_wide)
            place = end
    while len(groups) > 1:
        closed = groups.pop()
        groups[-1].put(closed.total, is_single=False)
    return ExpressionCost(groups[0].total, alternatives, wide)


def _times(bounds: re.Match[str]) -> tuple[int, int | None]:
    least, most = (min(int(each[:10] or 0), _MOST) for each in (bounds[1], bounds[3]))
    if not bounds[2]:
        return least, least
    return least, most if bounds[3] else None


def _single(text: str, sign: str, place: int) -> tuple[int, int]:
    """Return the weight of a character or class that began with `sign`, and the place behind it."""
    if sign == ".":
        return WIDE, place
    if sign == "\\":
        return (WIDE if text[place : place + 1] in _WIDE_ESCAPES else 1), place + 1
    if sign != "[":
        return (1 if sign.isascii() else NARROW), place
    end = place
    while end < len(text) and text[end] != "]":
        end += 2 if text[end] == "\\" else 1
    inside = text[place:end]
    return (WIDE if _MANY.search(inside) else NARROW), end + 1
