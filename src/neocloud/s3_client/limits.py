"""Rate limits for reading the source of a transfer: bytes and requests per second."""

from neocloud.core.clock import Clock

DEFAULT_BYTES_PER_SECOND = 512 * 1024**2
DEFAULT_REQUESTS_PER_SECOND = 1000
_BURST_SECONDS = 0.25


class Pace:
    """Lets so many units pass per second, with a short burst; those that wait go in order."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_second, self._clock = per_second, clock
        self._at = clock.monotonic()

    async def take(self, number: int = 1) -> None:
        """Return when so many may pass."""
        now = self._clock.monotonic()
        self._at = max(self._at, now - _BURST_SECONDS) + number / self._per_second
        if self._at > now:
            await self._clock.sleep(self._at - now)


class Limits:
    """The limits of one transfer, for all its requests to the source together."""

    def __init__(self, bytes_per_second: int, requests_per_second: int, clock: Clock) -> None:
        """0: the default."""
        self.bytes = Pace(bytes_per_second or DEFAULT_BYTES_PER_SECOND, clock)
        self.requests = Pace(requests_per_second or DEFAULT_REQUESTS_PER_SECOND, clock)
