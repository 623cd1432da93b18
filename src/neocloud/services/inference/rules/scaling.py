"""How many replicas a deployment wants: from its bounds, what is asked of it, and for how long it was quiet.

Pure. It grows at once and shrinks late: what the busiest moment of the idle time needed stays until that
moment is as old as the idle time, so replicas do not come and go with every pause. That time is never
shorter than a cold start takes: what was just started is not stopped before it was of use. And nothing is
stopped that was not heard of for that long: after a restart of the control plane silence means nothing yet.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

DEFAULT_IDLE_SECONDS = 15 * 60
STARTS_TO_OUTLIVE = 1.5
"""The quiet time before something stops is at least so many cold starts."""
LONGEST_RESYNC_SECONDS = 10.0


@dataclass(frozen=True)
class Demand:
    """What is asked of one deployment, as the gateway reported."""

    load: int = 0
    """Requests being answered and waiting, now."""
    peak: int = 0
    """The most there were at a time within the quiet time (see `quiet_time`)."""
    last_request_at: datetime | None = None
    """None: none since we listen."""
    heard_since: datetime | None = None
    """Since when the gateway tells without a gap; None: it does not."""


@dataclass(frozen=True)
class ScalingDecision:
    replicas: int
    why: str
    """For status and log: "2 for 70 requests at a time, 64 each"."""
    resync_seconds: float = LONGEST_RESYNC_SECONDS
    """When to ask again although nothing was reported."""


def quiet_time(scaling: Any, start_seconds: float = 0) -> timedelta:
    """How long nobody must ask before replicas stop."""
    idle = scaling.idle_seconds or DEFAULT_IDLE_SECONDS
    return timedelta(seconds=max(idle, start_seconds * STARTS_TO_OUTLIVE))


def desired_replicas(
    scaling: Any, demand: Demand, now: datetime, replicas: int, *, concurrency: int, start_seconds: float = 0
) -> ScalingDecision:
    """`scaling` is the deployment's; `replicas` how many were wanted until now; `concurrency` how many
    requests one works on at a time; `start_seconds` what the last cold start took."""
    least, most = scaling.min_replicas, max(scaling.max_replicas, scaling.min_replicas)
    quiet = quiet_time(scaling, start_seconds)
    needed = ceil(max(demand.load, demand.peak) / max(concurrency, 1))
    last = demand.last_request_at
    if demand.load or (last is not None and now - last < quiet):
        needed = max(needed, 1)
    why = f"{needed} for up to {max(demand.load, demand.peak)} requests at a time, {concurrency} each"
    is_known = demand.heard_since is not None and now - demand.heard_since >= quiet
    if needed < replicas and not is_known:
        needed, why = (
            replicas,
            f"{replicas} as before, until requests were counted for {quiet.total_seconds():g} s",
        )
    elif not needed:
        why = f"no request for {quiet.total_seconds():g} s"
    chosen = min(max(needed, least), most)
    if chosen != needed:
        why += f"; the spec allows {least} to {most}"
    return ScalingDecision(chosen, why, _next_resync(demand, now, quiet))


def _next_resync(demand: Demand, now: datetime, quiet: timedelta) -> float:
    """When the quiet time ends, if that is soon."""
    begins = [each for each in (demand.last_request_at, demand.heard_since) if each is not None]
    ends = [(begin + quiet - now).total_seconds() for begin in begins]
    return min([LONGEST_RESYNC_SECONDS, *(max(end, 0.1) for end in ends if end > 0)])
