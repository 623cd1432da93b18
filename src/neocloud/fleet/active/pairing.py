"""Choose idle nodes to measure in pairs, and deduce faulty nodes and links from failing pairs. Pure.

A pair that fails makes both of its nodes suspects. Each is measured again with a node that is known good.
Among the rest, a node that fails with two nodes known good, and with none passes, is at fault; where both
ends are good with others, it is the link. A node that passed with any other is never named, whatever the
number of bad nodes: a good pair proves both of its ends.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neocloud.fleet.active.catalogue import ActiveCheck
from neocloud.fleet.active.cohort import SMALLEST, Centre
from neocloud.fleet.active.schedule import DAILY, LONGEST_DOUBLING, RETRY, SHARE_AT_ONCE, WEEKLY
from neocloud.fleet.policy.limits import Limits

PARTNERS = 2
"""Other nodes that each node is measured with in a period: a link verdict needs two."""
PROOFS = 2
"""Pairs with good nodes that have to fail before a node is named, and repeats of a pair before a link is."""
SWITCH_NODES = Limits().link_faults_blame_leaf
Pair = tuple[str, str]


def pair_of(first: str, second: str) -> Pair:
    return (first, second) if first < second else (second, first)


@dataclass(frozen=True)
class Edge:
    """The last results of one pair in one check."""

    pair: Pair
    is_bad: bool
    failures: int = 0
    """Failures of the last runs in a row."""
    why: str = ""


@dataclass(frozen=True)
class Blame:
    """Conclusions from the pairs of one check."""

    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Nodes at fault, with the reason."""
    links: Mapping[Pair, str] = field(default_factory=dict[Pair, str])
    """Links at fault: each end is good with others."""
    good: frozenset[str] = frozenset()
    """Nodes that passed with at least one other."""
    suspects: Mapping[str, str] = field(default_factory=dict[str, str])
    """Nodes that failed and are not decided yet, with what is missing."""
    undecided: frozenset[Pair] = frozenset()
    """The failing pairs of suspects."""


@dataclass(frozen=True)
class Speeds:
    """The newest values of all pairs of a pool in one check."""

    check: ActiveCheck
    centre: Centre | None
    """None below eight pairs: only limits judge then."""

    @classmethod
    def of(cls, check: ActiveCheck, values: Sequence[float]) -> "Speeds":
        enough = len(values) >= SMALLEST
        return cls(check, Centre.of([(each, 1.0) for each in values]) if enough else None)

    def why_slow(self, value: float) -> str:
        """Return how far slower than the others a pair is, or ""."""
        away = self.centre.distance(self.check, value) if self.centre else None
        if away is None or not away.is_outlier(self.check.margin):
            return ""
        share = f"{-100 * away.deficit:+.1f}% of the median {away.median:.4g} of {away.members} pairs"
        return f"{value:.4g} {self.check.unit}, {share}, z {away.z:.1f}"


def blame(edges: Iterable[Edge], leaves: Mapping[str, str] | None = None) -> Blame:
    """Return who is at fault. `leaves`: the leaf switch of each node, where it is known."""
    edges = list(edges)
    passed, failed = _neighbours(edges, is_bad=False), _neighbours(edges, is_bad=True)
    nodes = {
        name: f"it fails with {_listed(proof)}, which pass with others; {bad[proof[0]].why}".rstrip("; ")
        for name, bad in failed.items()
        if name not in passed and len(proof := [each for each in sorted(bad) if each in passed]) >= PROOFS
    }
    good = frozenset(passed)
    between = [each for each in edges if each.is_bad and good.issuperset(each.pair)]
    links = {each.pair: _link(each) for each in between if each.failures >= PROOFS}
    links = _with_switches(links, leaves or {})
    undecided = [
        each.pair
        for each in edges
        if each.is_bad and each.pair not in links and not any(end in nodes for end in each.pair)
    ]
    suspects = {
        name: _missing(name, failed[name], passed)
        for name in sorted({end for pair in undecided for end in pair})
    }
    return Blame(nodes, links, good, suspects, frozenset(undecided))


def _neighbours(edges: Sequence[Edge], *, is_bad: bool) -> dict[str, dict[str, Edge]]:
    found = dict[str, dict[str, Edge]]()
    for each in edges:
        if each.is_bad == is_bad:
            first, second = each.pair
            found.setdefault(first, {})[second] = each
            found.setdefault(second, {})[first] = each
    return found


def _link(edge: Edge) -> str:
    first, second = edge.pair
    return f"link {first} - {second}, {edge.failures} times; both pass with others; {edge.why}".rstrip("; ")


def _with_switches(links: Mapping[Pair, str], leaves: Mapping[str, str]) -> dict[Pair, str]:
    """Name the switch where links of many nodes of one leaf to other leaves fail."""
    ends = dict[str, set[str]]()
    for first, second in links:
        if leaves.get(first, "") != leaves.get(second, ""):
            for end in (first, second):
                ends.setdefault(leaves.get(end, ""), set()).add(end)
    blamed = {leaf: len(names) for leaf, names in ends.items() if leaf and len(names) >= SWITCH_NODES}

    def told(pair: Pair) -> str:
        if leaves.get(pair[0], "") == leaves.get(pair[1], ""):
            return links[pair]
        found = sorted({leaves.get(end, "") for end in pair} & set(blamed))
        more = "".join(f"; {blamed[each]} nodes on leaf switch {each} have such links" for each in found)
        return links[pair] + (f"{more}: look at the switch" if more else "")

    return {pair: told(pair) for pair in links}


def _missing(name: str, bad: Mapping[str, Edge], passed: Collection[str]) -> str:
    others = _listed(sorted(bad))
    if name in passed:
        return f"it fails with {others} and passes with others: it is the other node or the link"
    if not passed:
        return f"it fails with {others}, and no node that is known good was idle to tell which of them it is"
    return f"it fails with {others}, and has to be measured with another node that is known good"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@dataclass(frozen=True)
class Meeting:
    """When two nodes were measured last, and when that was last tried."""

    met_at: float = float("-inf")
    tried_at: float = float("-inf")
    unfinished: int = 0
    """Tries in a row without a result."""

    def may_start(self, now: float) -> bool:
        return now >= self.tried_at + (
            RETRY * 2 ** min(self.unfinished - 1, LONGEST_DOUBLING) if self.unfinished else 0
        )


def choose_pairs(
    idle: Collection[str],
    nodes: int,
    running: int,
    blames: Sequence[Blame],
    met: Mapping[Pair, Meeting],
    now: float,
) -> list[Pair]:
    """Return the pairs to measure now, those that decide about suspects first. `nodes` of the pool, of which
    so many are `running` a test."""
    room = (max(2, int(SHARE_AT_ONCE * nodes)) - running) // 2
    return worthwhile_pairs(idle, nodes, blames, met, now)[: max(0, room)]


def worthwhile_pairs(
    idle: Collection[str], nodes: int, blames: Sequence[Blame], met: Mapping[Pair, Meeting], now: float
) -> list[Pair]:
    """Return the pairs that are worth measuring now, each node at most once."""
    free, found, never = set(idle), list[Pair](), Meeting()

    def take(pair: Pair) -> None:
        if free.issuperset(pair) and met.get(pair, never).may_start(now):
            found.append(pair)
            free.difference_update(pair)

    for each in blames:
        for pair in (*_deciding(each, free, met), *_again(each, free, met, now)):
            take(pair)
    named = {name for each in blames for name in each.nodes}
    partners = _partners(met, now)
    wanted = min(PARTNERS, nodes - 1)
    met_by = {name: partners.get(name, set[str]()) for name in free - named}
    for name in sorted(met_by, key=lambda name: (len(met_by[name]), name)):
        others = [each for each in met_by if each != name and each not in met_by[name]]
        others.sort(key=lambda other: (_last(met, name, other), len(met_by[other]), other))
        for other in others if len(met_by[name]) < wanted else ():
            take(pair_of(name, other))
    return found


def _deciding(said: Blame, free: Collection[str], met: Mapping[Pair, Meeting]) -> Iterator[Pair]:
    """Yield the pairs that would decide about suspects, the best first."""
    suspects, idle = set(said.suspects), set(free)
    for name in sorted(suspects - said.good):
        tested = {end for pair in said.undecided if name in pair for end in pair} | {name}
        helpers = idle - suspects - set(said.nodes) - tested
        order = sorted(helpers, key=lambda other: (other not in said.good, _last(met, name, other), other))
        yield from (pair_of(name, other) for other in order)
        cleared_first = sorted((suspects & idle) - tested, key=lambda other: (other not in said.good, other))
        yield from (pair_of(name, other) for other in cleared_first)
    yield from sorted(pair for pair in said.undecided if said.good.issuperset(pair))


def _again(said: Blame, free: Collection[str], met: Mapping[Pair, Meeting], now: float) -> Iterator[Pair]:
    """Yield pairs that show whether what was named is well again, once a day."""
    for name in sorted(said.nodes):
        tried = [meeting.tried_at for pair, meeting in met.items() if name in pair]
        if now - max(tried, default=float("-inf")) >= DAILY:
            helpers = said.good.intersection(free)
            yield from (
                pair_of(name, each) for each in sorted(helpers, key=lambda e: (_last(met, name, e), e))
            )
    yield from (pair for pair in sorted(said.links) if now - _last(met, *pair) >= DAILY)


def _last(met: Mapping[Pair, Meeting], first: str, second: str) -> float:
    return met.get(pair_of(first, second), Meeting()).met_at


def _partners(met: Mapping[Pair, Meeting], now: float) -> dict[str, set[str]]:
    """Return with whom each node was measured within the period."""
    found = dict[str, set[str]]()
    for (first, second), meeting in met.items():
        if now - meeting.met_at < WEEKLY:
            found.setdefault(first, set()).add(second)
            found.setdefault(second, set()).add(first)
    return found
