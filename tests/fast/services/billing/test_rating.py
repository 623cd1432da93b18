"""From usage to money: exact, stable, and the same however the time is cut. FORM-01, BILL-03."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from neocloud.core.usage import UsageRecord
from neocloud.services.billing.rules.cost import Line, days, rate, total
from neocloud.services.billing.rules.price_list import HOURS_PER_MONTH, default_price_list, parse_price_list

PRICES = default_price_list()
NOON = datetime(2026, 1, 30, 12, tzinfo=UTC)
CHANGING = parse_price_list(
    """
currency: USD
skus:
  cpu-d3.vcpu:
    unit: vcpu-hour
    prices:
      - {from: 2026-01-01, price: "1"}
      - {from: 2026-01-31, price: "3"}
""",
    "test",
)


def record(sku: str, units: int, start: datetime, seconds: int, name: str = "bank") -> UsageRecord:
    end = start + timedelta(seconds=seconds)
    return UsageRecord(
        "slurmcluster-e00a", "neocloud.slurm.v1.Cluster", name, "project-e00a", sku, units, start, end
    )


def test_an_hour_of_a_node_costs_its_hourly_rate() -> None:
    skus = {"gpu-l40s-d.gpu": 2, "gpu-l40s-d.vcpu": 64, "gpu-l40s-d.ram": 384}
    lines = rate([record(sku, units, NOON, 3600) for sku, units in skus.items()], PRICES)
    assert total(lines) == Decimal("4.5688")


def test_a_month_of_storage_costs_its_monthly_price() -> None:
    """FORM-01: a month is 730 hours."""
    seconds = HOURS_PER_MONTH * 3600
    lines = rate([record("filesystem.network-ssd", 1024, NOON, seconds)], PRICES)
    assert total(lines).quantize(Decimal("0.0001")) == Decimal("81.92")
    assert sum((line.quantity for line in lines), Decimal(0)).quantize(Decimal("0.001")) == 1024
    assert {line.unit for line in lines} == {"gib-month"}


def test_a_price_change_splits_the_line() -> None:
    lines = rate([record("cpu-d3.vcpu", 2, NOON, 24 * 3600)], CHANGING)
    assert [(line.day, line.quantity, line.unit_price, line.cost) for line in lines] == [
        (date(2026, 1, 30), Decimal("24"), Decimal("1"), Decimal("24")),
        (date(2026, 1, 31), Decimal("24"), Decimal("3"), Decimal("72")),
    ]


def test_what_has_no_price_is_flagged_and_not_added() -> None:
    usage = [record("quantum.qubit", 5, NOON, 7200), record("cpu-d3.vcpu", 1, NOON, 3600)]
    unpriced = [line for line in rate(usage, PRICES) if line.cost is None]
    assert [(line.sku, line.quantity, line.unit) for line in unpriced] == [("quantum.qubit", 10, "unit-hour")]
    assert total(rate(usage, PRICES)) == Decimal("0.012")


def test_before_the_first_price_a_sku_is_unpriced() -> None:
    (line,) = rate([record("cpu-d3.vcpu", 1, datetime(2025, 12, 31, tzinfo=UTC), 60)], CHANGING)
    assert line.cost is None
    assert line.unit == "vcpu-hour"


def test_a_line_is_rounded_half_up_to_a_millionth() -> None:
    (line,) = rate([record("cpu-d3.vcpu", 1, NOON, 1)], PRICES)
    assert line.cost == Decimal("0.000003")  # 0.012 / 3600 = 0.00000333...
    (line,) = rate([record("cpu-d3.vcpu", 9, NOON, 1)], CHANGING)
    assert (line.quantity, line.cost) == (Decimal("0.0025"), Decimal("0.0025"))


def test_an_empty_bill_is_nought() -> None:
    assert rate([], PRICES) == []
    assert total([]) == 0


moments = st.integers(0, 10 * 86400).map(lambda seconds: NOON + timedelta(seconds=seconds))
usages = st.lists(
    st.builds(
        record,
        st.sampled_from(["cpu-d3.vcpu", "cpu-d3.ram", "filesystem.network-ssd", "gpu-h100-sxm.gpu"]),
        st.integers(1, 10**6),
        moments,
        st.integers(1, 5 * 86400),
    ),
    max_size=8,
)


def split(one: UsageRecord, at: int) -> list[UsageRecord]:
    cut = one.seconds * at // 100
    if not 0 < cut < one.seconds:
        return [one]
    return [
        record(one.sku, one.units, one.start, cut),
        record(one.sku, one.units, one.start + timedelta(seconds=cut), one.seconds - cut),
    ]


@given(usages, st.integers(0, 100))
def test_cutting_usage_in_two_never_changes_the_bill(usage: list[UsageRecord], at: int) -> None:
    assert rate([part for one in usage for part in split(one, at)], PRICES) == rate(usage, PRICES)


@given(usages, st.randoms())
def test_the_order_of_usage_never_changes_the_bill(usage: list[UsageRecord], random) -> None:
    shuffled = list(usage)
    random.shuffle(shuffled)
    assert rate(shuffled, PRICES) == rate(usage, PRICES)


@given(usages)
def test_the_total_is_the_sum_of_the_lines_and_close_to_the_exact_cost(usage: list[UsageRecord]) -> None:
    lines: list[Line] = list(rate(usage, PRICES))
    assert total(lines) == sum(line.cost or 0 for line in lines)
    for line in lines:
        assert line.cost is not None and line.unit_price is not None
        # Quantity and cost are each rounded by at most half a millionth.
        assert abs(line.cost - line.quantity * line.unit_price) <= Decimal("0.0000005") * (
            1 + line.unit_price
        )


@given(moments, st.integers(0, 5 * 86400))
def test_days_add_up_to_the_whole_time(start: datetime, seconds: int) -> None:
    parts = list(days(start, start + timedelta(seconds=seconds)))
    assert sum(length for _, length in parts) == seconds
    assert all(0 < length <= 86400 for _, length in parts)
