"""The reliability of nodes over a time: faults, how soon spares replaced nodes, and time out of service."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from neocloud.fleet.nodes.incidents import BOOT_EVIDENCE, TICKET_EVIDENCE, Incident
from neocloud.fleet.nodes.outages import Cause, Outage
from neocloud.fleet.policy.limits import DAY

REPLACED_WITHIN_SECONDS = 90.0
"""ClusterMAX on hot spares: one or two failed nodes within 90 s."""
RESTARTED, ORDERED = "restart", "controller"
"""Names under which faults without a check are counted: a node started again by itself; the controller
ordered it.
"""
NOT_AVAILABLE = (Cause.FAULT, Cause.VERIFICATION, Cause.OPERATOR, Cause.MAINTENANCE)
"""A spare is available: it waits by choice."""
_NORMAL_97_5 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Observed:
    """The observations of some nodes: their incidents and outages, and since when each is watched."""

    since: Mapping[str, float]
    """Start of watching by node name. Outages of other nodes, and of before, do not count; incidents do."""
    incidents: Sequence[Incident]
    outages: Sequence[Outage]


@dataclass(frozen=True)
class Reliability:
    begin: float
    end: float
    nodes: int
    node_seconds: float
    faults: Mapping[str, int]
    """Drains by the controller by the check that failed, without replacements that somebody asked for."""
    replacement_seconds: tuple[float, ...]
    """From the first sign of each fault until a spare was in service, sorted."""
    out_of_service_seconds: Mapping[Cause, float]

    @property
    def availability(self) -> float | None:
        """Return the share of the nodes' time in which they served or could; None without any."""
        if not self.node_seconds:
            return None
        return max(0.0, 1 - sum(self.out_of_service_seconds.values()) / self.node_seconds)

    def rate(self) -> tuple[float, float, float] | None:
        """Return faults for 1,000 node-days with the bounds of their 95% interval; None without node-days."""
        days = self.node_seconds / DAY
        if not days:
            return None
        count = sum(self.faults.values())
        low, high = poisson_interval(count)
        return 1000 * count / days, 1000 * low / days, 1000 * high / days


def reliability(observed: Iterable[Observed], begin: float, end: float) -> Reliability:
    """Return what is known of nodes from `begin` to `end`, each in seconds since 1970."""
    every = list(observed)
    since = [each for found in every for each in found.since.values()]
    incidents = [each for found in every for each in found.incidents if begin <= each.detected_at < end]
    faults = [each for each in incidents if not each.evidence.startswith(TICKET_EVIDENCE)]
    took = (each.ready_at - each.detected_at for each in faults if each.ready_at is not None)
    outages = [
        (each, max(begin, found.since[each.node]))
        for found in every
        for each in found.outages
        if each.node in found.since
    ]
    lost = {
        cause: math.fsum(_overlap(each, first, end) for each, first in outages if each.cause is cause)
        for cause in NOT_AVAILABLE
    }
    return Reliability(
        *(begin, end, len(since), math.fsum(max(0.0, end - max(each, begin)) for each in since)),
        faults=dict(Counter(_what_failed(each) for each in faults).most_common()),
        replacement_seconds=tuple(sorted(took)),
        out_of_service_seconds={cause: seconds for cause, seconds in lost.items() if seconds},
    )


def poisson_interval(count: int) -> tuple[float, float]:
    """Return the bounds of the 95% interval of the mean of a Poisson variable that was `count`.

    Byar's approximation of the exact interval (Breslow and Day, 1987): within 3% from a count of 1 on."""
    if count < 0:
        raise ValueError(f"a count is not {count}")
    upper = count + 1
    high = upper * (1 - 1 / (9 * upper) + _NORMAL_97_5 / (3 * math.sqrt(upper))) ** 3
    if not count:
        return 0.0, high
    return count * (1 - 1 / (9 * count) - _NORMAL_97_5 / (3 * math.sqrt(count))) ** 3, high


def _overlap(outage: Outage, begin: float, end: float) -> float:
    return max(0.0, min(outage.end_by(end), end) - max(outage.begin, begin))


def _what_failed(incident: Incident) -> str:
    if incident.check:
        return incident.check
    return RESTARTED if incident.evidence.startswith(BOOT_EVIDENCE) else ORDERED
