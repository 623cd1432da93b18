"""Tokens on the bill: from the gateway's ledger, each request once, at the price it was admitted at.
BILL-03, AIS-14, FORM-13, FORM-18."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.core import contract
from neocloud.core.readers import ServiceRegistry
from neocloud.core.service import Call
from neocloud.core.store import Resource, open_store
from neocloud.core.usage import CountedUsage, Meters, UsageSource
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import aggregate_hour, ledger_file, ledger_reader
from neocloud.model_gateway.metering.recorder import UsageRecorder
from neocloud.model_gateway.metering.usage import RequestStart, TokenUsage
from neocloud.services.billing.api import get_report, list_usage
from neocloud.services.billing.rules.cost import rate, total
from neocloud.services.billing.rules.price_list import default_price_list
from neocloud.services.iam.types import CONTAINER
from neocloud.testing.waiting import FakeClock
from tests.control_plane import plain_dependencies

TENANT, PROJECT, OTHER = "tenant-e00a", "project-e00a", "project-e00b"
START = datetime(2026, 11, 10, 20, tzinfo=UTC)
PRICES = default_price_list()
ListUsageRequest = contract.message("neocloud.billing.v1.ListUsageRequest")
GetReportRequest = contract.message("neocloud.billing.v1.GetReportRequest")
Routes = contract.message("neocloud.inference.v1.ListRoutesResponse")
HOUR, DAY = 3600, 86400


@dataclass
class Cloud:
    clock: FakeClock
    call: Call
    recorder: UsageRecorder

    def sell(self, model: str, *price: str, charge: int = 0) -> None:
        routes = Routes()
        route = routes.routes.add(deployment_id="d", tenant_id=TENANT, charge=charge)
        route.price.input, route.price.cached_input, route.price.output = price
        self.model = model
        self.recorder.update_terms(routes)

    async def chat(self, request_id: str, *tokens: Any, project_id: str = PROJECT) -> None:
        start = RequestStart(request_id, TENANT, project_id, "s", "d", self.model, 10, 10)
        (await self.recorder.open(start)).close(TokenUsage(*tokens), "ok")
        await self.recorder.flush()

    async def report(self, parent_id: str = PROJECT, **window: Any):
        await self.clock.advance(1)
        return await get_report(self.call, GetReportRequest(parent_id=parent_id, **window))

    async def usage(self, parent_id: str = PROJECT, **more):
        await self.clock.advance(1)
        return await list_usage(self.call, ListUsageRequest(parent_id=parent_id, **more))


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    clock = FakeClock(START)
    store = await open_store(":memory:", b"k" * 32, clock)
    ledger = open_ledger(ledger_file(tmp_path), clock)
    provided = ServiceRegistry().add(Meters, Meters()).add(UsageSource, ledger_reader(tmp_path))
    dependencies = plain_dependencies(store, clock, provided)
    for container, parent in ((TENANT, ""), (PROJECT, TENANT), (OTHER, TENANT)):
        row = Resource(container, CONTAINER, parent, container, clock.now(), clock.now())
        await store.write(lambda tx, row=row: tx.insert(row))
    cloud = Cloud(clock, Call(None, "r", {}, dependencies), UsageRecorder(ledger, clock))
    yield cloud
    ledger.close()
    await store.close()


async def test_a_chat_is_on_the_bill_to_the_token(cloud: Cloud) -> None:
    """FORM-18: 6,000 in and 2,000 out of the 70B model, base."""
    cloud.sell("llama-3.1-70b", "0.13", "", "0.40")
    await cloud.chat("a", 6000, 1000, 2000)
    report = await cloud.report()
    assert [(line.sku, line.quantity, line.unit, line.unit_price, line.cost) for line in report.lines] == [
        ("tokens.llama-3.1-70b.cached-input", "0.001000", "million-tokens", "0.13", "0.000130"),
        ("tokens.llama-3.1-70b.input", "0.005000", "million-tokens", "0.13", "0.000650"),
        ("tokens.llama-3.1-70b.output", "0.002000", "million-tokens", "0.40", "0.000800"),
    ]
    assert report.total_cost == "0.001580"
    line = report.lines[0]
    assert (line.parent_id, line.resource_name, line.resource_id) == (PROJECT, "llama-3.1-70b", "d")
    usage = await cloud.usage()
    assert [(item.sku.rpartition(".")[2], item.count, item.units) for item in usage.items] == [
        ("cached-input", 1000, 0),
        ("input", 5000, 0),
        ("output", 2000, 0),
    ]


@pytest.mark.parametrize(
    ("model", "price", "cost"),
    [("gpt-4", ("30", "60"), "0.090000"), ("mistral-7b", ("0.1", "0.3"), "0.000400")],
)
async def test_a_thousand_tokens_in_and_out(
    cloud: Cloud, model: str, price: tuple[str, str], cost: str
) -> None:
    """FORM-13."""
    cloud.sell(model, price[0], "", price[1])
    await cloud.chat("a", 1000, 0, 1000)
    assert (await cloud.report()).total_cost == cost


async def test_each_project_pays_its_own_and_a_tenant_sees_all(cloud: Cloud) -> None:
    cloud.sell("bank", "1", "", "3")
    await cloud.chat("a", 1000, 0, 0)
    await cloud.chat("b", 5000, 0, 0, project_id=OTHER)
    assert (await cloud.report()).total_cost == "0.001000"
    assert (await cloud.report(OTHER)).total_cost == "0.005000"
    report = await cloud.report(TENANT)
    assert {line.parent_id: line.cost for line in report.lines} == {PROJECT: "0.001000", OTHER: "0.005000"}
    found, token = [], ""
    for _ in range(2):
        page = await cloud.usage(TENANT, page_size=1, page_token=token)
        found += [(item.parent_id, item.count) for item in page.items]
        token = page.next_page_token
    assert found == [(PROJECT, 1000), (OTHER, 5000)] and not token


async def test_a_request_costs_what_it_was_admitted_at(cloud: Cloud) -> None:
    """A price that changes during the day splits the line; what had none then is charged by the list."""
    cloud.sell("llama-3.1-8b", "1", "", "1")
    await cloud.chat("a", 1000, 0, 0)
    cloud.sell("llama-3.1-8b", "2", "", "2")
    await cloud.chat("b", 1000, 0, 0)
    cloud.sell("llama-3.1-8b", "", "", "")
    await cloud.chat("c", 1000, 0, 0)
    report = await cloud.report()
    assert [(line.unit_price, line.cost) for line in report.lines] == [
        ("0.02", "0.000020"),
        ("1.00", "0.001000"),
        ("2.00", "0.002000"),
    ]
    page = await cloud.usage(page_size=2)
    rest = await cloud.usage(page_size=2, page_token=page.next_page_token)
    assert [item.count for item in (*page.items, *rest.items)] == [1000] * 3


async def test_pages_repeat_nothing_that_is_aggregated_between_them(cloud: Cloud, tmp_path: Path) -> None:
    """Once the first hour of the day is a sum, and the second one is not yet."""
    cloud.sell("bank", "1", "", "3")
    await cloud.chat("a", 1500, 500, 200)
    await cloud.clock.advance(HOUR)
    await cloud.chat("b", 3000, 1000, 400)
    page = await cloud.usage(page_size=1)
    before = int((START + timedelta(minutes=30)).timestamp() * 1000)
    with closing(sqlite3.connect(ledger_file(tmp_path))) as connection, connection:
        assert aggregate_hour(connection, before)
    found, token = list(page.items), page.next_page_token
    for _ in range(2):
        page = await cloud.usage(page_size=1, page_token=token)
        found, token = [*found, *page.items], page.next_page_token
    assert [(item.sku.rpartition(".")[2], item.count) for item in found] == [
        ("cached-input", 1500),
        ("input", 3000),
        ("output", 600),
    ]
    assert not token


async def test_what_has_no_price_is_counted_and_marked(cloud: Cloud) -> None:
    cloud.sell("bank", "", "", "")
    await cloud.chat("a", 1500, 0, 0)
    (line,) = (report := await cloud.report()).lines
    assert (line.quantity, line.unit, line.is_unpriced, line.cost) == ("0.001500", "million-tokens", True, "")
    assert report.total_cost == "0.000000"


async def test_who_pays_by_the_hour_pays_nothing_for_tokens(cloud: Cloud) -> None:
    cloud.sell("bank", "5", "", "5", charge=1)
    await cloud.chat("a", 1500, 0, 0)
    (line,) = (await cloud.report()).lines
    assert (line.unit_price, line.cost, line.is_unpriced) == ("0.00", "0.000000", False)


async def test_bills_of_windows_that_meet_add_up(cloud: Cloud) -> None:
    cloud.sell("bank", "1", "0.5", "3")
    begin = cloud.clock.now()
    for number in range(30):
        await cloud.chat(f"{number}", 1000, 300, 100)
        await cloud.clock.advance(HOUR)
    end = cloud.clock.now()

    async def cost(start: datetime, until: datetime) -> Decimal:
        return Decimal((await cloud.report(start=start, end=until)).total_cost)

    cut = begin + timedelta(hours=7, minutes=30)
    assert await cost(begin, cut) + await cost(cut, end) == await cost(begin, end) == Decimal("0.0345")
    assert await cost(begin, cut) == Decimal("0.0092")


def counted(count: int, price: str | None, hour: int) -> CountedUsage:
    at = START.replace(hour=0) + timedelta(hours=hour)
    return CountedUsage(
        "d", "k", "bank", PROJECT, "tokens.bank.input", count, at, at + timedelta(hours=1), "million-tokens",
        10**6, None if price is None else Decimal(price),
    )  # fmt: skip


pieces = st.lists(
    st.builds(counted, st.integers(1, 10**9), st.sampled_from([None, "1", "0.02"]), st.integers(0, 60)),
    max_size=12,
)


@given(pieces, st.integers(1, 99))
def test_splitting_what_was_counted_never_changes_the_bill(usage: list[CountedUsage], share: int) -> None:
    parts = []
    for one in usage:
        first = one.count * share // 100
        for count in (first, one.count - first):
            if count:
                parts.append(
                    counted(count, None if one.unit_price is None else str(one.unit_price), _hour(one))
                )
    assert rate(parts, PRICES) == rate(usage, PRICES)
    lines = rate(usage, PRICES)
    sold = [(one.count, one.unit_price) for one in usage if one.unit_price is not None]
    exact = sum((count * price / 10**6 for count, price in sold), Decimal(0))
    assert abs(total(lines) - exact) <= len(lines) * Decimal("0.0000005")


def _hour(one: CountedUsage) -> int:
    return int((one.start - START.replace(hour=0)).total_seconds()) // HOUR
