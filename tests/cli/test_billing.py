"""`neo billing` (FORM-01): exact sums of decimal strings, by resource, day or SKU."""

import json
from typing import Any

import pytest

from neocloud.core import contract
from tests.cli.conftest import Neo
from tests.cli.fake_cloud import PROJECT, FakeCloud

USAGE = "neocloud.billing.v1.UsageService"


def line(
    resource: str, day: str, cost: str, *, sku: str = "cpu-e2.vcpu", quantity: str = "0.1"
) -> dict[str, Any]:
    return {
        "resource_id": f"slurmcluster-e00{resource}", "resource_kind": "neocloud.slurm.v1.Cluster",
        "resource_name": resource, "day": day, "sku": sku, "quantity": quantity, "unit": "vcpu-hour",
        "unit_price": "0.012", "cost": cost, "is_unpriced": not cost,
    }  # fmt: skip


@pytest.fixture
def billed(cloud: FakeCloud) -> FakeCloud:
    lines = [
        line("bank", "2026-11-01", "0.1"),
        line("bank", "2026-11-02", "0.2"),
        line("lab", "2026-11-02", "1.0"),
        line("lab", "2026-11-02", "", sku="cpu-e2.fpga"),
    ]
    span = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-03T00:00:00Z"}
    answer = {"lines": lines, "total_cost": "1.3", "currency": "USD", **span}
    cloud.serve(
        f"{USAGE}/GetReport", contract.from_dict(contract.method(f"{USAGE}/GetReport").output, answer)
    )
    record = {
        "resource_id": "slurmcluster-e00bank", "resource_kind": "neocloud.slurm.v1.Cluster",
        "resource_name": "bank", "sku": "cpu-e2.vcpu",
        "units": "4", "seconds": "90", "start": "2026-11-01T10:00:00Z",
    }  # fmt: skip
    usage = contract.from_dict(contract.method(f"{USAGE}/ListUsage").output, {"items": [record]})
    cloud.serve(f"{USAGE}/ListUsage", usage)
    return cloud


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("resource", [["bank", "0.3"], ["lab", "price"], ["lab", "1.0"]]),
        ("day", [["2026-11-01", "0.1"], ["2026-11-02", "price"], ["2026-11-02", "1.2"]]),
        ("sku", [["cpu-e2.fpga", "price"], ["cpu-e2.vcpu", "1.3"]]),
    ],
)
def test_the_report_adds_up_exactly(
    signed_in: Neo, billed: FakeCloud, by: str, rows: list[list[str]]
) -> None:
    """0.1 + 0.2 is 0.3 in money."""
    ran = signed_in("billing", "report", "--by", by)
    assert ran.code == 0, ran.err
    found = [words for words in (text.split() for text in ran.out.split("\n\n")[0].splitlines()[1:])]
    assert [[words[0], words[-1]] for words in found] == rows
    assert "Total 1.3 USD" in ran.out


def test_what_has_no_price_is_said_and_not_counted_as_free(signed_in: Neo, billed: FakeCloud) -> None:
    assert "Without a price, so not in the total: cpu-e2.fpga." in signed_in("billing", "report").err


def test_dates_are_utc_days(signed_in: Neo, billed: FakeCloud) -> None:
    signed_in("billing", "report", "--from", "2026-11-01", "--to", "2026-11-03T02:00:00+02:00")
    [request] = billed.asked(f"{USAGE}/GetReport")
    assert contract.to_datetime(request.start).isoformat() == "2026-11-01T00:00:00+00:00"
    assert contract.to_datetime(request.end).isoformat() == "2026-11-03T00:00:00+00:00"
    assert request.parent_id == PROJECT


def test_a_date_that_is_none_is_misuse(signed_in: Neo, billed: FakeCloud) -> None:
    ran = signed_in("billing", "report", "--from", "yesterday")
    assert ran.code == 2
    assert "'yesterday' is no date. Write 2026-11-01" in ran.err


def test_usage_tells_how_long_what_was_used(signed_in: Neo, billed: FakeCloud) -> None:
    ran = signed_in("billing", "usage")
    assert ran.out.splitlines()[1].split() == [
        "bank",
        "Cluster",
        "cpu-e2.vcpu",
        "4",
        "90",
        "s",
        "2026-11-01",
        "10:00",
    ]
    assert json.loads(signed_in("billing", "usage", "-o", "json").out)["items"][0]["seconds"] == "90"
