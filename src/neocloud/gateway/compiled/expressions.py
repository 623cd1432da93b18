# pyright: strict
"""Estimate what a regular expression costs to compile, and refuse what costs too much.

The estimate is a sum over the characters and classes of the expression: each counts as often as the
repetitions of the groups around it say. Where engines differ, it counts more.
"""

import re
from dataclasses import dataclass, field

from neocloud.gateway.api.errors import OpenAiError, bad_request

MAX_EXPRESSION_BYTES = 4096
MAX_WEIGHT = 10_000
"""Of all expressions of a request together."""
MAX_ALTERNATIVES = 500
"""Of all expressions of a request together."""
WIDE, NARROW = 20, 3
"""Weight of a class that most tokens of a vocabulary match, and of another class; a character weighs 1."""
OPEN_REPETITION = 10
"""A repetition without an upper bound counts as so many."""
_MOST = 10**9

_BOUNDS = re.compile(r"\{(\d*)(,?)(\d*)\}")
_WIDE_ESCAPES = "wWDSpPX"
_MANY = re.compile(r"\^|\\[wWDSpPux]|[^\x00-\x7f]")
"""In a class: it is negated, or has a class or characters beyond ASCII."""


@dataclass
class Cost:
    """What a request gives the model server to compile, as far as it was read."""

    weight: int = 0
    alternatives: int = 0
    beside: int = 0
    """Weight of what no bound counts: it makes a turn longer."""
    lengths: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Limits of the length of texts, each of which is compiled once."""

    def add_expression(self, text: str, param: str) -> None:
        """Raises OpenAiError 400 where this expression, or all of them together, cost too much."""
        if len(text.encode("utf-8", "surrogatepass")) > MAX_EXPRESSION_BYTES:
            raise too_costly(param, f"is larger than {MAX_EXPRESSION_BYTES} bytes")
        weight, alternatives = expression_cost(text)
        self.add(weight, alternatives, param)

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

    def put(self, weight: int, *, is_single: bool) -> None:
        self.weight += self.last
        self.last, self.is_single = weight, is_single

    def repeat(self, least: int, most: int | None) -> None:
        times = max(least + OPEN_REPETITION if most is None else max(least, most), 1)
        if self.is_single:
            self.last = min(self.last + times - 1, _MOST)
        else:
            self.last = min(self.last * times, _MOST)
        self.is_single = False

    @property
    def total(self) -> int:
        return min(self.weight + self.last, _MOST)


def expression_cost(text: str) -> tuple[int, int]:
    """Return (weight, alternatives). Takes time in proportion to the text."""
    groups = [_Group()]
    alternatives = place = 0
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
            group.repeat(*_times(bounds))
        else:
            weight, place = _single(text, sign, place)
            group.put(weight, is_single=True)
    while len(groups) > 1:
        closed = groups.pop()
        groups[-1].put(closed.total, is_single=False)
    return groups[0].total, alternatives


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
