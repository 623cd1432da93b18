"""Usage and report over a real store: what is in the history, and nothing else. BILL-03."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.core.contract import ApiError
from neocloud.core.readers import ServiceRegistry
from neocloud.core.service import Call
from neocloud.core.store import Resource, Store, open_store
from neocloud.core.usage import Meters, set_kept_from
from neocloud.services.billing import SERVICE
from neocloud.services.billing.api import get_report, list_usage
from neocloud.services.billing.rules.price_list import PriceList
from neocloud.services.compute import FilesystemMeter
from neocloud.services.compute.public import filesystem_spec
from neocloud.services.compute.types import FILESYSTEM
from neocloud.services.iam.types import CONTAINER
from neocloud.testing.waiting import FakeClock
from tests.control_plane import plain_dependencies

TENANT, PROJECT, OTHER = "tenant-e00a", "project-e00a", "project-e00b"
ListUsageRequest = contract.message("neocloud.billing.v1.ListUsageRequest")
GetReportRequest = contract.message("neocloud.billing.v1.GetReportRequest")
DAY = 86400


@dataclass
class Books:
    store: Store
    clock: FakeClock
    call: Call

    async def insert(self, resource_id: str, kind: str, parent_id: str, **columns) -> None:
        now = self.clock.now()
        row = Resource(resource_id, kind, parent_id, resource_id.partition("-")[2], now, now)
        await self.store.write(lambda tx: tx.insert(replace(row, **columns)))

    async def make_filesystem(self, resource_id: str, size: int, parent_id: str = PROJECT) -> None:
        spec = filesystem_spec(size).SerializeToString()
        await self.insert(resource_id, FILESYSTEM, parent_id, state="READY", spec=spec)

    async def delete(self, resource_id: str) -> None:
        await self.store.write(lambda tx: tx.delete(resource_id))

    async def report(self, parent_id: str = PROJECT, **window: Any):
        return await get_report(self.call, GetReportRequest(parent_id=parent_id, **window))

    async def usage(self, parent_id: str = PROJECT, **more: Any):
        return await list_usage(self.call, ListUsageRequest(parent_id=parent_id, **more))


@pytest.fixture
async def books() -> AsyncIterator[Books]:
    clock = FakeClock(datetime(2026, 1, 30, tzinfo=UTC))
    store = await open_store(":memory:", b"k" * 32, clock)
    dependencies = plain_dependencies(
        store, clock, ServiceRegistry().add(Meters, Meters((FilesystemMeter(),)))
    )
    books = Books(store, clock, Call(None, "r", {}, dependencies))
    await books.insert(TENANT, CONTAINER, "")
    await books.insert(PROJECT, CONTAINER, TENANT)
    await books.insert(OTHER, CONTAINER, TENANT)
    yield books
    await store.close()


async def test_a_report_has_a_line_for_each_day_and_a_total(books: Books) -> None:
    await books.make_filesystem("computefilesystem-e00x", 730)
    await books.clock.advance(1.5 * DAY)
    report = await books.report()
    lines = [(line.day, line.quantity, line.unit, line.unit_price, line.cost) for line in report.lines]
    assert lines == [
        ("2026-01-30", "24.000000", "gib-month", "0.08", "1.920000"),
        ("2026-01-31", "12.000000", "gib-month", "0.08", "0.960000"),
    ]
    assert {line.resource_name for line in report.lines} == {"e00x"}
    assert (report.total_cost, report.currency) == ("2.880000", "USD")
    assert Decimal(report.total_cost) == sum(Decimal(line.cost) for line in report.lines)


async def test_a_deleted_resource_stops_costing_and_stays_on_the_bill(books: Books) -> None:
    await books.make_filesystem("computefilesystem-e00x", 10)
    await books.clock.advance(3600)
    await books.delete("computefilesystem-e00x")
    before = await books.usage()
    await books.clock.advance(3600)
    after = await books.usage()
    assert [item.seconds for item in after.items] == [3600]
    assert list(before.items) == list(after.items)


async def test_a_bill_computed_again_is_the_same(books: Books) -> None:
    await books.make_filesystem("computefilesystem-e00x", 10)
    await books.clock.advance(DAY + 7.7)
    window: dict[str, Any] = {
        "start": datetime(2026, 1, 30, tzinfo=UTC),
        "end": datetime(2026, 1, 31, tzinfo=UTC),
    }
    first = await books.report(**window)
    await books.clock.advance(DAY)
    assert await books.report(**window) == first


async def test_the_default_window_is_this_month_until_now(books: Books) -> None:
    await books.make_filesystem("computefilesystem-e00x", 10)
    await books.clock.advance(3 * DAY)
    usage = await books.usage()
    assert contract.to_datetime(usage.start) == datetime(2026, 2, 1, tzinfo=UTC)
    assert [item.seconds for item in usage.items] == [DAY]


async def test_nothing_is_charged_for_the_future(books: Books) -> None:
    await books.make_filesystem("computefilesystem-e00x", 10)
    await books.clock.advance(60)
    usage = await books.usage(end=datetime(2027, 1, 1, tzinfo=UTC))
    assert [item.seconds for item in usage.items] == [60]
    later = await books.usage(start=datetime(2027, 1, 1, tzinfo=UTC))
    assert list(later.items) == []


async def test_a_project_sees_its_own_usage_and_a_tenant_that_of_all_projects(books: Books) -> None:
    await books.make_filesystem("computefilesystem-e00x", 10)
    await books.make_filesystem("computefilesystem-e00y", 20, OTHER)
    await books.clock.advance(60)
    assert [item.units for item in (await books.usage()).items] == [10]
    assert [item.units for item in (await books.usage(OTHER)).items] == [20]
    assert sorted(item.units for item in (await books.usage(TENANT)).items) == [10, 20]


async def test_pages_of_usage_are_the_whole_while_things_go_on(books: Books) -> None:
    """Also what runs on and what is new between two pages: the window is that of the first page."""
    for number in range(7):
        await books.make_filesystem(f"computefilesystem-e00x{number}", 10)
        await books.clock.advance(60 * (number % 3))
    await books.clock.advance(60)
    whole = await books.usage()
    found, token = [], ""
    for size in (3, 3, 1):
        page = await books.usage(page_size=size, page_token=token)
        assert (page.start, page.end) == (whole.start, whole.end)
        found += page.items
        token = page.next_page_token
        await books.make_filesystem(f"computefilesystem-e00a{len(found)}", 10)
        await books.clock.advance(3600)
    assert found == list(whole.items) and len(found) == 7
    assert not token and not whole.next_page_token
    assert len((await books.usage()).items) == 10


async def test_a_token_of_another_list_of_usage_is_refused(books: Books) -> None:
    for number in range(2):
        await books.make_filesystem(f"computefilesystem-e00x{number}", 10)
    await books.clock.advance(60)
    token = (await books.usage(page_size=1)).next_page_token
    others: list[dict[str, Any]] = [{"parent_id": TENANT}, {"start": datetime(2026, 1, 2, tzinfo=UTC)}]
    for other in others:
        with pytest.raises(ApiError, match="page_token"):
            await books.usage(page_token=token, **other)


async def test_an_unpriced_sku_is_flagged(books: Books) -> None:
    await books.make_filesystem("computefilesystem-e00x", 10)
    await books.clock.advance(60)
    report = await get_report(_without_prices(books.call), GetReportRequest(parent_id=PROJECT))
    (line,) = report.lines
    assert (line.is_unpriced, line.cost, line.unit_price, line.unit) == (True, "", "", "unit-hour")
    assert report.total_cost == "0.000000"


@pytest.mark.parametrize("parent_id", ["project-e00nowhere", "computefilesystem-e00x"])
async def test_only_projects_and_tenants_have_a_bill(books: Books, parent_id: str) -> None:
    await books.make_filesystem("computefilesystem-e00x", 10)
    with pytest.raises(ApiError, match="id of a project or a tenant"):
        await books.usage(parent_id)


async def test_a_window_that_ends_before_it_starts_is_refused(books: Books) -> None:
    with pytest.raises(ApiError, match="is before start"):
        await books.usage(start=datetime(2026, 1, 2, tzinfo=UTC), end=datetime(2026, 1, 1, tzinfo=UTC))


async def test_usage_of_before_what_is_kept_is_refused_not_shown_in_part(books: Books) -> None:
    kept = datetime(2026, 1, 1, 12, tzinfo=UTC)
    await books.store.write(lambda tx: set_kept_from(tx, kept - timedelta(days=1)))
    await books.store.write(lambda tx: set_kept_from(tx, kept))
    await books.clock.advance(86400)
    with pytest.raises(ApiError, match="2026-01-01T12:00:00Z or later"):
        await books.usage(start=kept - timedelta(seconds=1))
    await books.usage(start=kept)


def test_all_methods_ask_for_a_permission_on_the_parent() -> None:
    own = [
        method for method in SERVICE.methods if method.path.startswith("neocloud.billing.v1.UsageService/")
    ]
    permissions = {method.path.rpartition("/")[2]: method.permission for method in own}
    assert permissions == {
        "ListUsage": "billing.usage.list",
        "GetReport": "billing.reports.get",
        "GetFocusReport": "billing.reports.get",
    }
    request = GetReportRequest(parent_id=PROJECT)
    assert {method.target(request) for method in own if method.target} == {PROJECT}


def _without_prices(call: Call) -> Call:
    provided = call.dependencies.provided.copy().add(PriceList, PriceList("USD", {}))
    return replace(call, dependencies=replace(call.dependencies, provided=provided))
