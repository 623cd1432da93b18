"""Choose the node to test next and its checks, and compute how much of a fleet is covered. Pure.

A check is due on a node again after its period, whatever other checks said: a run that a job cut short
continues with what is left. Within the period nodes are ordered by the expected number of faults that a test
would find (rate times time since the last test) for each second that it takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from neocloud.fleet.active.catalogue import ActiveCheck, catalogue
from neocloud.fleet.policy.actions import Suite
from neocloud.fleet.policy.limits import DAY, HOUR, MINUTE

PROMISE = 7 * DAY
"""Every check that can run on a node has an answer that is not older. ClusterMAX: weekly."""
WEEKLY = 6 * DAY
"""Period of the full suite: a day is left for nodes that are busy when it is due."""
DAILY = DAY
"""Period of the quick suite."""
RETRY = 10 * MINUTE
"""After an outlier, and after a run without a result or one that was cut short; doubled in a row."""
LONGEST_DOUBLING = 5
SHARE_AT_ONCE = 0.05
BASE_RATE = 419 / (2048 * 54)
"""Faults of a node a day, where the fleet has no record. Derived: Llama 3 had 419 unplanned interruptions in
54 days of 2,048 nodes with eight GPUs."""


@dataclass(frozen=True)
class CheckHistory:
    """The history of tests of one node."""

    name: str
    is_idle: bool = True
    answered: Mapping[str, float] = field(default_factory=dict[str, float])
    """When each check last had an answer, or a reason not to run here that stays."""
    tried_at: float = float("-inf")
    unfinished: int = 0
    """Runs in a row that had no result, or were cut short."""
    paired: Mapping[str, float] | None = None
    """The same of checks of pairs; None where there is no other node to be measured with."""
    repeats: frozenset[str] = frozenset()
    """Checks that have to be repeated to decide about an outlier."""
    wanted: Mapping[str, float] = field(default_factory=dict[str, float])
    """Checks that are to judge a verdict of another check, and when that was said."""
    failures: int = 0
    days: float = 0.0
    """Failures of the node on record, and for how long there is a record."""

    def rate(self, fleet_rate: float) -> float:
        """Return failures a day: the node's own, and the fleet's with the weight of one fault."""
        return (self.failures + 1) / (self.days + 1 / max(fleet_rate, 1e-6))


@dataclass(frozen=True)
class Choice:
    node: str
    checks: tuple[str, ...]
    why: str


def period(check: ActiveCheck) -> float:
    return DAILY if Suite.QUICK in check.suites else WEEKLY


def due_checks(node: CheckHistory, now: float) -> list[ActiveCheck]:
    """Return the checks that are due on a node, in the order of the catalogue."""
    return [each for each in _runnable() if now >= due_at(node, each)]


def due_at(node: CheckHistory, check: ActiveCheck) -> float:
    """Return when a check is due on a node."""
    if check.name in node.repeats:
        return node.tried_at + RETRY
    answered = node.answered.get(check.name, float("-inf"))
    pause = RETRY * 2 ** min(node.unfinished - 1, LONGEST_DOUBLING) if node.unfinished else float("-inf")
    asked = node.wanted.get(check.name)
    if asked is not None and answered <= asked:
        return max(asked, node.tried_at + max(RETRY, pause))
    return max(answered + period(check), node.tried_at + pause)


def next_at(node: CheckHistory) -> float:
    """Return when the next check of a node is due; the past, if it was due before."""
    return min((due_at(node, each) for each in _runnable()), default=float("inf"))


def oldest_answer(node: CheckHistory) -> float | None:
    """Return the time of the oldest answer; None while a check has none. Checks of pairs count, too."""
    times = [node.answered.get(each.name) for each in _runnable()]
    if (paired := node.paired) is not None:
        times += [paired.get(each.name) for each in catalogue() if each.program == "pair"]
    known = [each for each in times if each is not None]
    return min(known) if known and len(known) == len(times) else None


def is_covered(node: CheckHistory, now: float) -> bool:
    at = oldest_answer(node)
    return at is not None and now - at <= PROMISE


def choose(nodes: Sequence[CheckHistory], running: int, now: float) -> list[Choice]:
    """Return the nodes to test now, the most worthwhile first."""
    room = max(1, int(SHARE_AT_ONCE * len(nodes))) - running
    days = sum(each.days for each in nodes)
    failures = sum(each.failures for each in nodes)
    fleet_rate = failures / days if failures and days else BASE_RATE
    found = list[tuple[tuple[bool, float], Choice]]()
    for node in nodes:
        checks = due_checks(node, now) if node.is_idle else []
        if checks:
            since = min(now - node.answered.get(each.name, now - PROMISE) for each in checks)
            is_overdue = any(now - node.answered.get(each.name, float("-inf")) > WEEKLY for each in checks)
            worth = node.rate(fleet_rate) * max(since, HOUR) / sum(each.seconds for each in checks)
            why = "repeat" if node.repeats else "weekly" if is_overdue else "daily"
            found.append(((is_overdue, worth), Choice(node.name, tuple(each.name for each in checks), why)))
    found.sort(key=lambda each: each[0], reverse=True)
    return [choice for _, choice in found[: max(0, room)]]


def _runnable() -> list[ActiveCheck]:
    """Checks with a program; those of pairs are chosen apart."""
    return [each for each in catalogue() if each.program not in ("", "pair")]
