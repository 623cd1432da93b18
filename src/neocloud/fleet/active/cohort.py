"""Outliers among like nodes: what is far below its cohort is a fault that no fixed limit finds. Pure.

Robust z: the distance from the median in units of 1.4826 median absolute deviations, which has a floor, since
equal values have no deviation. A value is an outlier if it is both far away and worse by the check's margin.

Nodes of other tenants have a limited weight, as their root can send any value: with a quarter of the weight
nobody moves the median out of the middle half of the other values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from neocloud.fleet.active.catalogue import ActiveCheck, Better

SMALLEST = 8
"""Members below which only limits judge."""
SCALE = 1.4826
"""Makes the deviation of a normal distribution its standard deviation."""
FLOOR = 0.005
"""Least deviation, as a share of the median."""
FAR = 4.0
INCIDENT_SHARE = 0.1
"""Largest share of members that are outliers; with more, and more than one, the cohort or the check is at
fault, and no node is blamed. Other tenants' nodes do not count: they could shield a node by failing
themselves.
"""
OTHERS_SHARE = 0.25
"""Largest share of a cohort's weight that one tenant has, where another's nodes are judged."""
LAST, AGREEING = 3, 2
"""Number of a node's last runs, and how many of them have to be outliers."""


@dataclass(frozen=True)
class Distance:
    """The distance of a value from its cohort."""

    z: float
    deficit: float
    """Share of the median by which it is worse."""
    median: float
    members: int

    def is_outlier(self, margin: float) -> bool:
        return self.z < -FAR and self.deficit > margin


@dataclass(frozen=True)
class CohortResult:
    """The result of comparing one member with its cohort."""

    distance: Distance
    is_fault: bool
    wants_repeat: bool
    """Whether one more run would decide."""


@dataclass(frozen=True)
class Comparison:
    members: Mapping[str, CohortResult]
    incident: str = ""
    """Why no member is blamed, although there are outliers."""


@dataclass(frozen=True)
class Centre:
    """The middle of a cohort, from values with weights."""

    median: float
    deviation: float
    members: int

    @classmethod
    def of(cls, values: Sequence[tuple[float, float]]) -> "Centre":
        middle = _median(values)
        deviation = SCALE * _median([(abs(value - middle), weight) for value, weight in values])
        return cls(middle, max(deviation, SCALE * FLOOR * abs(middle)), len(values))

    def distance(self, check: ActiveCheck, value: float) -> Distance:
        """Return how far a value is from the others; worse is negative, whichever way the check counts."""
        better_by = self.median - value if check.better is Better.LOWER else value - self.median
        z = better_by / self.deviation if self.deviation else 0.0
        deficit = -better_by / abs(self.median) if self.median else 0.0
        return Distance(z, deficit, self.median, self.members)


def compare(
    check: ActiveCheck,
    runs: Mapping[str, Sequence[float]],
    own: Sequence[float] = (),
    others: Sequence[Sequence[float]] = (),
) -> Comparison:
    """Compare the members of a cohort: `runs` has the last values of each, newest last. `own` has values of
    more nodes of the same tenant, and `others` those of each other tenant: they are not judged."""
    known = {name: list(values)[-LAST:] for name, values in runs.items() if values}
    if not known or check.better is Better.EQUAL:
        return Comparison({})
    values = [(each, 1.0) for each in (*(values[-1] for values in known.values()), *own)]
    most = most_weight(len(values), [len(each) for each in others])
    values += [(value, min(1.0, most / len(each))) for each in others for value in each]
    if sum(weight for _, weight in values) < SMALLEST:
        return Comparison({})
    middle = Centre.of(values)
    found = dict[str, CohortResult]()
    for name, last in known.items():
        distances = [middle.distance(check, each) for each in last]
        beyond = [each.is_outlier(check.margin) for each in distances]
        is_fault = beyond[-1] and sum(beyond) >= AGREEING
        found[name] = CohortResult(distances[-1], is_fault, wants_repeat=beyond[-1] and not is_fault)
    outliers = sum(each.is_fault or each.wants_repeat for each in found.values())
    if outliers > max(1, INCIDENT_SHARE * len(found)):
        text = f"{outliers} of {len(found)} like nodes are outliers of {check.name}, so none is blamed"
        return Comparison(
            {
                name: CohortResult(each.distance, is_fault=False, wants_repeat=False)
                for name, each in found.items()
            },
            text,
        )
    return Comparison(found)


def most_weight(own: int, others: Sequence[int]) -> float:
    """Return the weight that each other tenant has at most, so that it is a share of the whole."""
    most = 0.0
    sizes = sorted(others)
    below = float(own)
    for number, size in enumerate(sizes):
        capped = len(sizes) - number
        # With a limit `most` that `capped` tenants reach: most = share * (below + capped * most).
        left = 1 - OTHERS_SHARE * capped
        most = OTHERS_SHARE * below / left if left > 0 else float("inf")
        if most <= size:
            return most
        below += size
    return float(max(sizes, default=0))


def _median(values: Sequence[tuple[float, float]]) -> float:
    """Return the value in the middle of the weight."""
    ordered = sorted(values)
    half = sum(weight for _, weight in ordered) / 2
    if all(weight == 1 for _, weight in ordered):
        return median(value for value, _ in ordered)
    reached = 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    raise ValueError("no values")
