"""Token buckets: how often each caller may call.

A call takes one token, and a bucket is refilled steadily and holds a burst.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

BURST_SECONDS = 10
"""A bucket holds as many calls as are refilled in this time."""
MAX_CALLERS = 20_000
"""Buckets that are kept. Beyond that, the callers that called longest ago start again with a full bucket."""


@dataclass(frozen=True)
class Rate:
    """`per_second` 0 means no limit."""

    per_second: float

    @property
    def burst(self) -> float:
        return max(1.0, self.per_second * BURST_SECONDS)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """One bucket for each caller, all of one rate."""

    def __init__(self, rate: Rate, monotonic: Callable[[], float]) -> None:
        self.per_second, self._burst = rate.per_second, rate.burst
        self._monotonic = monotonic
        self._buckets: LRUCache[str, _Bucket] = LRUCache(MAX_CALLERS)

    def take(self, caller: str) -> float:
        """Count one call and return 0; of an empty bucket, return the seconds to wait and count nothing."""
        if not self.per_second:
            return 0.0
        now = self._monotonic()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _Bucket(self._burst, now)
        else:
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self.per_second)
            bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / self.per_second
        bucket.tokens -= 1
        return 0.0
