"""The fault policy: what each fault means and what is done about it, and who says otherwise. Pure.

The rows are in policy.yaml, which `policy_file` reads. A code without a row is UNKNOWN: never healthy, never
ignored (docs/rfd/0047-fault-policy.md).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from neocloud.fleet.policy.actions import Action

ANY = "any"
"""The code of rows for all codes of a kind."""
Version = tuple[int, ...]


class CodeKind(StrEnum):
    """The source of a code."""

    XID = "xid"
    SXID = "sxid"
    KERNEL = "kernel"
    COUNTER = "counter"


class Severity(StrEnum):
    """When the action is taken."""

    INFO = "info"
    """Nothing fails; the fault is recorded."""
    WARNING = "warning"
    """The node stays in service; an action on it waits until it is idle."""
    UNKNOWN = "unknown"
    """No row says; treated as WARNING, and a person decides."""
    FATAL = "fatal"
    """Jobs fail or compute wrong results; the node is drained now."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


class FaultScope(StrEnum):
    """The part that has the fault, and so is drained or repaired."""

    APPLICATION = "application"
    GPU = "gpu"
    LINK = "link"
    SWITCH = "switch"
    HOST = "host"
    STORAGE = "storage"
    NETWORK = "network"


class Per(StrEnum):
    """The unit for which the faults of a limit are counted."""

    NODE = "node"
    GPU = "gpu"
    GPU_PART = "gpu_part"
    """The same part (GPC and TPC) of one GPU."""


@dataclass(frozen=True)
class Word:
    """A source's own word, with the nearest step of our ladder; without one it says too little to compare."""

    text: str
    action: Action | None = None
    severity: Severity | None = None
    means: str = ""


@dataclass(frozen=True)
class PolicySource:
    """Somebody else's table of faults, as it was read."""

    name: str
    title: str
    version: str
    url: str = ""
    words: Mapping[str, Word] = field(default_factory=dict[str, Word])


@dataclass(frozen=True)
class Statement:
    """The statement of a source about the codes of a row."""

    source: PolicySource
    word: Word


@dataclass(frozen=True)
class Limit:
    """When a counter is a fault: above or below a number, for rates within a time."""

    is_above: bool
    number: float
    per_s: float | None
    text: str

    def is_broken(self, value: float) -> bool:
        """Return whether a value, or for rates the increase within `per_s`, is a fault."""
        return value > self.number if self.is_above else value < self.number


@dataclass(frozen=True)
class Escalation:
    """A later step where a fault repeats (`count` times in `within_s`) or lasts (`lasting_s`)."""

    action: Action
    source: PolicySource
    severity: Severity | None = None
    count: int = 0
    within_s: float | None = None
    """None: however long it takes."""
    per: Per = Per.NODE
    lasting_s: float | None = None


@dataclass(frozen=True)
class DriverRange:
    """From one driver version on, and before another."""

    least: Version = ()
    before: Version | None = None
    text: str = ""

    def __contains__(self, version: Version) -> bool:
        return self.least <= version and (self.before is None or version < self.before)

    def overlaps(self, other: "DriverRange") -> bool:
        return (self.before is None or other.least < self.before) and (
            other.before is None or self.least < other.before
        )


class Conflict(StrEnum):
    """Disagreements between the sources of a row, the gravest first."""

    SERVICE = "service"
    """Whether the node stays in service."""
    REPAIR = "repair"
    """The repair step."""
    SEVERITY = "severity"
    """Whether jobs fail."""
    LIMIT = "limit"
    """From which value on a counter is a fault."""


@dataclass(frozen=True)
class Rule:
    """One row: codes that are treated alike."""

    kind: CodeKind
    codes: tuple[str, ...]
    name: str
    meaning: str
    severity: Severity
    action: Action
    scope: FaultScope
    why: str = ""
    detail: str = ""
    generations: frozenset[str] = frozenset()
    drivers: DriverRange = DriverRange()
    announced_from: int = 0
    """From this driver on, XID 154 says which step the driver needs."""
    limit: Limit | None = None
    statements: tuple[Statement, ...] = ()
    escalations: tuple[Escalation, ...] = ()
    line: int = 0

    @property
    def conflict(self) -> Conflict | None:
        """The gravest disagreement between the sources, or None."""
        if self.kind is CodeKind.COUNTER:
            return Conflict.LIMIT if len({each.word.text for each in self.statements}) > 1 else None
        actions = {each.word.action for each in self.statements if each.word.action is not None}
        if len({_leaves_in_service(action) for action in actions}) > 1:
            return Conflict.SERVICE
        if len({action for action in actions if not _leaves_in_service(action)}) > 1:
            return Conflict.REPAIR
        severities = {each.word.severity for each in self.statements if each.word.severity is not None}
        return Conflict.SEVERITY if len({each is Severity.FATAL for each in severities}) > 1 else None

    def applies(self, generation: str | None, driver: Version | None, detail: str) -> bool:
        """Return whether the row is for such a line. An unknown value ("" or None) fits every row."""
        return (
            (generation == "" or not self.generations or generation in self.generations)
            and (driver is None or driver in self.drivers)
            and (not self.detail or not detail or detail == self.detail)
        )

    def overlaps(self, other: "Rule") -> bool:
        """Return whether there are lines of a code of both that both rows are for."""
        return (
            bool(not self.generations or not other.generations or self.generations & other.generations)
            and self.drivers.overlaps(other.drivers)
            and (not self.detail or not other.detail or self.detail == other.detail)
        )


def _leaves_in_service(action: Action) -> bool:
    return action.rung <= Action.RESTART_APP.rung


@dataclass(frozen=True)
class Repetition:
    """A rule over several faults: after `count` of them, `action` replaces the next step of the ladder."""

    name: str
    kind: str
    count: int
    within_s: float | None
    per: Per
    action: Action
    source: PolicySource
    severity: Severity | None = None


@dataclass(frozen=True)
class Response:
    """The policy's response to one code."""

    kind: CodeKind
    code: str
    severity: Severity
    action: Action
    rules: tuple[Rule, ...]
    """The rows that apply; where GPU, driver or detail are not known there may be several."""
    unknown: str = ""
    """Why the code is unknown, or ""."""


@dataclass(frozen=True)
class Policy:
    """All rows, with their sources."""

    updated: str
    sources: Mapping[str, PolicySource]
    generations: Mapping[str, frozenset[str]]
    rules: Sequence[Rule]
    repetition: Sequence[Repetition] = ()
    burst_s: float = 0
    """Lines of one fault that come within this time of each other are one fault."""

    def generation_of(self, gpu: str) -> str | None:
        """Return the generation of a GPU type such as "h200"; "" for "", None if it is not listed."""
        if not gpu or gpu in self.generations:
            return gpu
        return next((name for name, types in self.generations.items() if gpu in types), None)

    def type_of(self, model: str) -> str:
        """Return the listed GPU type or generation that a model names, or the model itself in lower case:
        "NVIDIA H100 PCIe" is "h100-pcie"."""
        words = frozenset(re.findall(r"[a-z0-9]+", model.lower()))
        listed = {*self.generations, *(name for types in self.generations.values() for name in types)}
        named = [name for name in listed if words >= frozenset(name.split("-"))]
        return max(named, key=len, default=model.lower())

    def rows(self, kind: CodeKind, code: str) -> Sequence[Rule]:
        """Return all rows of a code, whatever GPU and driver they are for."""
        return [rule for rule in self.rules if rule.kind is kind and code in rule.codes]

    def response_to(
        self, kind: CodeKind, code: str, *, gpu: str = "", driver: Version | None = None, detail: str = ""
    ) -> Response:
        """Return what is done about a code. If several rows apply, the gravest one counts."""
        generation, rows = self.generation_of(gpu), self.rows(kind, code)
        found = [rule for rule in rows if rule.applies(generation, driver, detail)]
        if detail:
            found += [rule for rule in self.rows(kind, ANY) if rule.detail == detail]
        if not found:
            reason = _reason(kind, code, gpu, generation, rows)
            return Response(kind, code, Severity.UNKNOWN, Action.TRIAGE, (), reason)
        worst = max(found, key=lambda rule: (rule.severity.rank, rule.action.rung))
        return Response(kind, code, worst.severity, worst.action, tuple(found))

    def main_source(self, kind: CodeKind) -> PolicySource | None:
        """Return where a code of that kind is looked up: the first source that says something of one."""
        cited = {each.source.name for rule in self.rules if rule.kind is kind for each in rule.statements}
        return next((source for name, source in self.sources.items() if name in cited), None)

    def conflicts(self, kinds: Iterable[CodeKind] = tuple(CodeKind)) -> Sequence[Rule]:
        """Return the rows whose sources disagree, the gravest first."""
        wanted, order = frozenset(kinds), list(Conflict)
        found = [rule for rule in self.rules if rule.kind in wanted and rule.conflict is not None]
        return sorted(found, key=lambda rule: order.index(rule.conflict or Conflict.LIMIT))


def _reason(kind: CodeKind, code: str, gpu: str, generation: str | None, rows: Sequence[Rule]) -> str:
    if not rows:
        return f"The policy has no row for {kind} {code}"
    if generation is None:
        return f"The rows for {kind} {code} are for certain GPUs, and {gpu} is not listed with any of them"
    generations = sorted({name for rule in rows for name in rule.generations})
    others = f", only for {', '.join(generations)}" if generations else ""
    return f"The policy has rows for {kind} {code}, but none for this GPU, driver or detail{others}"


def version_of(text: str) -> Version:
    """Return a driver version such as 570.211.01 as numbers. Raises ValueError."""
    parts = text.strip().split(".")
    if not 1 <= len(parts) <= 4 or not all(
        part.isascii() and part.isdigit() and len(part) <= 6 for part in parts
    ):
        raise ValueError(f"{text[:40]!r} is not a driver version such as 570.211.01")
    return tuple(int(part) for part in parts)
