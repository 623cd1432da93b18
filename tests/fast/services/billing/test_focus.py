"""The bill in the form of FOCUS 1.2: a row for each line of the report, with the same total."""

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.core.contract import ApiError
from neocloud.services.billing.api import StoreFocusBills, get_focus_report
from neocloud.services.billing.rules import focus
from neocloud.services.billing.rules.cost import Line
from tests.fast.services.billing.test_api import DAY, PROJECT, TENANT, Books, books

__all__ = ["books"]
GetFocusReportRequest = contract.message("neocloud.billing.v1.GetFocusReportRequest")
MANDATORY = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost"),
    *("PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
)
"""The columns whose feature level is "Mandatory" in version 1.2."""
NULLABLE = {"BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"}
WINDOW: dict[str, Any] = {
    "start": datetime(2026, 1, 30, 6, tzinfo=UTC),
    "end": datetime(2026, 2, 1, 6, tzinfo=UTC),
}


async def pages(books: Books, parent_id: str = PROJECT, **window: Any) -> list[str]:
    found, token = list[str](), ""
    while not found or token:
        request = GetFocusReportRequest(parent_id=parent_id, page_token=token, **window)
        page = await get_focus_report(books.call, request)
        found, token = [*found, page.csv], page.next_page_token
    return found


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


async def filled(books: Books) -> None:
    labels = {"team": "risk", "note": 'a "quoted", name'}
    await books.make_filesystem("computefilesystem-e00x", 730)
    await books.insert(
        "computefilesystem-e00y",
        "nebius.compute.v1.Filesystem",
        PROJECT,
        state="READY",
        labels=labels,
        spec=contract.message("nebius.compute.v1.FilesystemSpec")(
            size_gibibytes=17, type=1
        ).SerializeToString(),
    )
    await books.clock.advance(3.7 * DAY)


async def test_the_costs_are_those_of_the_report(books: Books) -> None:
    await filled(books)
    for window in ({}, WINDOW):
        report = await books.report(**window)
        rows = rows_of("".join(await pages(books, **window)))
        assert len(rows) == len(report.lines) > 2
        for column in ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost"):
            assert sum(Decimal(row[column]) for row in rows) == Decimal(report.total_cost) > 0
        shown = [(line.resource_id, line.sku, line.quantity, line.cost) for line in report.lines]
        assert shown == [
            (row["ResourceId"], row["SkuId"], row["ConsumedQuantity"], row["BilledCost"]) for row in rows
        ]


async def test_a_page_is_a_day_and_the_window_of_the_first_stays(books: Books) -> None:
    await filled(books)
    window = {"start": datetime(2026, 1, 30, 12, tzinfo=UTC)}
    first = await get_focus_report(books.call, GetFocusReportRequest(parent_id=PROJECT, **window))
    await books.clock.advance(10 * DAY)
    found, token = [first.csv], first.next_page_token
    while token:
        page = await get_focus_report(
            books.call, GetFocusReportRequest(parent_id=PROJECT, page_token=token, **window)
        )
        assert page.end == first.end
        found, token = [*found, page.csv], page.next_page_token
    assert [len({row["ChargePeriodStart"] for row in rows_of(found[0])})] == [1] and len(found) == 4
    assert rows_of("".join(found))[-1]["ChargePeriodEnd"] == first.end.ToJsonString()
    assert all(text.count("BilledCost") == (number == 0) for number, text in enumerate(found))


async def test_every_mandatory_column_is_there_and_null_only_where_that_is_allowed(books: Books) -> None:
    await filled(books)
    rows = rows_of("".join(await pages(books, **WINDOW)))
    assert set(MANDATORY) <= set(focus.COLUMNS) and list(rows[0]) == list(focus.COLUMNS)
    assert all(row[column] for row in rows for column in MANDATORY if column not in NULLABLE)
    first, last = rows[0], rows[-1]
    assert (first["BillingAccountId"], first["SubAccountId"]) == (TENANT, PROJECT)
    assert (first["ChargePeriodStart"], first["ChargePeriodEnd"]) == (
        "2026-01-30T06:00:00Z",
        "2026-01-31T00:00:00Z",
    )
    assert (last["ChargePeriodStart"], last["ChargePeriodEnd"]) == (
        "2026-02-01T00:00:00Z",
        "2026-02-01T06:00:00Z",
    )
    assert (first["BillingPeriodStart"], first["BillingPeriodEnd"]) == (
        "2026-01-01T00:00:00Z",
        "2026-02-01T00:00:00Z",
    )
    assert (last["BillingPeriodStart"], last["BillingPeriodEnd"]) == (
        "2026-02-01T00:00:00Z",
        "2026-03-01T00:00:00Z",
    )
    assert json.loads(last["Tags"]) == {"team": "risk", "note": 'a "quoted", name'} and not first["Tags"]
    assert (first["PricingUnit"], first["ServiceSubcategory"]) == ("GiB-Months", "File Storage")


async def test_an_empty_bill_is_a_header(books: Books) -> None:
    assert "".join(await pages(books)) == focus.header()
    text = await StoreFocusBills(books.call.dependencies)(TENANT, WINDOW["start"], WINDOW["end"])
    assert text == focus.header()


async def test_the_bill_of_a_tenant_is_that_of_its_projects(books: Books) -> None:
    await filled(books)
    text = await StoreFocusBills(books.call.dependencies)(TENANT, WINDOW["start"], WINDOW["end"])
    assert text == "".join(await pages(books, TENANT, **WINDOW)) == "".join(await pages(books, **WINDOW))


async def test_a_token_of_another_report_is_refused(books: Books) -> None:
    await filled(books)
    first = await get_focus_report(books.call, GetFocusReportRequest(parent_id=PROJECT))
    for parent_id, token in ((TENANT, first.next_page_token), (PROJECT, first.next_page_token[:-2] + "aa")):
        with pytest.raises(ApiError, match="page_token"):
            await get_focus_report(books.call, GetFocusReportRequest(parent_id=parent_id, page_token=token))


def line(**changes: Any) -> Line:
    fields: dict[str, Any] = {
        "resource_id": "inferencedeployment-e00x",
        "resource_kind": "neocloud.inference.v1.Deployment",
        "resource_name": "chat",
        "day": date(2026, 12, 31),
        "sku": "tokens.chat.input",
        "quantity": Decimal("1.500000"),
        "unit": "million-tokens",
        "unit_price": Decimal("0.02"),
        "cost": Decimal("0.030000"),
        "parent_id": PROJECT,
    }
    return Line(**{**fields, **changes})


def row_of(one: Line, **names: str) -> dict[str, str]:
    account = focus.Account(
        tenant_id=TENANT,
        tenant_name=names.get("tenant", "bank"),
        currency="USD",
        region="eu-north1",
        projects={PROJECT: names.get("project", "risk")},
        labels={},
        start=datetime(2026, 12, 31, tzinfo=UTC),
        end=datetime(2027, 1, 1, tzinfo=UTC),
    )
    (found,) = rows_of(focus.header() + focus.rows([one], account))
    return found


def test_what_has_no_price_costs_nothing_and_says_so() -> None:
    found = row_of(line(unit_price=None, cost=None))
    assert (found["BilledCost"], found["ListUnitPrice"], found["SkuPriceId"]) == ("0", "", "")
    assert found["x_IsUnpriced"] == "true" and row_of(line())["x_IsUnpriced"] == "false"


def test_tokens_and_the_end_of_a_year() -> None:
    found = row_of(line())
    assert (found["PricingUnit"], found["PricingQuantity"]) == ("1000000 Tokens", "1.500000")
    assert (found["ServiceCategory"], found["ServiceSubcategory"]) == (
        "AI and Machine Learning",
        "Generative AI",
    )
    assert found["BillingPeriodEnd"] == found["ChargePeriodEnd"] == "2027-01-01T00:00:00Z"


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", 'a","b\n=1', "\t=1"])
def test_a_name_is_no_formula_and_ends_no_row(name: str) -> None:
    """Tenants choose names; the reader of the bill opens it in a spreadsheet."""
    found = row_of(line(resource_name=name, unit="=unit", resource_kind="x"), tenant=name, project=name)
    for column in ("ResourceName", "BillingAccountName", "SubAccountName"):
        assert found[column].lstrip("'") == name and found[column][0] not in "=+-@\t\r"
    assert all(value[:1] not in ("=", "+", "-", "@") for value in found.values())
    assert None not in found
