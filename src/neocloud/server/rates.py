"""How many calls one caller may make in a second: a token bucket for each.

A call takes one token; a bucket is refilled steadily and holds a burst. Known callers are counted by subject,
others by the address they come from: sign-ins, and tokens that nobody knows.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from neocloud.core import contract

BURST_SECONDS = 10
"""A bucket holds as many calls as are refilled in this time."""
MAX_CALLERS = 20_000
"""Remembered; of more, those that called longest ago start anew with a full bucket."""
_IPV6_NETWORK_BITS = 64


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
    """One bucket for each caller, of one rate."""

    def __init__(self, rate: Rate, monotonic: Callable[[], float]) -> None:
        self._per_second, self._burst = rate.per_second, rate.burst
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count one call. Raises ApiError (too many requests) when the bucket is empty, and says for how
        long."""
        per_second, burst = self._per_second, self._burst
        if not per_second:
            return
        now = self._monotonic()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _Bucket(burst, now)
            if len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(caller)
            bucket.tokens = min(burst, bucket.tokens + (now - bucket.at) * per_second)
            bucket.at = now
        if bucket.tokens < 1:
            wait = (1 - bucket.tokens) / per_second
            raise contract.too_many_requests(
                f"These are more than {per_second:g} calls a second. Wait {wait:.3f} s, then go on slower.",
                retry_after_seconds=wait,
            )
        bucket.tokens -= 1


class Rates:
    """Of one server."""

    def __init__(self, subjects: Rate, strangers: Rate, monotonic: Callable[[], float]) -> None:
        self._subjects = Buckets(subjects, monotonic)
        self._sign_ins = Buckets(strangers, monotonic)
        self._unknown = Buckets(strangers, monotonic)

    def count_call(self, subject_id: str) -> None:
        """Of somebody who is known. Raises ApiError."""
        self._subjects.take(subject_id)

    def count_sign_in(self, address: str) -> None:
        """Of a method that anyone may call. Raises ApiError."""
        self._sign_ins.take(_network(address))

    def count_unknown(self, address: str) -> None:
        """Of a token that is nobody's. Apart from sign-ins, so that one program with an old token does not
        keep others behind the same address from signing in. Raises ApiError."""
        self._unknown.take(_network(address))


def _network(address: str) -> str:
    """An IPv6 host has 2^64 addresses to call from, so its network counts."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(int(found) >> _IPV6_NETWORK_BITS)
    return address
