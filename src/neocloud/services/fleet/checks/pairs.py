"""Results of measuring pairs of workers, and what they say of each worker. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neocloud.fleet.active.catalogue import ActiveCheck, catalogue
from neocloud.fleet.active.cohort import LAST
from neocloud.fleet.active.judge import CheckedBoot, is_busy, verdict
from neocloud.fleet.active.pairing import Blame, Edge, Meeting, Pair, Speeds, blame
from neocloud.fleet.active.report import Report
from neocloud.fleet.active.schedule import PROMISE
from neocloud.fleet.agent.document import NotRun
from neocloud.fleet.nodes.events import CheckScope, Status, Verdict
from neocloud.fleet.policy.actions import Action
from neocloud.services.fleet.types import plain

CHECKS = tuple(each for each in catalogue() if each.program == "pair")
MOST_PAIRS = 20_000
THRESHOLD = "like other pairs, and within the limit"


@dataclass(frozen=True)
class Result:
    """The result of one run of a pair in one check."""

    at: float
    is_bad: bool
    sample: str
    value: float | None


@dataclass(frozen=True)
class PairRun:
    """One run of a pair; `boots` in the order of its names."""

    pair: Pair
    boots: tuple[str, str]
    at: float
    report: Report | None
    """None where there is no result."""


@dataclass
class PairRuns:
    """The fold over the runs of pairs of one pool."""

    met: dict[Pair, Meeting] = field(default_factory=dict[Pair, Meeting])
    _boots: dict[Pair, tuple[str, str]] = field(default_factory=dict[Pair, tuple[str, str]])
    _results: dict[tuple[str, Pair], list[Result]] = field(
        default_factory=dict[tuple[str, Pair], list[Result]]
    )
    """Last results by check and pair, newest last."""
    _left_out: dict[tuple[str, str], tuple[NotRun, float]] = field(
        default_factory=dict[tuple[str, str], tuple[NotRun, float]]
    )
    """Reasons by check and node, where the last run did not measure it."""
    _taken: int = 0
    _said: tuple[object, Mapping[str, Blame]] = (None, {})

    def take(self, run: PairRun) -> None:
        self._taken += 1
        pair, before = run.pair, self.met.pop(run.pair, Meeting())
        self._make_room()
        if self._boots.get(pair) != run.boots:
            self._forget(pair)
        self._boots[pair] = run.boots
        if run.report is None or run.report.preempted:
            self.met[pair] = Meeting(before.met_at, run.at, before.unfinished + 1)
            return
        self.met[pair] = Meeting(run.at, run.at)
        for check in CHECKS:
            self._take(check, pair, run.report, run.at)

    def stored(self) -> "PairRuns":
        """Return it without what was computed from the runs."""
        return replace(self, _said=(None, {}))

    def _take(self, check: ActiveCheck, pair: Pair, report: Report, at: float) -> None:
        values = [each for each in report.measured if each.check == check.name and each.unit == check.unit]
        said = next((each for each in report.document.verdicts if each.check == check.name), None)
        left_out = next((each for each in report.document.not_run if each.check == check.name), None)
        for name in pair:
            self._left_out.pop((check.name, name), None)
            if left_out is not None and not values and not is_busy(left_out):
                self._left_out[check.name, name] = (NotRun(check.name, plain(left_out.why)), at)
        if said is None and not values:
            return
        is_bad = said is not None and said.status is not Status.PASS
        sample = plain(said.sample if said else values[0].text)
        known = self._results.setdefault((check.name, pair), [])
        known.append(Result(at, is_bad, sample, values[0].value if values else None))
        del known[:-LAST]

    def _make_room(self) -> None:
        """Forget the pairs that were tried longest ago: a tenant may rename its workers."""
        while len(self.met) >= MOST_PAIRS:
            oldest = next(iter(self.met))
            del self.met[oldest]
            self._boots.pop(oldest, None)
            self._forget(oldest)

    def _forget(self, pair: Pair) -> None:
        for check in CHECKS:
            self._results.pop((check.name, pair), None)

    def said(self, boots: Mapping[str, str], leaves: Mapping[str, str], now: float) -> Mapping[str, Blame]:
        """Return who is at fault, by check, as to the runs since these starts of nodes, in the last week."""
        key = (self._taken, frozenset(boots.items()), frozenset(leaves.items()), now // 60)
        if self._said[0] != key:
            found = {each.name: blame(self._edges(each, boots, now), leaves) for each in CHECKS}
            self._said = (key, found)
        return self._said[1]

    def _edges(self, check: ActiveCheck, boots: Mapping[str, str], now: float) -> list[Edge]:
        current = self._current(check, boots, now)
        newest = [results[-1].value for results in current.values()]
        speeds = Speeds.of(check, [each for each in newest if each is not None])
        return [_edge(pair, results, speeds) for pair, results in current.items()]

    def _current(
        self, check: ActiveCheck, boots: Mapping[str, str], now: float
    ) -> dict[Pair, Sequence[Result]]:
        return {
            pair: results
            for (name, pair), results in self._results.items()
            if name == check.name and self._is_current(pair, results, boots, now)
        }

    def _is_current(
        self, pair: Pair, results: Sequence[Result], boots: Mapping[str, str], now: float
    ) -> bool:
        has_same_boots = self._boots[pair] == tuple(boots.get(each) for each in pair)
        return now - results[-1].at <= PROMISE and has_same_boots

    def answered(
        self, boots: Mapping[str, str], leaves: Mapping[str, str], now: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Return when each check last had an answer on each node, or a reason not to run there.

        As with checks of one node, UNKNOWN is not an answer, and neither is a failure in an earlier start."""
        said = self.said(boots, leaves, now)
        found = defaultdict[str, dict[str, float]](dict)
        for (check, name), (_, at) in self._left_out.items():
            found[name][check] = at
        for (check, pair), results in self._results.items():
            at, is_current = results[-1].at, self._is_current(pair, results, boots, now)
            for name in pair:
                decided = _is_decided(name, said[check]) if is_current else not results[-1].is_bad
                if decided:
                    found[name][check] = max(at, found[name].get(check, at))
        return found

    def answers(
        self, name: str, boots: Mapping[str, str], leaves: Mapping[str, str], now: float
    ) -> Iterator[tuple[Verdict | NotRun, float]]:
        """Yield what is known of a node, in the order of the catalogue. UNKNOWN is that of a suspect, which
        nothing acts on."""
        said = self.said(boots, leaves, now)
        for check in CHECKS:
            own = [(pair, each) for pair, each in self._current(check, boots, now).items() if name in pair]
            if own:
                pair, results = max(own, key=lambda each: each[1][-1].at)
                place = CheckedBoot(name, boots.get(name, ""), results[-1].at)
                yield _verdict(check, name, said[check.name], pair, results[-1].sample, place), place.at
            elif (left_out := self._left_out.get((check.name, name))) is not None:
                yield left_out


def _is_decided(name: str, said: Blame) -> bool:
    if name in said.nodes or any(name in pair for pair in said.links):
        return True
    return name in said.good and name not in said.suspects


def _edge(pair: Pair, results: Sequence[Result], speeds: Speeds) -> Edge:
    whys = [
        each.sample if each.is_bad else speeds.why_slow(each.value) if each.value is not None else ""
        for each in results
    ]
    failures = next((count for count, why in enumerate(reversed(whys)) if not why), len(whys))
    return Edge(pair, bool(whys[-1]), failures, whys[-1])


def _verdict(
    check: ActiveCheck, name: str, said: Blame, pair: Pair, newest: str, place: CheckedBoot
) -> Verdict:
    links = [why for pair, why in sorted(said.links.items()) if name in pair]
    other = pair[1] if name == pair[0] else pair[0]
    status, sample = Status.PASS, f"with {other}: {newest}"
    if why := said.nodes.get(name, ""):
        status, sample = Status.FAIL, why
    elif links:
        status, sample = Status.FAIL, "; ".join(links)
    elif why := said.suspects.get(name, ""):
        status, sample = Status.UNKNOWN, f"suspected: {why}"
    elif name not in said.good:
        status, sample = Status.UNKNOWN, f"its partner is at fault, and it passed with no other yet; {sample}"
    made = verdict(check, status, sample, THRESHOLD, "the pairs of its pool", place, f"{place.at:.0f}")
    if status is Status.FAIL and name not in said.nodes:  # a link is not a fault of the node: nothing is done
        return replace(made, action=Action.NONE, scope=CheckScope.LINK)
    return made
