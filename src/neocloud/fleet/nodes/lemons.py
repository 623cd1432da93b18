"""Lemons: nodes that fail again and again, although each repair is followed by a passed verification.

The failure rates of the nodes are taken as Gamma distributed, with mean and spread estimated from the fleet
itself (empirical Bayes, method of moments), and the failures of a node as Poisson distributed. Where all
nodes fail alike, the spread is zero and no node is a lemon, however unlucky; the fewer nodes cause most
failures, the fewer failures it takes.
"""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Event, Phase
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.policy.limits import DAY, Limits

RENEWED = (Phase.RMA_RETURNED, Phase.RETIRED)
"""Parts were replaced: what failed before says nothing any more."""
MOST_DRAINS = 20


@dataclass(frozen=True, slots=True)
class LemonRecord:
    since: float
    failures: int = 0
    drains: tuple[str, ...] = field(default=(), compare=False)
    """Evidence of the newest drains that count as failures."""


class Lemons:
    """Failures of each node since it was registered or its parts were replaced; a fold over events."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.records: dict[str, LemonRecord] = {}

    def copy(self) -> "Lemons":
        other = copy(self)
        other.records = self.records.copy()
        return other

    def observe(self, event: Event, before: NodeState) -> None:
        """Take in an event that changed its node, or a judgement."""
        match event:
            case e.Registered():
                self.records.setdefault(event.node, LemonRecord(event.at))
            case e.DrainRequested() if event.owner == OURS and event.check and not before.is_drained_by_us:
                record = self.records[event.node]
                drains = (*record.drains, event.evidence)[-MOST_DRAINS:]
                failures = record.failures + 1
                self.records[event.node] = replace(record, failures=failures, drains=drains)
            case e.Judged() if not event.is_confirmed:
                self._refuted(event)
            case e.Moved() if event.to in RENEWED:
                self.records[event.node] = LemonRecord(event.at)
            case _:
                pass

    def _refuted(self, event: e.Judged) -> None:
        """Take back the failure that a refuted verdict was counted as. Most verdicts drained nothing."""
        record = self.records[event.node]
        if event.verdict in record.drains:
            drains = tuple(each for each in record.drains if each != event.verdict)
            failures = max(0, record.failures - 1)
            self.records[event.node] = replace(record, failures=failures, drains=drains)

    def reason(self, node: str, now: float) -> str:
        """Return why a node counts as a lemon, or ""."""
        record = self.records.get(node)
        if record is None or record.failures < self.limits.lemon_failures:
            return ""
        why = excess_of_failures(record, self.records.values(), self.limits, now)
        return f"lemon: {why}" if why else ""


def excess_of_failures(record: LemonRecord, others: Iterable[LemonRecord], limits: Limits, now: float) -> str:
    """Return how far one fails more often than its fleet, which it is one of; "" if it does not."""
    mean, shape = fleet_rate(others, now)
    if not mean:
        return ""
    days = (now - record.since) / DAY
    chance = exceeds(shape + record.failures, shape / mean + days, limits.lemon_factor * mean)
    if chance < limits.lemon_probability:
        return ""
    return (
        f"failed {record.failures} times in {days:.1f} days, where the fleet's rate expects"
        f" {mean * days:.1f}; above {limits.lemon_factor:g} times that rate with probability"
        f" {chance:.2f}"
    )


def fleet_rate(records: Iterable[LemonRecord], now: float) -> tuple[float, float]:
    """Return the mean of the nodes' failure rates, per day, and the shape of their Gamma distribution.

    A count over t days has the mean m t and the variance m t + v t^2; the shape is m^2 / v, and infinite when
    the counts differ no more than chance explains."""
    pairs = [(record.failures, max(0.0, (now - record.since) / DAY)) for record in records]
    days = math.fsum(each for _, each in pairs)
    failures = sum(count for count, _ in pairs)
    if not days or not failures:
        return 0.0, math.inf
    mean = failures / days
    excess = math.fsum((count - mean * each) ** 2 for count, each in pairs) - failures
    variance = excess / math.fsum(each * each for _, each in pairs)
    return mean, mean * mean / variance if variance > 0 else math.inf


def exceeds(shape: float, rate: float, limit: float) -> float:
    """Return the probability that a Gamma variable is above a limit; 0 for an infinite shape.

    Wilson and Hilferty (1931): the cube root is nearly normal; the error is below 0.005 from shape 3 on."""
    if math.isinf(shape):
        return 0.0
    spread = 1 / (9 * shape)
    return 1 - NormalDist(1 - spread, math.sqrt(spread)).cdf((limit * rate / shape) ** (1 / 3))
