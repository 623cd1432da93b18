"""The exchange of gateway and control plane: traffic one way, changes of routes the other.

Traffic is reported every second or so, and kept in memory only. After a restart of the control plane all of
it is unknown (`Demand.reported_since`), so the reconciler stops no replica until reports have come for long
enough.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.resource_changes import ResourceChanges
from neocloud.messages.neocloud.inference.v1 import Traffic
from neocloud.services.inference.rules.scaling import Demand
from neocloud.services.inference.types import BUDGET, DEPLOYMENT, FILE_BUCKET, MODEL, RELEASE

REPORT_TIMEOUT = timedelta(seconds=15)
"""A gateway that has not reported for this long counts as gone."""
LONGEST_MEMORY = timedelta(days=8)
"""Longer than any idle time that a deployment may have."""


@dataclass
class _DeploymentTraffic:
    load: int = 0
    waiting: int = 0
    last_request_at: datetime | None = None
    quiet: timedelta = LONGEST_MEMORY
    """How long peaks matter; known after the first call of `demand`."""
    peaks: deque[tuple[datetime, int]] = field(default_factory=deque[tuple[datetime, int]])
    """The loads that no later load has reached, oldest and highest first."""

    def add(self, now: datetime, load: int) -> None:
        while self.peaks and self.peaks[-1][1] <= load:
            self.peaks.pop()
        if load:
            self.peaks.append((now, load))
        while self.peaks and now - self.peaks[0][0] > LONGEST_MEMORY:
            self.peaks.popleft()

    def peak(self, since: datetime) -> int:
        return max((load for at, load in self.peaks if at >= since), default=0)


class TrafficBoard:
    """The latest traffic of all deployments; one for the whole control plane."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deployments: dict[str, _DeploymentTraffic] = {}
        self._reported_since: datetime | None = None
        self._reported_at: datetime | None = None

    def report(self, items: Iterable[Traffic]) -> set[str]:
        """Store a report of the gateway; a deployment that it leaves out is idle.

        Return the ids of the deployments to reconcile now: those whose demand has grown.
        """
        now = self._clock.now()
        if not self._is_reporting(now):
            self._reported_since = now
        self._reported_at = now
        by_id = {item.deployment_id: item for item in items}
        for deployment_id in self._deployments.keys() - by_id.keys():
            idle = self._deployments[deployment_id]
            idle.load = idle.waiting = 0
        return {each for each, item in by_id.items() if self._update(each, item, now)}

    def wake(self, deployment_id: str) -> None:
        """Count a request to the deployment."""
        self._traffic(deployment_id).last_request_at = self._clock.now()

    def demand(self, deployment_id: str, quiet: timedelta) -> Demand:
        """Return the demand within the quiet time (see `rules.scaling.quiet_time`)."""
        now = self._clock.now()
        traffic = self._traffic(deployment_id)
        traffic.quiet = quiet
        is_reporting = self._is_reporting(now)
        return Demand(
            load=traffic.load if is_reporting else 0,
            peak=traffic.peak(now - quiet),
            last_request_at=traffic.last_request_at,
            reported_since=self._reported_since if is_reporting else None,
        )

    def _is_reporting(self, now: datetime) -> bool:
        return self._reported_at is not None and now - self._reported_at <= REPORT_TIMEOUT

    def _traffic(self, deployment_id: str) -> _DeploymentTraffic:
        return self._deployments.setdefault(deployment_id, _DeploymentTraffic())

    def _update(self, deployment_id: str, item: Traffic, now: datetime) -> bool:
        """Store one item; return whether the deployment must be reconciled now."""
        traffic = self._traffic(deployment_id)
        load = item.in_flight + item.waiting
        last = contract.to_datetime(item.last_request_at) if item.HasField("last_request_at") else None
        last = now if load else last and min(last, now)  # the clock of the gateway may be ahead
        is_first = traffic.last_request_at is None and last is not None
        is_more = load > traffic.peak(now - traffic.quiet)
        is_cold = item.waiting > 0 and not traffic.waiting
        is_after_pause = is_first or _is_after_pause(traffic.last_request_at, last)
        traffic.load, traffic.waiting = load, item.waiting
        traffic.last_request_at = max(filter(None, (traffic.last_request_at, last)), default=None)
        traffic.add(now, load)
        return is_more or is_cold or is_after_pause


def _is_after_pause(before: datetime | None, last: datetime | None) -> bool:
    """Return whether this is the first request after a pause; the deployment may sleep."""
    return before is not None and last is not None and last - before > REPORT_TIMEOUT


class RouteChanges(ResourceChanges):
    """The changes of what routes are read from."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, (DEPLOYMENT, MODEL, BUDGET, FILE_BUCKET, RELEASE))
