"""The share of failing verdicts of a check that were right: its judgements, and what they show."""

import math
from dataclasses import dataclass

from neocloud.fleet.nodes import events as e
from neocloud.fleet.policy.limits import Limits

Z_95 = 1.96


@dataclass(frozen=True, slots=True)
class Precision:
    confirmed: int = 0
    refuted: int = 0

    @property
    def judged(self) -> int:
        return self.confirmed + self.refuted

    def __add__(self, other: "Precision") -> "Precision":
        return Precision(self.confirmed + other.confirmed, self.refuted + other.refuted)

    def interval(self) -> tuple[float, float]:
        """Return the limits of the share of right verdicts with 95% confidence (Wilson, 1927): what one
        judgement shows lies far from 0 and 1."""
        if not self.judged:
            return 0.0, 1.0
        n, share = self.judged, self.confirmed / self.judged
        middle = share + Z_95**2 / (2 * n)
        half = Z_95 * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n * n))
        whole = 1 + Z_95**2 / n
        return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


@dataclass(frozen=True, slots=True)
class Judgements:
    """The judgements of one check that count, oldest first: one for each verdict, a bounded number of each
    node and of all."""

    judged: tuple[e.Judged, ...] = ()

    @property
    def precision(self) -> Precision:
        confirmed = sum(each.is_confirmed for each in self.judged)
        return Precision(confirmed, len(self.judged) - confirmed)

    def with_judged(self, event: e.Judged, limits: Limits) -> "Judgements":
        """Return the record with a judgement, which replaces an earlier one of the same verdict."""
        same = (event.node, event.verdict)
        kept = [each for each in self.judged if (each.node, each.verdict) != same]
        of_node = [each for each in kept if each.node == event.node]
        if len(of_node) >= limits.judged_per_node:
            kept.remove(of_node[0])
        return Judgements((*kept, event)[-limits.judged_kept :])
