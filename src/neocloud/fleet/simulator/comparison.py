"""The effect of a change of policy or limits on a simulated fleet: pairs of runs with the same faults.

Both runs of a pair have one seed, so the same faults come at the same times (`Faults._stream`), and the
difference varies less than either run. It is shown with the 95% confidence interval of Student's t over the
pairs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev

from neocloud.fleet.policy.policy import Policy
from neocloud.fleet.simulator.engine import Simulation
from neocloud.fleet.simulator.result import Result, summarize
from neocloud.fleet.simulator.scenario import Scenario

FEWEST_SEEDS, MOST_SEEDS = 3, 100
_T = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
"""Two-sided 95% quantiles of Student's t, from one degree of freedom on."""


@dataclass(frozen=True)
class Setup:
    """One side: a fault policy, and changes of the limits."""

    name: str
    policy: Policy
    limits: Mapping[str, int | float]


@dataclass(frozen=True)
class Measure:
    name: str
    value: Callable[[Result], float | None]
    is_better_high: bool | None
    """None: neither direction is better by itself."""
    is_share: bool = False


MEASURES = (
    Measure("ettr", lambda found: found.ettr, is_better_high=True, is_share=True),
    Measure("goodput", lambda found: found.goodput, is_better_high=True, is_share=True),
    Measure("false_drain_loss", lambda found: found.false_drain_loss, is_better_high=False, is_share=True),
    Measure("false_drains", lambda found: found.false_drains, is_better_high=False),
    Measure("interruptions", lambda found: found.interruptions, is_better_high=False),
    Measure("recovery_seconds", lambda found: found.recovery_seconds, is_better_high=False),
    Measure("waiting_for_spares_seconds", lambda found: found.waiting_for_spares, is_better_high=False),
    Measure("spares_needed_p99", lambda found: found.spares_needed_p99, is_better_high=False),
    Measure("breaker_trips", lambda found: found.breaker_trips, is_better_high=None),
)


@dataclass(frozen=True)
class Difference:
    """A measure on both sides, as means over the pairs."""

    name: str
    before: float
    after: float
    low: float
    high: float
    """The interval of the difference, after less before."""
    pairs: int
    verdict: str
    """better, worse, different, same (in every pair) or unclear: the interval contains 0."""

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Comparison:
    scenario: Scenario
    before: Setup
    after: Setup
    seeds: Sequence[int]
    differences: Sequence[Difference]

    @property
    def is_worse(self) -> bool:
        """Return whether less time is useful, with 95% confidence."""
        return any(each.verdict == "worse" for each in self.differences if each.name in ("ettr", "goodput"))

    def document(self) -> dict[str, object]:
        scenario = vars(self.scenario).items()
        numbers = {name: value for name, value in scenario if isinstance(value, int | float | str)}
        return {
            "evidence": "simulated",
            "before": self.before.name,
            "after": self.after.name,
            "limits_before": dict(self.before.limits),
            "limits_after": dict(self.after.limits),
            "scenario": numbers,
            "seeds": list(self.seeds),
            "differences": [{**asdict(each), "change": each.change} for each in self.differences],
            "is_worse": self.is_worse,
        }


def compare(
    scenario: Scenario,
    before: Setup,
    after: Setup,
    seeds: Sequence[int],
    on_progress: Callable[[float], None] = lambda _: None,
) -> Comparison:
    """Run both sides with each seed. Both have the spares of the side before: a policy does not buy any."""
    first = _with(scenario, before)
    spares = first.spare_nodes
    pairs: list[tuple[Result, Result]] = []
    for number, seed in enumerate(seeds):
        sides = [replace(_with(scenario, side), seed=seed, spares=spares) for side in (before, after)]
        pairs.append((_run(sides[0]), _run(sides[1])))
        on_progress((number + 1) / len(seeds))
    found = [each for measure in MEASURES if (each := difference(measure, pairs)) is not None]
    return Comparison(replace(first, spares=spares), before, after, seeds, found)


def _with(scenario: Scenario, side: Setup) -> Scenario:
    return replace(scenario, policy=side.policy, limits=replace(scenario.limits, **side.limits))  # type: ignore[arg-type]


def _run(scenario: Scenario) -> Result:
    simulation = Simulation(scenario)
    simulation.run()
    return summarize(simulation)


def difference(measure: Measure, pairs: Sequence[tuple[Result, Result]]) -> Difference | None:
    """Compare a measure over the pairs that have it on both sides; None with fewer than three."""
    values = [(measure.value(before), measure.value(after)) for before, after in pairs]
    known = [(before, after) for before, after in values if before is not None and after is not None]
    if len(known) < FEWEST_SEEDS:
        return None
    changes = [after - before for before, after in known]
    middle, half = fmean(changes), _quantile(len(changes) - 1) * stdev(changes) / math.sqrt(len(changes))
    low, high = middle - half, middle + half
    means = fmean(before for before, _ in known), fmean(after for _, after in known)
    return Difference(measure.name, *means, low, high, len(known), _verdict(measure, changes, low, high))


def _verdict(measure: Measure, changes: Sequence[float], low: float, high: float) -> str:
    if not any(changes):
        return "same"
    if low <= 0 <= high:
        return "unclear"
    if measure.is_better_high is None:
        return "different"
    return "better" if (low > 0) is measure.is_better_high else "worse"


def _quantile(freedom: int) -> float:
    return _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.6 / freedom  # at most 0.2% above it
