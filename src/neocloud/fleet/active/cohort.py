# pyright: strict
"""Outliers among like nodes: what is far below its cohort is a fault that no fixed limit finds. Pure.

Robust z: the distance from the median in units of 1.4826 median absolute deviations, which has a floor, since
equal values have no deviation. A value is an outlier if it is both far away and worse by the check's margin.
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
"""Of members that are outliers; with more, the cohort or the check is at fault, and no node is blamed."""
LAST, AGREEING = 3, 2
"""Of so many runs of a node, so many have to be outliers."""


@dataclass(frozen=True)
class Distance:
    """How far a value is from its cohort."""

    z: float
    deficit: float
    """Share of the median by which it is worse."""
    median: float
    members: int

    def is_outlier(self, margin: float) -> bool:
        return self.z < -FAR and self.deficit > margin


@dataclass(frozen=True)
class Found:
    """What a cohort says of one member."""

    distance: Distance
    is_fault: bool
    wants_repeat: bool
    """Whether one more run would decide."""


@dataclass(frozen=True)
class Comparison:
    members: Mapping[str, Found]
    incident: str = ""
    """Why no member is blamed, although there are outliers."""


def distance(check: ActiveCheck, value: float, cohort: Sequence[float]) -> Distance:
    """Return how far a value is from the others; worse is negative, whichever way the check counts."""
    middle = median(cohort)
    deviation = SCALE * median(abs(each - middle) for each in cohort)
    least = max(deviation, SCALE * FLOOR * abs(middle))
    better_by = middle - value if check.better is Better.LOWER else value - middle
    z = better_by / least if least else 0.0
    deficit = -better_by / abs(middle) if middle else 0.0
    return Distance(z, deficit, middle, len(cohort))


def compare(check: ActiveCheck, runs: Mapping[str, Sequence[float]]) -> Comparison:
    """Compare the members of a cohort: `runs` has the last values of each, newest last."""
    known = {name: list(values)[-LAST:] for name, values in runs.items() if values}
    if len(known) < SMALLEST or check.better is Better.EQUAL:
        return Comparison({})
    newest = [values[-1] for values in known.values()]
    found = dict[str, Found]()
    for name, values in known.items():
        distances = [distance(check, each, newest) for each in values]
        beyond = [each.is_outlier(check.margin) for each in distances]
        is_fault = beyond[-1] and sum(beyond) >= AGREEING
        found[name] = Found(distances[-1], is_fault, wants_repeat=beyond[-1] and not is_fault)
    outliers = sum(each.is_fault or each.wants_repeat for each in found.values())
    if outliers > INCIDENT_SHARE * len(found):
        text = f"{outliers} of {len(found)} like nodes are outliers of {check.name}, so none is blamed"
        return Comparison(
            {name: Found(each.distance, is_fault=False, wants_repeat=False) for name, each in found.items()},
            text,
        )
    return Comparison(found)
