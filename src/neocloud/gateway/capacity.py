"""How many requests a caller may make in a second, and how many requests and bytes of their bodies one caller
and all of them may have at a time.

A request holds its body until it is answered, also while it waits for a model to start. Counting is a few
additions for each request; nothing here waits.
"""

import math
import time
from dataclasses import dataclass

from neocloud.core.rates import Buckets, Rate
from neocloud.gateway.errors import OpenAiError
from neocloud.gateway.settings import GatewaySettings

RETRY_SECONDS = 2


@dataclass(slots=True)
class _Subject:
    id: str
    requests: int = 0
    bytes: int = 0


class Capacity:
    """Counts the requests of one gateway; the limits are settings."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._subjects: dict[str, _Subject] = {}
        """Subjects with requests under way, by id."""
        self._buckets = Buckets(Rate(settings.requests_per_second), time.monotonic)
        self._requests = 0
        self._bytes = 0

    def enter(self, subject_id: str) -> _Subject:
        """Count a request until `give_back`. Raises OpenAiError 429."""
        settings = self._settings
        wait = self._buckets.take(subject_id)
        if wait:
            raise _too_fast(settings.requests_per_second, wait)
        subject = self._subjects.get(subject_id)
        if subject is not None and subject.requests >= settings.max_subject_requests:
            raise _refused(
                f"You have {settings.max_subject_requests:,} requests in progress, which is the limit."
            )
        if self._requests >= settings.max_requests:
            raise _refused(
                f"The gateway has {settings.max_requests:,} requests in progress, which is the limit."
            )
        if subject is None:
            subject = self._subjects[subject_id] = _Subject(subject_id)
        subject.requests += 1
        self._requests += 1
        return subject

    def take(self, subject: _Subject, size: int) -> None:
        """Raises OpenAiError 429, and counts nothing then."""
        settings = self._settings
        if subject.bytes + size > settings.max_subject_bytes:
            raise _refused(f"Your requests in progress exceed {settings.max_subject_bytes:,} bytes.")
        if self._bytes + size > settings.max_bytes:
            raise _refused(f"The gateway's requests in progress exceed {settings.max_bytes:,} bytes.")
        subject.bytes += size
        self._bytes += size

    def give_back(self, subject: _Subject, size: int) -> None:
        subject.requests -= 1
        self._requests -= 1
        subject.bytes -= size
        self._bytes -= size
        if not subject.requests:
            del self._subjects[subject.id]


class Held:
    """What one request has taken: nothing until `enter`, nothing after `leave`."""

    __slots__ = ("_capacity", "_subject", "size")

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._subject: _Subject | None = None
        self.size = 0

    def enter(self, subject_id: str) -> None:
        """Raises OpenAiError 429."""
        self._subject = self._capacity.enter(subject_id)

    def take(self, size: int) -> None:
        """Count bytes of its body, as they come. Raises OpenAiError 429."""
        assert self._subject is not None, "It has entered."
        self._capacity.take(self._subject, size)
        self.size += size

    def leave(self) -> None:
        if self._subject is not None:
            self._capacity.give_back(self._subject, self.size)
            self._subject = None


def _too_fast(per_second: float, wait: float) -> OpenAiError:
    seconds = math.ceil(wait)
    return OpenAiError(
        429,
        f"You exceed the limit of {per_second:g} requests per second. Wait {seconds} s, then slow down.",
        type="requests",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(seconds)},
    )


def _refused(message: str) -> OpenAiError:
    return OpenAiError(
        429,
        f"{message} Wait until some of them have finished, then try again.",
        type="requests",
        code="too_many_requests_under_way",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
