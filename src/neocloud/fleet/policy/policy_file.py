"""Reads policy.yaml, and refuses what is wrong in it with file, line and reason."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TypeVar, cast

import yaml

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy import (
    ANY,
    CodeKind,
    DriverRange,
    Escalation,
    FaultScope,
    Limit,
    Per,
    Policy,
    PolicySource,
    Repetition,
    Rule,
    Severity,
    Statement,
    Word,
    version_of,
)

FORMAT = 1
MOST_CHARACTERS = 1 << 20
MOST_CODES = 2000
"""Codes of one row."""
_CODE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?|[a-z][a-z0-9_]{0,63}")
_LIMIT = re.compile(r"(over|below) (-?\d{1,12}(?:\.\d{1,6})?)(?: per (\w+))?")
_DURATION = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RANGE_PART = re.compile(r"(>=|<)([\d.]{1,30})")
_Choice = TypeVar("_Choice", bound=StrEnum)


class PolicyError(ValueError):
    """The policy cannot be used; says file, line and reason."""


@cache
def default_policy() -> Policy:
    """Return the policy that ships with Neocloud."""
    place = files("neocloud.fleet.policy").joinpath("policy.yaml")
    return load_policy(place.read_text(encoding="utf-8"), "policy.yaml")


def load_policy(text: str, file: str) -> Policy:
    """Return the policy in the text. Raises PolicyError; `file` is what it names."""
    top = _Fields(composed(text, file, MOST_CHARACTERS), file)
    if top.number("version") != FORMAT:
        raise top.error(f"the format is not version {FORMAT}, which this release reads", "version")
    updated = top.text("updated")
    sources = {name: _source(name, each) for name, each in top.mapping("sources")}
    generations = {name: frozenset(types) for name, types in top.lists("generations")}
    burst_s = top.duration("burst") or 0
    repetition = [_repetition(each, sources) for each in top.rows("repetition", or_none=True)]
    rules = [_rule(each, sources, generations) for each in top.rows("rules")]
    top.finish()
    _refuse_overlaps(rules, file)
    return Policy(updated, sources, generations, rules, repetition, burst_s)


def composed(text: str, file: str, most_characters: int) -> yaml.Node | None:
    """Return the YAML of a file, with its lines. Raises PolicyError."""
    if len(text) > most_characters:
        raise PolicyError(f"{file}, line 1: the file has more than {most_characters:,} characters")
    try:
        return cast(yaml.Node | None, yaml.compose(text, Loader=yaml.CSafeLoader))  # pyright: ignore[reportUnknownMemberType]
    except (yaml.YAMLError, RecursionError, UnicodeEncodeError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise PolicyError(f"{file}, line {mark.line + 1 if mark else 1}: {problem}") from None


def _source(name: str, fields: "_Fields") -> PolicySource:
    title, version, url = fields.text("title"), fields.text("version"), fields.text("url", "")
    words = {word: _word(word, each) for word, each in fields.mapping("words", or_none=True)}
    fields.finish()
    return PolicySource(name, title, version, url, words)


def _word(text: str, fields: "_Fields") -> Word:
    action, severity = fields.choice("action", Action), fields.choice("severity", Severity)
    word = Word(text, action, severity, fields.text("means", ""))
    fields.finish()
    return word


def _rule(fields: "_Fields", sources: Mapping[str, PolicySource], generations: Mapping[str, object]) -> Rule:
    kind, codes = _codes(fields)
    rule = Rule(
        kind=kind,
        codes=codes,
        name=fields.text("name"),
        meaning=fields.text("meaning"),
        severity=fields.required("severity", Severity),
        action=fields.required("action", Action),
        scope=fields.required("scope", FaultScope),
        why=fields.text("why", ""),
        detail=fields.text("detail", ""),
        generations=frozenset(fields.texts("generations", or_none=True)),
        drivers=_drivers(fields),
        announced_from=fields.number("announced_from", 0),
        limit=_limit(fields),
        statements=tuple(_statement(fields, kind, sources, *each) for each in fields.pairs("says")),
        escalations=tuple(_escalation(each, sources) for each in fields.rows("escalate", or_none=True)),
        line=fields.line,
    )
    fields.finish()
    if unlisted := rule.generations - generations.keys():
        raise fields.error(f"{min(unlisted)!r} is not one of the generations", "generations")
    _check(rule, fields)
    return rule


def _check(rule: Rule, fields: "_Fields") -> None:
    if rule.severity is Severity.UNKNOWN:
        raise fields.error("the severity of a row is not unknown; leave the row out", "severity")
    if (rule.limit is None) is (rule.kind is CodeKind.COUNTER):
        raise fields.error("a counter has a limit, and nothing else has", "limit")
    if ANY in rule.codes and (len(rule.codes) > 1 or not rule.detail):
        raise fields.error(f"a row for [{ANY}] has no other code, and a detail")
    if not rule.why and rule.conflict is not None:
        raise fields.error(f"the sources disagree about the {rule.conflict}, and there is no `why`")
    if not rule.why and not rule.statements:
        raise fields.error("there is neither a source nor a `why`")


def _codes(fields: "_Fields") -> tuple[CodeKind, tuple[str, ...]]:
    kinds = [kind for kind in CodeKind if kind in fields]
    if len(kinds) != 1:
        raise fields.error(f"a row has one of {', '.join(CodeKind)}, with its codes")
    kind, codes = kinds[0], list[str]()
    for text in fields.texts(kinds[0]):
        match = _CODE.fullmatch(text)
        if match is None or (text != ANY and (kind in (CodeKind.XID, CodeKind.SXID)) != bool(match[1])):
            raise fields.error(f"{text[:40]!r} is not a code of {kind}", kind)
        first, last = int(match[1] or 0), int(match[2] or match[1] or 0)
        if not 0 <= last - first < MOST_CODES:
            raise fields.error(f"{text!r} is not a range of fewer than {MOST_CODES} codes", kind)
        codes += [str(number) for number in range(first, last + 1)] if match[1] else [text]
    if not codes or len(set(codes)) != len(codes) or len(codes) > MOST_CODES:
        raise fields.error(f"there are no codes, or one twice, or more than {MOST_CODES}", kind)
    return kind, tuple(codes)


def _statement(
    fields: "_Fields", kind: CodeKind, sources: Mapping[str, PolicySource], name: str, text: str
) -> Statement:
    source = sources.get(name)
    if source is None:
        raise fields.error(f"{name!r} is not one of the sources", "says")
    if kind is CodeKind.COUNTER:
        if _LIMIT.fullmatch(text) is None:
            raise fields.error(f"{text!r} is not a limit such as over 0", "says")
        return Statement(source, Word(text))
    if text not in source.words:
        raise fields.error(f"{text!r} is not one of the words of {name}", "says")
    return Statement(source, source.words[text])


def _escalation(fields: "_Fields", sources: Mapping[str, PolicySource]) -> Escalation:
    count, lasting = fields.number("count", 0), fields.duration("lasting")
    if bool(count) is (lasting is not None):
        raise fields.error("an escalation has a `count`, or it is `lasting`")
    found = Escalation(
        action=fields.required("action", Action),
        source=_named(fields, sources),
        severity=fields.choice("severity", Severity),
        count=count,
        within_s=fields.duration("within", is_required=bool(count)),
        per=fields.required("per", Per) if count else Per.NODE,
        lasting_s=lasting,
    )
    fields.finish()
    return found


def _repetition(fields: "_Fields", sources: Mapping[str, PolicySource]) -> Repetition:
    found = Repetition(
        name=fields.text("name"),
        kind=fields.text("kind"),
        count=fields.number("count"),
        within_s=fields.duration("within", is_required=True),
        per=fields.required("per", Per),
        action=fields.required("action", Action),
        source=_named(fields, sources),
        severity=fields.choice("severity", Severity),
    )
    fields.finish()
    return found


def _named(fields: "_Fields", sources: Mapping[str, PolicySource]) -> PolicySource:
    name = fields.text("source")
    if name not in sources:
        raise fields.error(f"{name!r} is not one of the sources", "source")
    return sources[name]


def _limit(fields: "_Fields") -> Limit | None:
    text = fields.text("limit", "")
    if not text:
        return None
    match = _LIMIT.fullmatch(text)
    per = seconds_of(match[3]) if match and match[3] else None
    if match is None or (match[3] and per is None):
        raise fields.error(f"{text!r} is not a limit such as over 0, below 16 or over 120 per 1h", "limit")
    return Limit(match[1] == "over", float(match[2]), per, text)


def _drivers(fields: "_Fields") -> DriverRange:
    text = fields.text("drivers", "")
    bounds: dict[str, tuple[int, ...]] = {}
    for part in text.split(",") if text else ():
        match = _RANGE_PART.fullmatch(part.strip())
        if match is None or match[1] in bounds:
            raise fields.error(f"{text!r} is not a range such as >=550,<575", "drivers")
        try:
            bounds[match[1]] = version_of(match[2])
        except ValueError as error:
            raise fields.error(str(error), "drivers") from None
    return DriverRange(bounds.get(">=", ()), bounds.get("<"), text)


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time such as 30m; None for another text."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def _refuse_overlaps(rules: Iterable[Rule], file: str) -> None:
    by_code: dict[tuple[CodeKind, str], list[Rule]] = {}
    for rule in rules:
        for code in rule.codes:
            others = by_code.setdefault((rule.kind, code), [])
            if other := next((each for each in others if each.overlaps(rule)), None):
                raise PolicyError(
                    f"{file}, line {rule.line}: {rule.kind} {code} is in the row of line {other.line} too,"
                    " for the same GPUs, drivers and detail"
                )
            others.append(rule)


class _Fields:
    """The keys of one mapping in the file. Each is taken once; `finish` refuses those that were not."""

    def __init__(self, node: yaml.Node | None, file: str) -> None:
        self.file, self.line = file, node.start_mark.line + 1 if node else 1
        if not isinstance(node, yaml.MappingNode):
            raise PolicyError(f"{file}, line {self.line}: names with values are expected here")
        self._nodes: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        for key, value in cast(list[tuple[yaml.Node, yaml.Node]], node.value):
            name, line = self._scalar(key), key.start_mark.line + 1
            if name in self._nodes:
                raise PolicyError(f"{file}, line {line}: {name!r} is in line {self._lines[name]} already")
            self._nodes[name], self._lines[name] = value, line

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def error(self, reason: str, name: str = "") -> PolicyError:
        return PolicyError(f"{self.file}, line {self._lines.get(name, self.line)}: {reason}")

    def finish(self) -> None:
        for name in self._nodes:
            raise self.error(f"{name[:40]!r} is not a field that belongs here", name)

    def text(self, name: str, default: str | None = None) -> str:
        node = self._take(name, is_required=default is None)
        found = default or "" if node is None else self._scalar(node)
        if node is not None and not found:
            raise self.error(f"{name!r} is empty", name)
        return found

    def number(self, name: str, default: int | None = None) -> int:
        text = self.text(name, None if default is None else str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise self.error(f"{name!r} is not a whole number", name)
        return int(text)

    def duration(self, name: str, *, is_required: bool = False) -> float | None:
        """Return seconds; None where there is no such field, and for "unlimited"."""
        text = self.text(name, None if is_required else "")
        seconds = seconds_of(text)
        if text and text != "unlimited" and seconds is None:
            raise self.error(f"{text[:40]!r} is not a time such as 60s, 24h or 7d, or unlimited", name)
        return seconds

    def choice(self, name: str, kind: type[_Choice]) -> _Choice | None:
        return self.required(name, kind) if name in self else None

    def required(self, name: str, kind: type[_Choice]) -> _Choice:
        text = self.text(name)
        if text not in list(kind):
            raise self.error(f"{text[:40]!r} is no `{name}`; choose from: {', '.join(kind)}", name)
        return kind(text)

    def texts(self, name: str, *, or_none: bool = False) -> Sequence[str]:
        return [self._scalar(each) for each in self._items(name, or_none=or_none)]

    def rows(self, name: str, *, or_none: bool = False) -> Sequence["_Fields"]:
        return [_Fields(each, self.file) for each in self._items(name, or_none=or_none)]

    def mapping(self, name: str, *, or_none: bool = False) -> Iterable[tuple[str, "_Fields"]]:
        inner = self._inner(name, or_none=or_none)
        return [(key, _Fields(node, self.file)) for key, node in inner._nodes.items()] if inner else ()

    def lists(self, name: str) -> Iterable[tuple[str, Sequence[str]]]:
        inner = self._inner(name, or_none=False)
        return [(key, inner.texts(key)) for key in list(inner._nodes)] if inner else ()

    def pairs(self, name: str) -> Iterable[tuple[str, str]]:
        inner = self._inner(name, or_none=True)
        return [(key, inner.text(key)) for key in list(inner._nodes)] if inner else ()

    def _inner(self, name: str, *, or_none: bool) -> "_Fields | None":
        node = self._take(name, is_required=not or_none)
        return None if node is None else _Fields(node, self.file)

    def _items(self, name: str, *, or_none: bool) -> Sequence[yaml.Node]:
        node = self._take(name, is_required=not or_none)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise self.error(f"{name!r} is not a list", name)
        return cast(list[yaml.Node], node.value)

    def _take(self, name: str, *, is_required: bool) -> yaml.Node | None:
        if is_required and name not in self._nodes:
            raise self.error(f"{name!r} is missing")
        return self._nodes.pop(name, None)

    def _scalar(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            raise PolicyError(f"{self.file}, line {line}: a single value is expected here")
        return cast(str, node.value)
