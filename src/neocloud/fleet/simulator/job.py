"""The one job of the simulation: when it ran, what stopped it, and for how long."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from neocloud.fleet.simulator.checkpoints import JobRun


class Stop(StrEnum):
    """Why the job does not run."""

    UNPLANNED = "unplanned"
    FALSE_DRAIN = "false_drain"
    DRAIN = "drain"
    """A drain that was right, before the fault stopped the job."""
    PLANNED = "planned"


@dataclass
class Job:
    started_at: float | None = None
    stopped_at: float = 0.0
    reason: Stop = Stop.PLANNED
    runs: list[JobRun] = field(default_factory=list[JobRun])
    stops: Counter[Stop] = field(default_factory=Counter[Stop])
    down: dict[Stop, float] = field(default_factory=lambda: dict.fromkeys(Stop, 0.0))
    """Seconds without the job, by what stopped it."""

    @property
    def is_running(self) -> bool:
        return self.started_at is not None

    def start(self, now: float) -> None:
        self.down[self.reason] += now - self.stopped_at
        self.started_at = now

    def stop(self, now: float, reason: Stop) -> None:
        """Count a stop, also of a job that is down already."""
        self.stops[reason] += 1
        if self.started_at is None:
            return
        self.runs.append(JobRun(now - self.started_at, is_graceful=reason is not Stop.UNPLANNED))
        self.started_at, self.stopped_at, self.reason = None, now, reason

    def end(self, now: float) -> None:
        if self.started_at is not None:
            self.runs.append(JobRun(now - self.started_at, is_graceful=True))
        else:
            self.down[self.reason] += now - self.stopped_at
        self.started_at, self.stopped_at = None, now
