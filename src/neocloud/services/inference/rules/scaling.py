"""Compute the number of replicas of a deployment: from its bounds, its demand, and how long it has been
quiet.

Pure. Replicas are added immediately and removed late: the number that the busiest moment of the quiet time
needed stays until that moment is older than the quiet time, so replicas do not come and go with every pause.
The quiet time is never shorter than a cold start takes. Nothing is removed until demand was reported for that
long, because after a restart of the control plane no report does not mean no requests.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from neocloud.messages.neocloud.inference.v1 import Scaling

DEFAULT_IDLE_SECONDS = 15 * 60
STARTS_TO_OUTLIVE = 1.5
"""The quiet time before replicas stop is at least this many cold starts."""
LONGEST_RESYNC_SECONDS = 10.0
"""While there is demand: how late it is noticed at the most that the busiest moment has become too old."""
QUIET_RESYNC_SECONDS = 60.0
"""Without demand. A report of more, and a change of its pods, wakes the deployment."""


@dataclass(frozen=True)
class Demand:
    """The demand for one deployment, as the gateway reported it."""

    load: int = 0
    """Requests that are being answered or waiting now."""
    peak: int = 0
    """The highest load within the quiet time (see `quiet_time`)."""
    last_request_at: datetime | None = None
    """None: no request since reports began."""
    reported_since: datetime | None = None
    """The start of the reports without a gap; None: the gateway does not report now."""


@dataclass(frozen=True)
class ScalingDecision:
    replicas: int
    why: str
    """For status and log: "2 for 70 requests at a time, 64 each"."""
    resync_seconds: float = LONGEST_RESYNC_SECONDS
    """When to decide again if no report comes before."""


def quiet_time(scaling: Scaling, start_seconds: float = 0) -> timedelta:
    """Return how long a deployment must be without requests before its replicas stop."""
    idle = scaling.idle_seconds or DEFAULT_IDLE_SECONDS
    return timedelta(seconds=max(idle, start_seconds * STARTS_TO_OUTLIVE))


def desired_replicas(
    scaling: Scaling,
    demand: Demand,
    now: datetime,
    replicas: int,
    *,
    concurrency: int,
    start_seconds: float = 0,
) -> ScalingDecision:
    """Decide the number of replicas.

    `replicas` is the number desired until now, `concurrency` the number of requests that one replica works on
    at a time, `start_seconds` the duration of the last cold start.
    """
    least, most = scaling.min_replicas, max(scaling.max_replicas, scaling.min_replicas)
    quiet = quiet_time(scaling, start_seconds)
    busiest = max(demand.load, demand.peak)
    needed = ceil(busiest / max(concurrency, 1))
    last = demand.last_request_at
    if demand.load or (last is not None and now - last < quiet):
        needed = max(needed, 1)
    why = f"{needed} for up to {busiest} requests at a time, {concurrency} each"
    is_known = demand.reported_since is not None and now - demand.reported_since >= quiet
    if needed < replicas and not is_known:
        needed = replicas
        why = f"{replicas} as before, until requests were counted for {quiet.total_seconds():g} s"
    elif not needed:
        why = f"no request for {quiet.total_seconds():g} s"
    chosen = min(max(needed, least), most)
    if chosen != needed:
        why += f"; the spec allows {least} to {most}"
    return ScalingDecision(chosen, why, _next_resync(demand, now, quiet))


def _next_resync(demand: Demand, now: datetime, quiet: timedelta) -> float:
    """Return the seconds until the quiet time ends, or the longest interval if that is later."""
    begins = [each for each in (demand.last_request_at, demand.reported_since) if each is not None]
    ends = [(begin + quiet - now).total_seconds() for begin in begins]
    longest = LONGEST_RESYNC_SECONDS if demand.load or demand.peak else QUIET_RESYNC_SECONDS
    return min([longest, *(max(end, 0.1) for end in ends if end > 0)])
