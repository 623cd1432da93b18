"""Estimate what a grammar (EBNF or Lark) costs to compile, and refuse one that cannot compile."""

import re

from neocloud.model_gateway.api.errors import bad_request
from neocloud.model_gateway.compiled.expressions import Cost, expression_cost, too_costly
from neocloud.model_gateway.compiled.loops import find_loop

MAX_GRAMMAR_WEIGHT = 20_000
MAX_GRAMMAR_ALTERNATIVES = 5_000

_TEXT, _CLASS = r'(?P<text>"(?:[^"\\\n]|\\.)*+"i?)', r"(?P<kept>\[(?:[^\]\\]|\\.)*+\])"
_GROUP = r"(?P<open>\[)|(?P<close>\])"
_TIMES = r"(?P<times>~\s*+\d++(?:\s*+\.\.\s*+\d++)?+)"
_OTHERS = (
    r"(?P<expression>/(?:[^/\\\n]|\\.)++/)",
    r"(?P<comment>(?:\#|//)[^\n]*+)",
    r"(?P<name>[\w-]++)",
    r"(?P<bounds>\{[\d,\s]*+\})",
)
_PART = re.compile("|".join((_TEXT, _CLASS, *_OTHERS)), re.DOTALL)
_PART_OF_LARK = re.compile("|".join((_TEXT, _GROUP, _TIMES, *_OTHERS)), re.DOTALL)
"""Brackets are a group in Lark, which may be missing, and no class; `~` is a repetition."""
_EMPTY_RULE = re.compile(r"(?<![\w-])([\w-]++)\s*+::=(?:\s|#[^\n]*+)*+(?=\Z|[\w-]++\s*+::=)")
"""A rule without a right side, before another rule or the end."""
_COMMENT = re.compile(r"(#|//).*$")
_INLINE = re.compile(r"%(?:json|regex|lark)\b")
"""A directive of Lark whose content is compiled, too: a schema, an expression or a grammar of its own."""


def add_grammar(text: str, param: str, cost: Cost) -> None:
    """Raises OpenAiError 400 where the grammar costs too much or has a rule without content."""
    empty = _EMPTY_RULE.search(text)
    if empty:
        found = f"{param} does not compile: its rule {empty[1][:64]!r} has nothing behind `::=`."
        raise bad_request(f"{found} Write what the rule stands for.", param=param, code="invalid_value")
    inline = _INLINE.search(text)
    if inline:
        found = f"{param} has {inline[0]}, which is not supported in a grammar."
        advice = "Send the schema as structured_outputs.json or the expression as structured_outputs.regex."
        raise bad_request(f"{found} {advice}", param=param, code="invalid_value")
    is_lark = _is_lark(text)
    loop = find_loop(text, is_lark=is_lark)
    if loop:
        found = f"{param} does not end: its rule {loop[:64]!r} may stand for nothing but itself."
        raise bad_request(f"{found} Put something beside it.", param=param, code="invalid_value")
    for literal in _PART.finditer(text):
        if literal.lastgroup == "text":
            cost.add_literal(literal[0], param)
    weight, alternatives, wide = expression_cost(_as_expression(text, is_lark=is_lark))
    if weight > MAX_GRAMMAR_WEIGHT:
        raise too_costly(
            param,
            f"repeats too much: its names, texts and classes, each counted as often as the repetitions around"
            f" them say, are more than {MAX_GRAMMAR_WEIGHT:,}",
        )
    if alternatives > MAX_GRAMMAR_ALTERNATIVES:
        raise too_costly(param, f"has more than {MAX_GRAMMAR_ALTERNATIVES:,} alternatives")
    cost.weight += weight
    cost.add_wide(wide, param)


def _is_lark(text: str) -> bool:
    """Return whether the model server reads it as Lark: as vLLM tells it, by `::=` outside of comments."""
    return not any("::=" in _COMMENT.sub("", line) for line in text.split("\n"))


def _as_expression(text: str, *, is_lark: bool) -> str:
    """Return an expression with one character for each text and name, and the operators as they are."""

    def part(match: re.Match[str]) -> str:
        kind, found = match.lastgroup, match[0]
        if kind == "comment":
            return ""
        if kind == "expression":
            return f"({found[1:-1]})"
        if kind in ("open", "close"):
            return "(" if kind == "open" else ")?"
        if kind == "times":
            return "{" + re.sub(r"[~\s]", "", found).replace("..", ",") + "}"
        return found if kind in ("kept", "bounds") else "x"

    return re.sub(r"\s+", "", (_PART_OF_LARK if is_lark else _PART).sub(part, text))
