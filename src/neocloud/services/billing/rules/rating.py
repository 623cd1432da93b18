"""From usage to money: a line for each resource, UTC day and SKU.

Prices hold for whole UTC days, so cutting usage at midnight also cuts it where a price changes. A line's cost
is computed exactly and rounded once, half up, to a millionth; the total is the sum of the lines as shown.
Nothing else is rounded, so the same history and price list always give the same bill.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

from neocloud.core.usage import UsageRecord
from neocloud.services.billing.rules.price_list import PriceList

DECIMALS = 6
_HOUR_SECONDS = 3600
UNKNOWN_UNIT = "unit-hour"


@dataclass(frozen=True)
class Line:
    resource_id: str
    resource_kind: str
    resource_name: str
    day: date
    sku: str
    quantity: Decimal
    unit: str
    unit_price: Decimal | None
    """None: the price list has none for this SKU on this day."""
    cost: Decimal | None


@dataclass(frozen=True)
class _Group:
    """What is added up: one resource, one day, one SKU. The name is the newest one."""

    resource_id: str
    resource_kind: str
    day: date
    sku: str


def rate(records: Iterable[UsageRecord], prices: PriceList) -> Sequence[Line]:
    """Lines in order of day, resource and SKU."""
    unit_seconds: dict[_Group, int] = {}
    names: dict[str, tuple[datetime, str]] = {}
    for record in records:
        names[record.resource_id] = max(
            names.get(record.resource_id, (record.start, record.resource_name)),
            (record.start, record.resource_name),
        )
        for day, seconds in days(record.start, record.end):
            group = _Group(record.resource_id, record.resource_kind, day, record.sku)
            unit_seconds[group] = unit_seconds.get(group, 0) + record.units * seconds
    ordered = sorted(unit_seconds, key=lambda group: (group.day, group.resource_id, group.sku))
    return [_line(group, names[group.resource_id][1], unit_seconds[group], prices) for group in ordered]


def total(lines: Iterable[Line]) -> Decimal:
    """The sum of what is priced."""
    return sum((line.cost for line in lines if line.cost is not None), Decimal(0).scaleb(-DECIMALS))


def days(start: datetime, end: datetime) -> Iterator[tuple[date, int]]:
    """The UTC days that [start, end) touches, and how many of its seconds lie in each."""
    while start < end:
        midnight = datetime.combine(start.date() + timedelta(days=1), time(), UTC)
        stop = min(midnight, end)
        yield start.date(), int((stop - start).total_seconds())
        start = stop


def _line(group: _Group, name: str, unit_seconds: int, prices: PriceList) -> Line:
    sku = prices.skus.get(group.sku)
    price = sku.price_on(group.day) if sku else None
    quantity = Fraction(unit_seconds, sku.unit.seconds if sku else _HOUR_SECONDS)
    return Line(
        resource_id=group.resource_id,
        resource_kind=group.resource_kind,
        resource_name=name,
        day=group.day,
        sku=group.sku,
        quantity=_rounded(quantity),
        unit=sku.unit.label if sku else UNKNOWN_UNIT,
        unit_price=price,
        cost=None if price is None else _rounded(quantity * Fraction(price)),
    )


def _rounded(value: Fraction) -> Decimal:
    """Half up to a millionth, by whole numbers: exact whatever the size."""
    millionths, rest = divmod(value.numerator * 10**DECIMALS, value.denominator)
    millionths += 2 * rest >= value.denominator
    return Decimal(millionths).scaleb(-DECIMALS)
