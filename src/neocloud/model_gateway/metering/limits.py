"""Limits: tokens and requests per minute by tenant and model, and requests in progress by subject.

Rates are token buckets: the most that a request may use is reserved at its start and corrected at its end.
Time is monotonic, so a changed wall clock has no effect.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core.clock import Clock
from neocloud.data_plane.rate_limits import Buckets, Rate
from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.metering.usage import RequestStart
from neocloud.model_gateway.settings import GatewaySettings

Headers = Sequence[tuple[bytes, bytes]]
MINUTE = 60
_SPANS = [b"%ds" % s if s < MINUTE else b"%dm%ds" % divmod(s, MINUTE) for s in range(60 * MINUTE)]


class Bucket:
    """The remaining requests and tokens of a tenant for a model."""

    __slots__ = ("_filled_at", "_limit_headers", "requests", "requests_limit", "tokens", "tokens_limit")

    def __init__(self, requests_limit: int, tokens_limit: int, now: float) -> None:
        self.requests, self.tokens = float(requests_limit), float(tokens_limit)
        self.requests_limit, self.tokens_limit = requests_limit, tokens_limit
        self._filled_at = now
        self._limit_headers = (b"%d" % requests_limit, b"%d" % tokens_limit)

    def fill(self, now: float) -> None:
        minutes = (now - self._filled_at) / MINUTE
        self._filled_at = now
        requests, tokens = self.requests_limit, self.tokens_limit
        self.requests = min(requests, self.requests + minutes * requests)
        self.tokens = min(tokens, self.tokens + minutes * tokens)

    def change(self, requests_limit: int, tokens_limit: int) -> None:
        """Apply new limits. Tokens in use stay in use."""
        self.requests += requests_limit - self.requests_limit
        self.tokens += tokens_limit - self.tokens_limit
        self.requests_limit, self.tokens_limit = requests_limit, tokens_limit
        self._limit_headers = (b"%d" % requests_limit, b"%d" % tokens_limit)

    @property
    def is_full(self) -> bool:
        return self.requests >= self.requests_limit and self.tokens >= self.tokens_limit

    def headers(self) -> Headers:
        found: list[tuple[bytes, bytes]] = []
        if limit := self.requests_limit:
            found += (
                (b"x-ratelimit-limit-requests", self._limit_headers[0]),
                (b"x-ratelimit-remaining-requests", b"%d" % max(0.0, self.requests)),
                (b"x-ratelimit-reset-requests", _span((limit - self.requests) * MINUTE / limit)),
            )
        if limit := self.tokens_limit:
            found += (
                (b"x-ratelimit-limit-tokens", self._limit_headers[1]),
                (b"x-ratelimit-remaining-tokens", b"%d" % max(0.0, self.tokens)),
                (b"x-ratelimit-reset-tokens", _span((limit - self.tokens) * MINUTE / limit)),
            )
        return found


class RateLimits:
    """The buckets of all tenants and models. A limit of 0 is none."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def take(self, start: RequestStart, requests_limit: int, tokens_limit: int) -> tuple[Bucket, int]:
        """Reserve tokens; return the bucket and the number of reserved tokens. Raises OpenAiError 429."""
        key, now = (start.tenant_id, start.model_name), self._now()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(requests_limit, tokens_limit, now)
        else:
            bucket.fill(now)
            if bucket.requests_limit != requests_limit or bucket.tokens_limit != tokens_limit:
                bucket.change(requests_limit, tokens_limit)
        if requests_limit and bucket.requests < 1:
            raise _rate_limit_reached(start, bucket, "requests", 1)
        tokens = 0
        if tokens_limit:
            # A request for more than the tokens of a minute waits for a full bucket, not forever.
            tokens = min(start.input_tokens + start.max_output_tokens, tokens_limit)
            if start.input_tokens > tokens_limit:
                raise _input_too_large(start, bucket)
            if tokens > bucket.tokens:
                raise _rate_limit_reached(start, bucket, "tokens", tokens)
            bucket.tokens -= tokens
        bucket.requests -= 1 if requests_limit else 0
        return bucket, tokens

    def correct(self, bucket: Bucket, set_aside: int, used: int) -> None:
        """Replace the reservation by what was used. The bucket may fall below zero."""
        if bucket.tokens_limit:
            bucket.fill(self._now())
            bucket.tokens = min(float(bucket.tokens_limit), bucket.tokens + set_aside - used)

    def release(self, bucket: Bucket, set_aside: int) -> None:
        """Return the reservation of a request that came to nothing."""
        bucket.requests = min(float(bucket.requests_limit), bucket.requests + 1)
        self.correct(bucket, set_aside, 0)

    def remove_idle(self) -> None:
        """Remove full buckets, so that there are no more of them than active tenants."""
        now = self._now()
        for key, bucket in list(self._buckets.items()):
            bucket.fill(now)
            if bucket.is_full:
                del self._buckets[key]


def _rate_limit_reached(start: RequestStart, bucket: Bucket, kind: str, needed: int) -> OpenAiError:
    is_requests = kind == "requests"
    limit = bucket.requests_limit if is_requests else bucket.tokens_limit
    level = bucket.requests if is_requests else bucket.tokens
    seconds = max(1, math.ceil((needed - level) * MINUTE / limit))
    hint = "" if is_requests else ", or lower max_tokens"
    return _rate_limited(
        f"Rate limit reached for {start.model_name}: {limit:,} {kind} per minute. This request needs"
        f" {needed:,}, and {max(0, int(level)):,} are left. Try again in {seconds} s{hint}.",
        kind,
        {"Retry-After": str(seconds), **_text(bucket.headers())},
    )


def _input_too_large(start: RequestStart, bucket: Bucket) -> OpenAiError:
    return _rate_limited(
        f"The input has about {start.input_tokens:,} tokens, which exceeds your limit for"
        f" {start.model_name} of {bucket.tokens_limit:,} tokens per minute. Send a shorter input, or"
        " request a higher limit.",
        "tokens",
        {"x-should-retry": "false", **_text(bucket.headers())},
    )


def _rate_limited(message: str, kind: str, headers: dict[str, str]) -> OpenAiError:
    return OpenAiError(429, message, type=kind, code="rate_limit_exceeded", param="model", headers=headers)


def _text(headers: Headers) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


def _span(seconds: float) -> bytes:
    """Format a duration as OpenAI does: "1s", "6m0s"."""
    return _SPANS[min(math.ceil(seconds), len(_SPANS) - 1)] if seconds > 0 else b"0s"


RETRY_SECONDS = 2


@dataclass(slots=True)
class _Subject:
    """Requests in progress of one subject, and the bytes of their bodies."""

    id: str
    requests: int = 0
    bytes: int = 0


class RequestLimits:
    """Limits on requests per second and in progress, by subject and in total.

    A request holds its body until it is answered, also while it waits for a model to start. Counting is a few
    additions for each request; nothing here waits.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._subjects: dict[str, _Subject] = {}
        """Subjects with requests in progress, by id."""
        self._buckets = Buckets(Rate(settings.requests_per_second), time.monotonic)
        self._requests = 0
        self._bytes = 0

    def acquire(self, subject_id: str) -> _Subject:
        """Count a request until `release`. Raises OpenAiError 429."""
        settings = self._settings
        wait = self._buckets.take(subject_id)
        if wait:
            raise _too_many_per_second(settings.requests_per_second, wait)
        subject = self._subjects.get(subject_id)
        if subject is not None and subject.requests >= settings.max_subject_requests:
            raise _too_many_in_progress(
                f"You have {settings.max_subject_requests:,} requests in progress, which is the limit."
            )
        if self._requests >= settings.max_requests:
            raise _too_many_in_progress(
                f"The gateway has {settings.max_requests:,} requests in progress, which is the limit."
            )
        if subject is None:
            subject = self._subjects[subject_id] = _Subject(subject_id)
        subject.requests += 1
        self._requests += 1
        return subject

    def add_bytes(self, subject: _Subject, size: int) -> None:
        """Count bytes of a body. Raises OpenAiError 429, and counts nothing then."""
        settings = self._settings
        if subject.bytes + size > settings.max_subject_bytes:
            raise _too_many_in_progress(
                f"Your requests in progress exceed {settings.max_subject_bytes:,} bytes."
            )
        if self._bytes + size > settings.max_bytes:
            raise _too_many_in_progress(
                f"The gateway's requests in progress exceed {settings.max_bytes:,} bytes."
            )
        subject.bytes += size
        self._bytes += size

    def release(self, subject: _Subject, size: int) -> None:
        subject.requests -= 1
        self._requests -= 1
        subject.bytes -= size
        self._bytes -= size
        if not subject.requests:
            del self._subjects[subject.id]


class RequestSlot:
    """The share of one request in the limits: nothing before `acquire` and after `release`."""

    __slots__ = ("_limits", "_subject", "size")

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._subject: _Subject | None = None
        self.size = 0

    def acquire(self, subject_id: str) -> None:
        """Raises OpenAiError 429."""
        self._subject = self._limits.acquire(subject_id)

    def add_bytes(self, size: int) -> None:
        """Count bytes of the body as they arrive. Raises OpenAiError 429."""
        assert self._subject is not None, "The slot was acquired."
        self._limits.add_bytes(self._subject, size)
        self.size += size

    def release(self) -> None:
        if self._subject is not None:
            self._limits.release(self._subject, self.size)
            self._subject = None


def _too_many_per_second(per_second: float, wait: float) -> OpenAiError:
    seconds = math.ceil(wait)
    return OpenAiError(
        429,
        f"You exceed the limit of {per_second:g} requests per second. Wait {seconds} s, then slow down.",
        type="requests",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(seconds)},
    )


def _too_many_in_progress(message: str) -> OpenAiError:
    return OpenAiError(
        429,
        f"{message} Wait until some of them have finished, then try again.",
        type="requests",
        code="too_many_requests_under_way",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
