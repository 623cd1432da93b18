"""Breakers: what stops drains and repairs while something larger than one node may be wrong.

They are a fold over the same events as the nodes. A breaker that trips stops what it guards for a cool-down;
then it is half-open and admits canaries, whose outcome closes it or opens it again.
"""

from collections import Counter, deque
from copy import copy
from dataclasses import dataclass, field, replace

from neocloud.fleet.control.precision import Judgements, Precision
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Event, Status
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.policy.limits import HOUR, Limits

Key = tuple[str, str]
"""The subject of a breaker: a check, rack, leaf or action with its name, or the cluster with ""."""


@dataclass(frozen=True, slots=True)
class Trip:
    opened_at: float
    canaries: tuple[tuple[str, float], ...] = ()
    """Nodes that were let through since, and when."""


@dataclass(slots=True)
class CheckRate:
    """The rate at which nodes fail a check: within the window, and by the hour for the baseline."""

    recent: deque[tuple[float, str]] = field(default_factory=deque[tuple[float, str]])
    by_hour: Counter[int] = field(default_factory=Counter[int])

    def copy(self) -> "CheckRate":
        return CheckRate(self.recent.copy(), self.by_hour.copy())


class Breakers:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.drains: deque[tuple[float, str, str]] = deque()
        """Our drains within the window: when, rack, leaf."""
        self.dead: deque[float] = deque()
        """When nodes were drained within the window although a breaker was open."""
        self.rates: dict[str, CheckRate] = {}
        self.failures: Counter[str] = Counter()
        """Failures of each action in a row."""
        self.trips: dict[Key, Trip] = {}
        self.records: dict[str, Judgements] = {}
        """Judgements of each check on nodes of this fleet."""
        self.elsewhere: dict[str, Precision] = {}
        """Precision on nodes of others."""

    def copy(self) -> "Breakers":
        other = copy(self)
        other.drains, other.dead = self.drains.copy(), self.dead.copy()
        other.rates = {check: rate.copy() for check, rate in self.rates.items()}
        other.failures, other.trips = self.failures.copy(), self.trips.copy()
        other.records, other.elsewhere = self.records.copy(), self.elsewhere.copy()
        return other

    def precision(self, check: str) -> Precision:
        """Return how often a check was right, here and on nodes of others."""
        return self.records.get(check, Judgements()).precision + self.elsewhere.get(check, Precision())

    def in_shadow(self, check: str, status: Status = Status.FAIL) -> str:
        """Return why an answer of a check may not drain nodes yet, or "" for one that may."""
        return shadow(check, self.precision(check), self.limits, status)

    def refusal(self, key: Key, now: float) -> str:
        """Return why a breaker refuses, or "" when it is closed or has room for a canary."""
        trip = self.trips.get(key)
        if trip is None:
            return ""
        name = " ".join(key).strip()
        if now < trip.opened_at + self.limits.cool_down:
            return f"breaker {name}: open"
        waiting = sum(1 for _, at in trip.canaries if at > now - self.limits.cool_down)
        return f"breaker {name}: waits for its canary" if waiting >= self.limits.canaries else ""

    def drain_refusal(self, state: NodeState, check: str, now: float) -> str:
        return self.refusal(("check", check), now) or self.place_refusal(state, now)

    def place_refusal(self, state: NodeState, now: float) -> str:
        """Return why the breakers of the places of a node refuse, or ""."""
        keys: tuple[Key, ...] = (("leaf", state.leaf), ("rack", state.rack), ("cluster", ""))
        return next((why for key in keys if (why := self.refusal(key, now))), "")

    def admits_dead(self, now: float) -> bool:
        """Return whether one more node that can run nothing may be drained past open breakers."""
        recent = sum(1 for at in self.dead if at > now - self.limits.window)
        return recent < self.limits.dead_replacements

    def observe(self, event: Event, before: NodeState, after: NodeState, fleet_size: int) -> None:
        """Take in an event that changed its node, or a judgement."""
        match event:
            case e.Verdict() if event.status is not Status.PASS:
                self._failing(event)
            case e.Judged():
                self._judged(event)
            case e.DrainRequested() if event.owner == OURS and not before.is_drained_by_us:
                self._drained(event, after, fleet_size)
            case e.StepStarted():
                self._canary(("action", event.action), event.node, event.at)
            case e.StepEnded() if before.running is not None:
                self._step_ended(event, str(before.running.action))
            case e.VerificationEnded():
                for key in [key for key in self.trips if key[0] in ("cluster", "rack", "leaf")]:
                    self._canary_ended(key, event.node, event.at, is_good=after.certificate is not None)
            case _:
                pass

    def _trip(self, key: Key, at: float) -> None:
        self.trips.setdefault(key, Trip(at))

    def _canary(self, key: Key, node: str, at: float) -> None:
        trip = self.trips.get(key)
        if trip is not None:
            # An older one of the same node counts for nothing: a breaker of a check may stay for years.
            waiting = at - self.limits.cool_down
            kept = (each for each in trip.canaries if each[0] != node or each[1] > waiting)
            self.trips[key] = replace(trip, canaries=(*kept, (node, at)))

    def _canary_ended(self, key: Key, node: str, at: float, *, is_good: bool) -> None:
        trip = self.trips.get(key)
        if trip is None or all(node != each for each, _ in trip.canaries):
            return
        if is_good:
            del self.trips[key]
        else:
            self.trips[key] = Trip(at)

    def _drained(self, event: e.DrainRequested, state: NodeState, fleet_size: int) -> None:
        limits = self.limits
        self.drains.append((event.at, state.rack, state.leaf))
        while self.drains and self.drains[0][0] <= event.at - limits.window:
            self.drains.popleft()
        while self.dead and self.dead[0] <= event.at - limits.window:
            self.dead.popleft()
        self._canary(("check", event.check), event.node, event.at)
        if event.is_dead:
            self.dead.append(event.at)
            return  # no breaker let it through, so it is not a canary
        in_cluster = max(limits.smallest_cluster_limit, int(limits.cluster_drains * fleet_size))
        counts: tuple[tuple[Key, int, int], ...] = (
            (("cluster", ""), len(self.drains), in_cluster),
            (
                ("rack", state.rack),
                sum(1 for _, rack, _ in self.drains if rack == state.rack),
                limits.rack_drains,
            ),
            (
                ("leaf", state.leaf),
                sum(1 for _, _, leaf in self.drains if leaf == state.leaf),
                limits.leaf_drains,
            ),
        )
        for key, count, limit in counts:
            if key in self.trips:
                self._canary(key, event.node, event.at)
            elif count >= limit:
                self._trip(key, event.at)

    def _failing(self, event: e.Verdict) -> None:
        limits = self.limits
        rate = self.rates.setdefault(event.check, CheckRate())
        while rate.recent and rate.recent[0][0] <= event.at - limits.check_window:
            rate.recent.popleft()
        if any(node == event.node for _, node in rate.recent):
            return
        rate.recent.append((event.at, event.node))
        hour = int(event.at // HOUR)
        rate.by_hour[hour] += 1
        oldest = hour - int(limits.baseline // HOUR)
        for each in [each for each in rate.by_hour if each < oldest]:
            del rate.by_hour[each]
        if len(rate.recent) < limits.check_minimum:
            return
        earlier = sum(rate.by_hour.values()) - len(rate.recent)
        usual = earlier * limits.check_window / limits.baseline
        if len(rate.recent) > limits.check_factor * usual:
            self._trip(("check", event.check), event.at)

    def take_elsewhere(self, event: e.RecordElsewhere) -> bool:
        """Take in what was found on nodes of others; return whether it is news."""
        found = Precision(event.confirmed, event.refuted)
        if self.elsewhere.get(event.check) == found:
            return False
        self.elsewhere[event.check] = found
        return True

    def _judged(self, event: e.Judged) -> None:
        self.records[event.check] = self.records.get(event.check, Judgements()).with_judged(
            event, self.limits
        )
        self._canary_ended(("check", event.check), event.node, event.at, is_good=event.is_confirmed)

    def _step_ended(self, event: e.StepEnded, action: str) -> None:
        key: Key = ("action", action)
        self._canary_ended(key, event.node, event.at, is_good=event.succeeded)
        if event.succeeded:
            self.failures[action] = 0
            return
        self.failures[action] += 1
        if self.failures[action] >= self.limits.action_failures:
            self._trip(key, event.at)


def shadow(check: str, record: Precision, limits: Limits, status: Status = Status.FAIL) -> str:
    """Return why an answer of a check with this record may not drain nodes, or "" for one that may."""
    if record.judged >= limits.judged_minimum:
        if record.confirmed < limits.precision_minimum * record.judged:
            return f"shadow: {check} was right in {record.confirmed} of {record.judged} cases"
        return ""
    if check in limits.trusted or (check in limits.facts and status is not Status.UNKNOWN):
        return ""
    return f"shadow: {check} has {record.judged} judged cases, {limits.judged_minimum} are needed"
