"""Earlier readings: counters, and the times since when conditions hold. Times are seconds since the boot.

Everything is of one boot: counters begin again with the next. Bounded, whatever the probes say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_KEYS = 4096
MOST_SAMPLES = 64
"""Samples of one counter."""
HOUR = 3600.0


@dataclass(frozen=True)
class Growth:
    """The growth of a counter, and the time in which it grew."""

    by: float
    seconds: float


@dataclass
class History:
    """Samples of counters, and since when conditions hold, by check and device."""

    counters: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float]]]
    )
    since: dict[str, float] = field(default_factory=dict[str, float])

    def growth(self, key: str, value: float, now: float, window_s: float) -> Growth:
        """Note a counter, and return by how much it grew within the window, or since it is known.

        A counter that went down began again, so all of it is new.
        """
        samples = self.counters.get(key)
        if samples is None:
            if len(self.counters) < MOST_KEYS:
                self.counters[key] = [(now, value)]
            return Growth(0, 0)
        before = [sample for sample in samples if sample[0] <= now - window_s]
        start = before[-1] if before else samples[0]
        by = 0.0
        for (_, first), (_, second) in zip(
            (kept := [start, *(each for each in samples if each[0] > start[0])]),
            [*kept[1:], (now, value)],
            strict=True,
        ):
            by += second - first if second >= first else second
        self._note(key, samples, value, now, window_s)
        return Growth(by, now - start[0])

    def _note(
        self, key: str, samples: list[tuple[float, float]], value: float, now: float, window_s: float
    ) -> None:
        if len(samples) > 1 and samples[-1][1] == samples[-2][1] == value:
            samples[-1] = (now, value)  # a counter that rests needs its first and its last time
        else:
            samples.append((now, value))
        while len(samples) > 2 and samples[1][0] <= now - window_s:
            del samples[0]
        if len(samples) > MOST_SAMPLES:
            del samples[1::2]

    def lasting(self, key: str, now: float) -> float:
        """Note that a condition holds, and return for how long it has."""
        if len(self.since) < MOST_KEYS or key in self.since:
            return now - self.since.setdefault(key, now)
        return 0.0

    def forget(self, prefix: str, kept: set[str]) -> None:
        """Forget conditions of a check that hold no more."""
        for key in [key for key in self.since if key.startswith(prefix) and key not in kept]:
            del self.since[key]

    def to_json(self) -> dict[str, Any]:
        return {"counters": self.counters, "since": self.since}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "History":
        """Raises ValueError, TypeError, KeyError for what `to_json` did not write."""
        counters = {
            str(key): [(float(at), float(value)) for at, value in samples]
            for key, samples in list(given["counters"].items())[:MOST_KEYS]
        }
        if not all(counters.values()):
            raise ValueError("a counter has no sample")
        since = {str(key): float(at) for key, at in list(given["since"].items())[:MOST_KEYS]}
        return cls(counters, since)
