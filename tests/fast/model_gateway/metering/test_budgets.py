"""Money is reserved before and settled after, so calls in parallel overrun no budget.
AIS-14, FORM-13, FORM-18."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.metering.balances import (
    FREE,
    BudgetBalances,
    Calendar,
    from_dollars,
    per_million,
    per_token,
    price_of,
    to_dollars,
)
from neocloud.model_gateway.metering.recorder import UsageRecorder
from neocloud.model_gateway.metering.usage import TokenUsage
from neocloud.testing.waiting import FakeClock
from tests.fast.model_gateway.metering.conftest import (
    OTHER,
    PROJECT,
    Desk,
    Routes,
    ledger_at,
    request_start,
    routes,
)

NOW = 1_794_000_000_000


def price(*texts: str):
    message = Routes().routes.add().price
    message.input, message.cached_input, message.output = texts
    found = price_of(message)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("prices", "usage", "dollars"),
    [
        (("30", "", "60"), TokenUsage(1_000, 0, 1_000), "0.09"),  # FORM-13: GPT-4, 0.03 + 0.06 for 1,000 each
        (("0.1", "", "0.3"), TokenUsage(1_000, 0, 1_000), "0.0004"),  # FORM-13: Mistral 7B
        (("0.13", "", "0.40"), TokenUsage(6_000, 0, 2_000), "0.00158"),  # FORM-18
        (("0.02", "", "0.06"), TokenUsage(1, 0, 0), "0.00000002"),
        (("0.02", "0.01", "0.06"), TokenUsage(10, 4, 1), "0.00000022"),
        (("0.00000001", "", "0"), TokenUsage(1, 0, 5), "0.00000000000001"),
    ],
)
def test_a_request_costs_what_its_tokens_cost_exactly(prices, usage: TokenUsage, dollars: str) -> None:
    assert to_dollars(price(*prices).cost(usage)) == Decimal(dollars)


def test_prices_come_back_as_they_were_said() -> None:
    for text in ("0.02", "1.00", "2.10", "0.00000001", "123456.12345678"):
        assert per_million(per_token(text)) == Decimal(text)
    assert price_of(Routes().routes.add().price) is None
    assert price("0", "", "0") == FREE


def budget_of(limit: str):
    budgets = BudgetBalances({})
    budgets.set_limits({PROJECT: from_dollars(limit)})
    return budgets, budgets.get(PROJECT)


async def test_the_worst_is_reserved_and_what_it_was_is_settled(desk: Desk) -> None:
    desk.recorder.update_terms(routes(price=("1", "", "3"), budgets=((PROJECT, "0.001"),)))
    account = await desk.recorder.open(request_start("a", 100, 300))  # may cost $0.001
    with pytest.raises(OpenAiError) as caught:
        await desk.recorder.open(request_start("b", 1, 0))
    error = caught.value
    assert (error.status, error.code, error.type) == (429, "insufficient_quota", "insufficient_quota")
    assert "$0.001 this month (UTC), of which $0.00 is left" in error.message
    assert error.headers["x-should-retry"] == "false" and "Retry-After" not in error.headers
    account.close(TokenUsage(100, 0, 100), "ok")
    (await desk.recorder.open(request_start("c", 600, 0))).close(TokenUsage(600, 0, 0), "ok")
    with pytest.raises(OpenAiError):
        await desk.recorder.open(request_start("d", 1, 0))
    await desk.recorder.flush()
    assert desk.reader.spent("2026-11") == {PROJECT: Decimal("0.001")}
    assert desk.reader.monthly_spending(PROJECT, desk.clock.now()) == Decimal("0.001")


async def test_what_is_refused_for_money_takes_no_tokens_of_the_limit(desk: Desk) -> None:
    desk.recorder.update_terms(routes(price=("1", "", "3"), tokens=1_000, budgets=((PROJECT, "0.0001"),)))
    for number in range(3):
        with pytest.raises(OpenAiError, match="has a budget of"):
            await desk.recorder.open(request_start(f"{number}", 900, 0))


async def test_the_least_of_a_projects_budgets_holds_and_others_are_free(desk: Desk) -> None:
    desk.recorder.update_terms(routes(price=("1", "", "3"), budgets=((PROJECT, "5"), (PROJECT, "0.0001"))))
    with pytest.raises(OpenAiError):
        await desk.recorder.open(request_start("a", 101, 0))
    await desk.recorder.open(request_start("b", 101, 0, project_id=OTHER))
    desk.recorder.update_terms(routes(price=("1", "", "3")))
    await desk.recorder.open(request_start("c", 101, 0))


async def test_what_was_spent_before_a_budget_came_counts(desk: Desk) -> None:
    desk.recorder.update_terms(routes(price=("1", "", "3")))
    await desk.pay("a", TokenUsage(1_000, 0, 0))
    open_one = await desk.recorder.open(request_start("b", 500, 0))
    desk.recorder.update_terms(routes(price=("1", "", "3"), budgets=((PROJECT, "0.0016"),)))
    with pytest.raises(OpenAiError):
        await desk.recorder.open(request_start("c", 101, 0))
    open_one.close(None, "refused")
    await desk.recorder.open(request_start("d", 101, 0))


async def test_what_has_no_price_is_refused_under_a_budget_only(desk: Desk) -> None:
    desk.recorder.update_terms(routes(price=("", "", "")))
    await desk.recorder.open(request_start("a"))
    desk.recorder.update_terms(routes(price=("", "", ""), budgets=((PROJECT, "100"),)))
    with pytest.raises(OpenAiError, match="has no price.*or 0 if it is free") as caught:
        await desk.recorder.open(request_start("b"))
    assert caught.value.code == "insufficient_quota"


async def test_what_is_free_or_paid_by_the_hour_takes_nothing_of_a_budget(desk: Desk) -> None:
    free: tuple[dict[str, Any], ...] = ({"price": ("0", "", "0")}, {"price": ("9", "", "9"), "charge": 1})
    for terms in free:
        desk.recorder.update_terms(routes(budgets=((PROJECT, "0"),), **terms))
        await desk.pay(str(terms), TokenUsage(100, 0, 100))
    await desk.recorder.flush()
    assert desk.reader.spent("2026-11") == {}


async def test_a_new_month_begins_in_utc_and_open_requests_go_along(desk: Desk) -> None:
    desk.recorder.update_terms(routes(price=("1", "", "1"), budgets=((PROJECT, "0.001"),)))
    await desk.pay("a", TokenUsage(900, 0, 0), tokens=900, output=0)
    carried = await desk.recorder.open(request_start("b", 100, 0))
    await desk.clock.advance((20 * 24 + 16) * 3600)  # 2026-12-01 00:00
    with pytest.raises(OpenAiError):
        await desk.recorder.open(request_start("c", 901, 0))
    carried.close(TokenUsage(100, 0, 0), "ok")
    await desk.pay("d", TokenUsage(900, 0, 0), tokens=900, output=0)
    await desk.recorder.flush()
    assert desk.reader.spent("2026-11") == {PROJECT: Decimal("0.0009")}
    assert desk.reader.spent("2026-12") == {PROJECT: Decimal("0.001")}


def test_a_clock_set_back_into_last_month_finds_what_was_spent_there() -> None:
    budgets, balance = budget_of("0.00000002")
    rate = price("1", "", "1")
    day = 86_400_000
    for at in (NOW, NOW + 30 * day, NOW):
        budgets.settle(balance, 0, rate.cost(TokenUsage(1, 0, 0)) // 100, at)
    assert sorted(balance.spent.values()) == [10**6, 2 * 10**6]
    assert Calendar().month(NOW) in balance.spent


async def test_256_calls_at_once_do_not_overrun(desk: Desk) -> None:
    desk.recorder.update_terms(routes(price=("1", "", "3"), tokens=0, budgets=((PROJECT, "0.01"),)))

    async def call(number: int) -> int:
        try:
            account = await desk.recorder.open(request_start(f"{number}", 40, 20))  # $0.0001 each
        except OpenAiError as error:
            assert error.code == "insufficient_quota"
            return 0
        account.close(TokenUsage(40, 0, 20), "ok")
        return 1

    assert sum(await asyncio.gather(*(call(number) for number in range(256)))) == 100
    await desk.recorder.flush()
    assert desk.reader.spent("2026-11") == {PROJECT: Decimal("0.01")}


async def test_a_restart_remembers_what_was_spent(desk: Desk, clock: FakeClock) -> None:
    desk.recorder.update_terms(routes(price=("1", "", "1")))
    await desk.pay("a", TokenUsage(900, 0, 0))
    desk.ledger.close()
    with ledger_at(desk.path, clock) as ledger:
        recorder = UsageRecorder(ledger, clock)
        recorder.update_terms(routes(price=("1", "", "1"), budgets=((PROJECT, "0.001"),)))
        with pytest.raises(OpenAiError):
            await recorder.open(request_start("b", 101, 0))
        await recorder.open(request_start("c", 100, 0))


calls = st.lists(
    st.tuples(st.booleans(), st.integers(0, 2_000), st.integers(0, 2_000), st.floats(0, 1)), max_size=60
)


@given(calls, st.integers(0, 10_000))
def test_spent_and_reserved_never_exceed_the_budget(steps, limit: int) -> None:
    """Whatever opens and closes in whatever order, as long as nothing takes more than was reserved for it."""
    rate = price("0.13", "0.05", "0.40")
    budgets, balance = budget_of(f"{limit / 10_000_000:.6f}")
    assert balance.limit is not None
    under_way: list[tuple[int, int, int]] = []
    for is_open, tokens, output, share in steps:
        if is_open:
            try:
                reserved = budgets.reserve(balance, request_start("x", tokens, output), rate, NOW)
            except OpenAiError:
                assert (
                    balance.spent.get("2026-11", 0) + balance.reserved + rate.most(tokens, output)
                    > balance.limit
                )
                continue
            under_way.append((reserved, tokens, output))
        elif under_way:
            reserved, tokens, output = under_way.pop(int(share * (len(under_way) - 1)))
            used = TokenUsage(int(tokens * share), int(tokens * share * share), int(output * share))
            budgets.settle(balance, reserved, rate.cost(used), NOW)
        assert sum(balance.spent.values()) + balance.reserved <= balance.limit
        assert balance.reserved == sum(reserved for reserved, _, _ in under_way)
