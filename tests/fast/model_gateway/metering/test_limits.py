"""Requests and tokens a minute, of each tenant and model, with the usual headers. AIS-08."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.metering.limits import RateLimits
from neocloud.model_gateway.metering.recorder import RequestRecord, RequestStart, TokenUsage
from neocloud.services.billing import load_price_list, token_prices
from neocloud.testing.waiting import FakeClock
from tests.fast.model_gateway.metering.conftest import START, Desk, request_start, routes


def headers(account: RequestRecord) -> dict[str, str]:
    prefix = len("x-ratelimit-")
    return {name.decode()[prefix:]: value.decode() for name, value in account.headers}


async def refused(desk: Desk, wanted: RequestStart) -> OpenAiError:
    with pytest.raises(OpenAiError) as caught:
        await desk.recorder.open(wanted)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return caught.value


@pytest.mark.parametrize(("model", "limit"), [("llama-3.1-405b", 100_000), ("llama-3.1-8b-fast", 200_000)])
async def test_published_limits_hold_to_the_token(desk: Desk, model: str, limit: int) -> None:
    """AIS-08: 100,000 tokens a minute for the 405B model, 200,000 for the others."""
    terms = token_prices(load_price_list(None))(model, START.date())
    desk.recorder.update_terms(routes(tokens=terms.tokens_per_minute))
    for number in range(limit // 10_000):
        await desk.recorder.open(request_start(f"{number}", 8_000, 2_000, model_name=model))
    await refused(desk, request_start("more", 0, 1, model_name=model))
    await desk.clock.advance(60)
    await desk.recorder.open(request_start("later", limit, 0, model_name=model))


async def test_headers_say_what_is_left_and_when_all_is_back(desk: Desk) -> None:
    desk.recorder.update_terms(routes(requests=10, tokens=60_000))
    account = await desk.recorder.open(request_start("a", 3_000, 2_000))
    assert headers(account) == {
        "limit-requests": "10",
        "remaining-requests": "9",
        "reset-requests": "6s",
        "limit-tokens": "60000",
        "remaining-tokens": "55000",
        "reset-tokens": "5s",
    }


async def test_long_resets_are_in_minutes(desk: Desk) -> None:
    desk.recorder.update_terms(routes(tokens=1_000))
    account = await desk.recorder.open(request_start("a", 10, 90))
    account.close(TokenUsage(10, 0, 6_000), "ok")
    later = await desk.recorder.open(request_start("b", 0, 0, is_batch=True))
    assert later.headers == ()
    error = await refused(desk, request_start("c", 0, 1))
    assert error.headers["x-ratelimit-reset-tokens"] == "6m1s"
    assert error.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_without_a_limit_of_requests_none_is_told(desk: Desk) -> None:
    account = await desk.recorder.open(request_start("a"))
    assert {name.rpartition("-")[2] for name in headers(account)} == {"tokens"}


async def test_closing_gives_back_what_was_not_used(desk: Desk) -> None:
    desk.recorder.update_terms(routes(tokens=1_000))
    account = await desk.recorder.open(request_start("a", 100, 900))
    await refused(desk, request_start("b", 1, 0))
    account.close(TokenUsage(80, 0, 20), "ok")
    account.close(TokenUsage(0, 0, 0), "ok")  # only the first counts
    await desk.recorder.open(request_start("c", 450, 450))
    await refused(desk, request_start("d", 1, 0))


async def test_what_came_to_nothing_takes_nothing(desk: Desk) -> None:
    desk.recorder.update_terms(routes(tokens=1_000, requests=1))
    accounts = []
    for number in range(5):
        accounts.append(await desk.recorder.open(request_start(f"{number}", 500, 500)))
        accounts[-1].close(None, "refused")
    assert headers(accounts[-1])["remaining-requests"] == "0"


async def test_a_refusal_says_which_limit_and_how_long(desk: Desk) -> None:
    desk.recorder.update_terms(routes(tokens=60_000, requests=60))
    account = await desk.recorder.open(request_start("a", 30_000, 29_000))
    error = await refused(desk, request_start("b", 2_000, 1_000))
    assert (
        "60,000 tokens per minute" in error.message
        and "Try again in 2 s, or lower max_tokens" in error.message
    )
    assert (error.headers["Retry-After"], error.type) == ("2", "tokens")
    await desk.clock.advance(int(error.headers["Retry-After"]))
    account = await desk.recorder.open(request_start("c", 2_000, 1_000))
    account.close(None, "refused")
    for number in range(60):
        (await desk.recorder.open(request_start(f"r{number}", 1, 0))).close(TokenUsage(1, 0, 0), "ok")
        if number == 59:
            error = await refused(desk, request_start("e", 1, 0))
    assert error.type == "requests" and "60 requests per minute" in error.message
    assert re.fullmatch(r"\d+", error.headers["Retry-After"])


async def test_input_beyond_a_minute_never_fits_and_the_client_must_not_try(desk: Desk) -> None:
    desk.recorder.update_terms(routes(tokens=1_000))
    error = await refused(desk, request_start("a", 1_001, 0))
    assert "exceeds your limit" in error.message and error.headers["x-should-retry"] == "false"


async def test_output_beyond_a_minute_waits_for_a_full_bucket(desk: Desk) -> None:
    """Clients that name no max_tokens ask for the whole context."""
    desk.recorder.update_terms(routes(tokens=1_000))
    account = await desk.recorder.open(request_start("a", 10, 131_072))
    account.close(TokenUsage(10, 0, 490), "ok")
    error = await refused(desk, request_start("b", 10, 131_072))
    assert error.headers["Retry-After"] == "30"


async def test_limits_are_apart_by_tenant_and_model_and_batches_take_none(desk: Desk) -> None:
    desk.recorder.update_terms(routes(tokens=1_000))
    await desk.recorder.open(request_start("a", 1_000, 0))
    await desk.recorder.open(request_start("b", 1_000, 0, model_name="other"))
    await desk.recorder.open(request_start("c", 1_000, 0, tenant_id="tenant-e00b"))
    await desk.recorder.open(request_start("d", 1_000_000, 0, is_batch=True))
    await refused(desk, request_start("e", 1, 0))


async def test_a_changed_limit_holds_at_once_and_forgives_nothing(desk: Desk) -> None:
    desk.recorder.update_terms(routes(tokens=1_000))
    await desk.recorder.open(request_start("a", 900, 0))
    desk.recorder.update_terms(routes(tokens=2_000))
    assert headers(await desk.recorder.open(request_start("b", 100, 0)))["remaining-tokens"] == "1000"
    desk.recorder.update_terms(routes(tokens=500))
    await refused(desk, request_start("c", 1, 0))


async def test_full_buckets_are_forgotten(desk: Desk) -> None:
    limits = RateLimits(desk.clock)
    limits.take(request_start("a", 100, 0), 0, 1_000)
    limits.remove_idle()
    assert len(limits._buckets) == 1
    await desk.clock.advance(6)
    limits.remove_idle()
    assert not limits._buckets


class MovedClock(FakeClock):
    """A wall clock that somebody sets."""

    def set_back(self, days: int) -> None:
        self._start = self._start.replace(day=self._start.day - days)


async def test_a_wall_clock_that_is_moved_changes_no_limit() -> None:
    clock = MovedClock(START)
    limits = RateLimits(clock)
    bucket, _ = limits.take(request_start("a", 600, 0), 0, 1_000)
    clock.set_back(3)
    with pytest.raises(OpenAiError):
        limits.take(request_start("b", 600, 0), 0, 1_000)
    await clock.advance(12)
    limits.take(request_start("c", 600, 0), 0, 1_000)
    assert bucket.tokens == pytest.approx(0)


steps = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 1_500), st.integers(0, 1_500)), max_size=40)


@given(steps)
def test_no_minute_takes_more_than_its_limit_twice_over(taken: list[tuple[int, int, int]]) -> None:
    """A full bucket, and what flows in meanwhile; more only by what estimates were too low."""
    clock, now, history = FakeClock(START), 0, []
    limits = RateLimits(clock)
    for wait, tokens, used in taken:
        now += wait
        clock._seconds = float(now)
        try:
            bucket, set_aside = limits.take(request_start("x", tokens, 0), 0, 1_000)
        except OpenAiError:
            continue
        limits.correct(bucket, set_aside, min(used, set_aside))
        history.append((now, min(used, set_aside)))
        assert sum(count for at, count in history if at > now - 60) <= 2_000
        assert -1e-6 <= bucket.tokens <= 1_000
