"""Compute the cost of usage, and of a resource that might be created. Pure.

Usage is rated as a line for each resource, UTC day and SKU, and for each price that it was sold at. Prices
hold for whole UTC days, so cutting usage at midnight also cuts it where a price changes. A line's cost is
computed exactly and rounded once, half up, to a millionth; the total is the sum of the lines as shown.
Nothing else is rounded, so the same history and price list always give the same bill.

An estimate goes from the units that a request would hold to money: today's prices times the units, exactly;
only shown figures are rounded. A month is 730 hours, as in a bill.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, ROUND_UP, Decimal
from fractions import Fraction

from neocloud.core.kind import Violation
from neocloud.core.usage import CountedUsage, Credit, CreditCause, UsageRecord
from neocloud.services.billing.rules.held import NoEstimate, Units
from neocloud.services.billing.rules.price_list import HOURS_PER_MONTH, PriceList

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
    parent_id: str = ""
    """The project that pays."""
    credit: CreditCause | None = None
    """Why the tenant is not charged for this: quantity and cost are negative then."""
    sold_at: Decimal | None = None
    """The price that counted usage was sold at; None: that of the price list."""


@dataclass(frozen=True)
class _UsageLine:
    """Usage that is added up in one line."""

    parent_id: str
    resource_id: str
    resource_kind: str
    day: date
    sku: str
    unit: str = ""
    """The unit of counted usage, with its size; units of held usage are in the price list."""
    unit_size: int = 0
    sold_at: Decimal | None = None
    """None: at the price of the price list."""
    credit: CreditCause | None = None

    @property
    def order(self) -> tuple[object, ...]:
        cause = (self.credit.part, self.credit.cause, self.credit.evidence) if self.credit else ()
        return self.day, self.resource_id, self.sku, self.parent_id, self.sold_at or Decimal(0), cause


def rate(
    records: Iterable[UsageRecord | CountedUsage], prices: PriceList, credits: Iterable[Credit] = ()
) -> Sequence[Line]:
    """Return the lines in order of day, resource and SKU, credits after what they are a part of.

    A credit is rounded down, so that all credits of a line are never more than the line.
    """
    amounts: dict[_UsageLine, int] = {}
    names: dict[_UsageLine, tuple[datetime, str]] = {}
    for record in records:
        for group, amount in _amounts(record):
            amounts[group] = amounts.get(group, 0) + amount
            named = _named(group)
            names[named] = max(names.get(named, (record.start, "")), (record.start, record.resource_name))
    for credit in credits:
        for group, amount in _amounts(credit.usage):
            credited = replace(group, credit=credit.cause)
            amounts[credited] = amounts.get(credited, 0) + amount
            names.setdefault(_named(credited), (credit.usage.start, credit.usage.resource_name))
    ordered = sorted(amounts, key=lambda group: group.order)
    return [_line(group, names[_named(group)][1], amounts[group], prices) for group in ordered]


def _amounts(record: UsageRecord | CountedUsage) -> Iterator[tuple[_UsageLine, int]]:
    """Yield unit-seconds or pieces, by day."""
    group = _UsageLine(
        record.parent_id, record.resource_id, record.resource_kind, record.start.date(), record.sku
    )
    if isinstance(record, CountedUsage):
        sold = replace(group, unit=record.unit, unit_size=record.unit_size, sold_at=record.unit_price)
        yield sold, record.count
        return
    for day, seconds in days(record.start, record.end):
        yield replace(group, day=day), record.units * seconds


def _named(group: _UsageLine) -> _UsageLine:
    """Return the group whose newest name is shown: the resource, or each model of one that serves several."""
    same = replace(group, day=date.min, sold_at=None, credit=None)
    return same if group.unit else replace(same, sku="")


def total(lines: Iterable[Line]) -> Decimal:
    """Return the sum of the priced lines."""
    return sum((line.cost for line in lines if line.cost is not None), Decimal(0).scaleb(-DECIMALS))


def days(start: datetime, end: datetime) -> Iterator[tuple[date, int]]:
    """Yield the UTC days of [start, end), with the seconds in each."""
    while start < end:
        midnight = datetime.combine(start.date() + timedelta(days=1), time(), UTC)
        stop = min(midnight, end)
        yield start.date(), int((stop - start).total_seconds())
        start = stop


def _line(group: _UsageLine, name: str, amount: int, prices: PriceList) -> Line:
    sku = prices.skus.get(group.sku)
    price = group.sold_at
    if price is None and sku is not None:
        price = sku.price_on(group.day)
    unit, size = group.unit or UNKNOWN_UNIT, group.unit_size or _HOUR_SECONDS
    if sku is not None and not group.unit:
        unit, size = sku.unit.label, sku.unit.parts
    quantity = Fraction(amount, size)
    rounded, sign = (_rounded, 1) if group.credit is None else (_rounded_down, -1)
    return Line(
        resource_id=group.resource_id,
        resource_kind=group.resource_kind,
        resource_name=name,
        day=group.day,
        sku=group.sku,
        quantity=sign * rounded(quantity),
        unit=unit,
        unit_price=price,
        cost=None if price is None else sign * rounded(quantity * Fraction(price)),
        parent_id=group.parent_id,
        credit=group.credit,
        sold_at=group.sold_at,
    )


def _rounded(value: Fraction) -> Decimal:
    """Round half up to a millionth, in integers: exact whatever the size."""
    millionths, rest = divmod(value.numerator * 10**DECIMALS, value.denominator)
    millionths += 2 * rest >= value.denominator
    return Decimal(millionths).scaleb(-DECIMALS)


def _rounded_down(value: Fraction) -> Decimal:
    return Decimal(value.numerator * 10**DECIMALS // value.denominator).scaleb(-DECIMALS)


HOUR = 3600
SPANS: Mapping[str, int] = {
    "minute": 60,
    "hour": HOUR,
    "day": 24 * HOUR,
    "week": 7 * 24 * HOUR,
    "month": HOURS_PER_MONTH * HOUR,
}
"""Seconds of each unit of time of an estimate."""
USUAL_SPANS = ("hour", "month")
_EXACT = Decimal(1).scaleb(-12)
_CENT = Decimal("0.01")


@dataclass(frozen=True)
class SkuCost:
    sku: str
    quantity: Fraction
    cost: Fraction


def costs(held: Units, span: str, prices: PriceList, day: date) -> Sequence[SkuCost]:
    """Return the cost of these units for one `span` of time at the day's prices. Raises NoEstimate."""
    found: list[SkuCost] = []
    for sku_name, number in sorted(held.items()):
        sku = prices.skus.get(sku_name)
        price = sku.price_on(day) if sku else None
        if sku is None or price is None:
            why = f"needs {sku_name}, which has no price; add one to the price list (neo up --price-file)"
            raise NoEstimate(Violation("spec", why))
        quantity = Fraction(number * SPANS[span], sku.unit.parts)
        found.append(SkuCost(sku_name, quantity, quantity * Fraction(price)))
    return found


def exact(value: Fraction) -> str:
    """Return the number with at most twelve decimals, without trailing zeros."""
    number = Decimal(value.numerator) / Decimal(value.denominator)
    text = f"{number.quantize(_EXACT, rounding=ROUND_HALF_UP):f}"
    return text.rstrip("0").rstrip(".")


def rounded_up(value: Fraction) -> str:
    return f"{(Decimal(value.numerator) / Decimal(value.denominator)).quantize(_CENT, rounding=ROUND_UP):f}"
