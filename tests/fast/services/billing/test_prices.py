"""Prices: FORM-01, FORM-02, TCO-02 to TCO-06, BILL-01."""

from datetime import date
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from neocloud.services.billing.rules.price_list import (
    HOURS_PER_MONTH,
    PriceListError,
    default_price_list,
    load_price_list,
    parse_price_list,
)
from neocloud.services.compute.public import platforms, preset

TODAY = date(2026, 1, 31)
PRICES = default_price_list()
LOCAL_GPU = "gpu-local.gpu"


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(Decimal("0.01"), ROUND_HALF_UP)


def dollars(amount: Decimal) -> int:
    return int(amount.quantize(Decimal(1), ROUND_HALF_EVEN))


def gib_month(sku: str, gib: int) -> int:
    price = PRICES.skus[sku].price_on(TODAY)
    assert price is not None
    return dollars(gib * price)


@pytest.mark.parametrize(
    ("platform", "name", "exact", "shown"),
    [
        ("gpu-l40s-d", "2gpu-64vcpu-384gb", "4.5688", "4.57"),
        ("cpu-d3", "8vcpu-32gb", "0.1984", "0.20"),
        ("cpu-d3", "4vcpu-16gb", "0.0992", "0.10"),
    ],
)
def test_node_rates_of_the_fine_tuning_solution(platform: str, name: str, exact: str, shown: str) -> None:
    """FORM-02."""
    rate = PRICES.node_rate(preset(platform, name), TODAY)
    assert rate == Decimal(exact)
    assert cents(rate) == Decimal(shown)


@pytest.mark.parametrize(
    ("platform", "name", "rate"),
    [
        ("gpu-h200-sxm", "1gpu-16vcpu-200gb", "3.50"),
        ("gpu-h200-sxm", "8gpu-128vcpu-1600gb", "28.00"),
        ("gpu-h100-sxm", "1gpu-16vcpu-200gb", "2.95"),
        ("gpu-h100-sxm", "8gpu-128vcpu-1600gb", "23.60"),
        ("gpu-l40s-a", "1gpu-8vcpu-32gb", "1.5484"),
    ],
)
def test_on_demand_rates_are_the_published_ones(platform: str, name: str, rate: str) -> None:
    """BILL-01; the L40S rate is published rounded, as 1.55."""
    assert PRICES.node_rate(preset(platform, name), TODAY) == Decimal(rate)


@pytest.mark.parametrize(
    ("count", "platform", "name", "monthly"),
    [
        (5, "gpu-l40s-d", "2gpu-64vcpu-384gb", 16680),
        (3, "cpu-d3", "8vcpu-32gb", 438),
        (9, "cpu-d3", "8vcpu-32gb", 1314),
        (2, "cpu-d3", "4vcpu-16gb", 146),
        (1, "cpu-d3", "4vcpu-16gb", 73),
        (1, "cpu-d3", "8vcpu-32gb", 146),
    ],
)
def test_compute_rows_of_the_bill_of_materials(count: int, platform: str, name: str, monthly: int) -> None:
    """FORM-01, TCO-03: units x hourly rate in cents x 730 h."""
    rate = cents(PRICES.node_rate(preset(platform, name), TODAY))
    assert dollars(count * rate * HOURS_PER_MONTH) == monthly


@pytest.mark.parametrize(
    ("count", "gib", "sku", "monthly"),
    [
        (5, 558, "disk.network-ssd-non-replicated", 148),
        (3, 128, "disk.network-ssd", 27),
        (2, 128, "disk.network-ssd", 18),
        (1, 256, "disk.network-ssd", 18),
        (1, 128, "disk.network-ssd", 9),
        (1, 256, "filesystem.network-ssd", 20),
        (1, 1024, "filesystem.network-ssd", 82),
        (1, 128, "filesystem.network-ssd", 10),
        (7, 1024, "object-storage.standard", 105),
    ],
)
def test_storage_rows_of_the_bill_of_materials(count: int, gib: int, sku: str, monthly: int) -> None:
    """FORM-01, TCO-04 to TCO-06."""
    assert gib_month(sku, count * gib) == monthly


def test_every_part_of_every_platform_has_a_price_except_the_unknown_gpu() -> None:
    skus = {
        sku
        for platform in platforms().values()
        for shape in platform.presets.values()
        for sku in shape.skus()
    }
    assert {sku for sku in skus if sku not in PRICES.skus} == {LOCAL_GPU}
    with pytest.raises(LookupError, match=r"no price for gpu-local\.gpu on 2026-01-31"):
        PRICES.node_rate(preset("gpu-local", "1gpu-2vcpu-8gb"), TODAY)


def test_a_price_holds_until_the_next_begins() -> None:
    sku = PRICES.skus["gpu-h100-sxm.gpu"]
    assert sku.price_on(date(2024, 12, 31)) == Decimal("3.50")
    assert sku.price_on(date(2025, 1, 1)) == Decimal("2.95")
    assert sku.price_on(date(2019, 12, 31)) is None


OWN = """
currency: EUR
skus:
  cpu-local.vcpu:
    unit: vcpu-hour
    prices:
      - {from: 2026-01-01, price: "0.5"}
      - {from: 2026-02-01, until: 2026-03-01, price: "0.25"}
"""


def test_an_own_price_file_takes_the_place_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(OWN)
    prices = load_price_list(path)
    assert prices.currency == "EUR"
    sku = prices.skus["cpu-local.vcpu"]
    days = [date(2026, 1, 31), date(2026, 2, 1), date(2026, 3, 1)]
    assert [sku.price_on(day) for day in days] == [Decimal("0.5"), Decimal("0.25"), None]


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('"0.5"', "0.5", r'price must be a quoted decimal number such as "0.0032", not 0\.5'),
        ('"0.5"', '"-1"', "quoted decimal number"),
        ('"0.5"', '"NaN"', "quoted decimal number"),
        ('"0.5"', "true", "quoted decimal number"),
        ("vcpu-hour", "vcpu-hours", "unit must be one of gpu-hour, vcpu-hour, gib-hour, gib-month"),
        ("from: 2026-02-01", "from: 2025-02-01", "in order of from"),
        ("from: 2026-01-01", "from: soon", "written as 2026-01-31, not 'soon'"),
        ("from: 2026-01-01", "until: 2026-02-05, from: 2026-01-01", "lasts until 2026-02-05 though the next"),
        ("EUR", "euro", "three capital letters"),
        ("skus:", "sku:", "needs `currency` and `skus`"),
        ("{from", "{{from", "is not YAML"),
        ("unit: vcpu-hour", "unit: vcpu-hour\n    unit: gib-hour", "'unit' in line 6 is in line 5 already"),
        ("skus:", "skus:\n  cpu-local.vcpu: {}", "'cpu-local.vcpu' in line 5 is in line 4 already"),
        ("skus:", "tokens: [bank]\nskus:", "tokens must be a list of from, input and output for each"),
        (
            "skus:",
            "tokens:\n  bank:\n    - {from: 2026-01-01, input: 1}\nskus:",
            "bank.output: price must be",
        ),
        (
            "skus:",
            "tokens:\n  bank:\n    - {from: 2026-01-01, in: 1}\nskus:",
            "bank: each row has from, input",
        ),
        (
            "skus:",
            'tokens:\n  bank:\n    - {from: 2026-01-01, input: "0.000000001", output: "1"}\nskus:',
            "at most 8 decimals",
        ),
    ],
)
def test_a_faulty_price_file_is_refused_with_the_place(before: str, after: str, complaint: str) -> None:
    with pytest.raises(PriceListError, match=complaint):
        parse_price_list(OWN.replace(before, after), "mine.yaml")


def test_a_missing_price_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PriceListError, match=r"Cannot read the price list .*gone\.yaml"):
        load_price_list(tmp_path / "gone.yaml")
