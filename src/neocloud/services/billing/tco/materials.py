"""Price a plan's items, both exactly and as the published table prints them. FORM-01, FORM-02.

The published table rounds the hourly rate of a node to cents and each row to whole dollars, half to even; its
maximum is the printed minimum times the ratio of units. Rows have these figures and the unrounded ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

from neocloud.services.billing.rules.price_list import HOURS_PER_MONTH, PriceList, Unit
from neocloud.services.billing.tco.plan import Item
from neocloud.services.compute.public import preset

CENT = Decimal("0.01")
_WHOLE = Decimal(1)


class NoPrice(Exception):
    """An item has no price; the message says why and what to do."""

    def __init__(self, item: Item, message: str) -> None:
        super().__init__(f"{item.name}: {message}")
        self.item = item


@dataclass(frozen=True)
class Row:
    item: Item
    unit: str
    rate: Decimal
    """The price of one unit, as printed."""
    exact_rate: Decimal
    unit_month: Decimal
    """The cost of one unit in a month, at the printed rate and not rounded."""

    @property
    def minimum(self) -> Decimal:
        return dollars(self.exact_minimum)

    @property
    def maximum(self) -> Decimal:
        """The printed minimum scaled up; without a minimum, the rounded exact maximum."""
        if not self.item.count:
            return dollars(self.exact_maximum)
        return dollars(self.minimum * self.item.most / self.item.count)

    @property
    def exact_minimum(self) -> Decimal:
        return self.item.count * self.unit_month

    @property
    def exact_maximum(self) -> Decimal:
        return self.item.most * self.unit_month


@dataclass(frozen=True)
class Totals:
    minimum: Decimal
    maximum: Decimal
    exact_minimum: Decimal
    exact_maximum: Decimal


def dollars(amount: Decimal) -> Decimal:
    return amount.quantize(_WHOLE, ROUND_HALF_EVEN)


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def priced(item: Item, prices: PriceList, day: date) -> Row:
    """Return the row of an item. Raises NoPrice."""
    if item.platform:
        return _node(item, prices, day)
    if item.sku:
        return _storage(item, prices, day)
    return Row(item, "", Decimal(0), Decimal(0), Decimal(0))


def totals(rows: Sequence[Row]) -> Totals:
    return Totals(
        minimum=sum((row.minimum for row in rows), Decimal(0)),
        maximum=sum((row.maximum for row in rows), Decimal(0)),
        exact_minimum=sum((row.exact_minimum for row in rows), Decimal(0)),
        exact_maximum=sum((row.exact_maximum for row in rows), Decimal(0)),
    )


def _node(item: Item, prices: PriceList, day: date) -> Row:
    try:
        exact = prices.node_rate(preset(item.platform, item.preset), day)
    except LookupError as error:
        raise NoPrice(item, str(error)) from error
    rate = cents(exact)
    return Row(item, "node-hour", rate, exact, rate * HOURS_PER_MONTH)


def _storage(item: Item, prices: PriceList, day: date) -> Row:
    sku = prices.skus.get(item.sku)
    rate = sku.price_on(day) if sku is not None and sku.unit is Unit.GIB_MONTH else None
    if rate is None:
        known = ", ".join(sorted(each.name for each in prices.skus.values() if each.unit is Unit.GIB_MONTH))
        raise NoPrice(item, f"{item.sku} has no price by the GiB and month; SKUs with one: {known}")
    return Row(item, "gib-month", rate, rate, item.gib * rate)
