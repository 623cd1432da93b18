"""What is asked of deployments now: reported by the gateway every second or so, kept in memory alone.

After a restart of the control plane all of it is unknown, and says so (`Demand.heard_since`): who decides by
it stops nothing until it was listened to for long enough.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.services.inference.rules.scaling import Demand

SILENCE = timedelta(seconds=15)
"""A gateway that has not reported anything for so long is not there."""
LONGEST_MEMORY = timedelta(days=8)
"""Longer than any idle time that a deployment may have."""


@dataclass
class _Reported:
    load: int = 0
    waiting: int = 0
    last_request_at: datetime | None = None
    quiet: timedelta = LONGEST_MEMORY
    """For how long peaks matter; known once somebody has asked for the demand."""
    peaks: deque[tuple[datetime, int]] = field(default_factory=deque)
    """Loads that nothing as high followed, oldest and highest first."""

    def note(self, now: datetime, load: int) -> None:
        while self.peaks and self.peaks[-1][1] <= load:
            self.peaks.pop()
        if load:
            self.peaks.append((now, load))
        while self.peaks and now - self.peaks[0][0] > LONGEST_MEMORY:
            self.peaks.popleft()

    def peak(self, since: datetime) -> int:
        return max((load for at, load in self.peaks if at >= since), default=0)


class TrafficBoard:
    """One for the whole control plane."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: dict[str, _Reported] = {}
        self._heard_since: datetime | None = None
        self._heard_at: datetime | None = None

    def report(self, items: Iterable[Any]) -> set[str]:
        """Take down what the gateway says (inference.v1.Traffic); deployments it leaves out are idle. The ids
        of those whose reconciler should look now: more is asked than lately."""
        now = self._clock.now()
        if self._heard_at is None or self._heard_since is None or now - self._heard_at > SILENCE:
            self._heard_since = now
        self._heard_at = now
        by_id = {item.deployment_id: item for item in items}
        for deployment_id in self._reported.keys() - by_id.keys():
            reported = self._reported[deployment_id]
            reported.load = reported.waiting = 0
        return {each for each, item in by_id.items() if self._take(each, item, now)}

    def _take(self, deployment_id: str, item: Any, now: datetime) -> bool:
        reported = self._reported.setdefault(deployment_id, _Reported())
        load = item.in_flight + item.waiting
        last = contract.to_datetime(item.last_request_at) if item.HasField("last_request_at") else None
        last = now if load else last and min(last, now)  # another process's clock says nothing of the future
        is_first = reported.last_request_at is None and last is not None
        is_more = load > reported.peak(now - reported.quiet)
        is_cold = item.waiting > 0 and not reported.waiting
        has_woken = is_first or _is_after_pause(reported.last_request_at, last)
        reported.load, reported.waiting = load, item.waiting
        reported.last_request_at = max(filter(None, (reported.last_request_at, last)), default=None)
        reported.note(now, load)
        return is_more or is_cold or has_woken

    def wake(self, deployment_id: str) -> None:
        """As a request would."""
        self._reported.setdefault(deployment_id, _Reported()).last_request_at = self._clock.now()

    def forget(self, deployment_id: str) -> None:
        self._reported.pop(deployment_id, None)

    def demand(self, deployment_id: str, quiet: timedelta) -> Demand:
        """What `rules.scaling.desired_replicas` asks for; `quiet` as `rules.scaling.quiet_time` says."""
        now = self._clock.now()
        reported = self._reported.setdefault(deployment_id, _Reported())
        reported.quiet = quiet
        is_there = self._heard_at is not None and now - self._heard_at <= SILENCE
        return Demand(
            load=reported.load if is_there else 0,
            peak=reported.peak(now - quiet),
            last_request_at=reported.last_request_at,
            heard_since=self._heard_since if is_there else None,
        )


def _is_after_pause(before: datetime | None, last: datetime | None) -> bool:
    """The first request after a while: it may have to wake something."""
    return before is not None and last is not None and last - before > SILENCE
