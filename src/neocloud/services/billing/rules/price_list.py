"""The price list: the price of a unit of each SKU by day. The file is read and checked as a whole.

Money is Decimal from the file on; a price that is written as a float is refused.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from neocloud.core.json_values import as_list, is_list, is_mapping
from neocloud.core.readers import ServiceRegistry
from neocloud.services.billing.types import CACHED_INPUT, INPUT, TOKEN_KINDS, token_sku
from neocloud.services.compute.public import Preset

HOURS_PER_MONTH = 730
_HOUR = 3600
_LEAST_TOKEN_PRICE = Decimal("0.00000001")
"""For a million tokens: the smallest amount in the gateway's ledger."""


class PriceListError(Exception):
    """The file cannot be used; the message says where it is wrong and what is valid."""


class Unit(Enum):
    """The unit of a price: so many unit-seconds of held usage, or pieces of counted usage."""

    GPU_HOUR = ("gpu-hour", _HOUR)
    VCPU_HOUR = ("vcpu-hour", _HOUR)
    GIB_HOUR = ("gib-hour", _HOUR)
    GIB_MONTH = ("gib-month", HOURS_PER_MONTH * _HOUR)
    GIB = ("gib", 2**30)
    THOUSAND_REQUESTS = ("thousand-requests", 1000)
    MILLION_TOKENS = ("million-tokens", 10**6)

    def __init__(self, label: str, parts: int) -> None:
        self.label = label
        self.parts = parts


@dataclass(frozen=True)
class Price:
    """A price from the start of a day to the start of another (UTC), or without end."""

    amount: Decimal
    from_day: date
    until_day: date | None

    def holds_on(self, day: date) -> bool:
        return self.from_day <= day and (self.until_day is None or day < self.until_day)


@dataclass(frozen=True)
class Sku:
    name: str
    unit: Unit
    prices: tuple[Price, ...]

    def price_on(self, day: date) -> Decimal | None:
        return next((price.amount for price in self.prices if price.holds_on(day)), None)


@dataclass(frozen=True)
class PriceList:
    currency: str
    skus: Mapping[str, Sku]

    def node_rate(self, preset: Preset, day: date, *, is_preemptible: bool = False) -> Decimal:
        """Return the hourly price of a node, unrounded. Raises LookupError when a part has no price."""
        total = Decimal(0)
        for name, units in preset.skus(is_preemptible=is_preemptible).items():
            sku = self.skus.get(name)
            amount = sku.price_on(day) if sku else None
            if amount is None:
                raise LookupError(f"The price list has no price for {name} on {day}; add one.")
            total += units * amount
        return total


@cache
def default_price_list() -> PriceList:
    text = files("neocloud.services.billing").joinpath("prices.yaml").read_text(encoding="utf-8")
    return parse_price_list(text, "prices.yaml")


def load_price_list(path: Path | None) -> PriceList:
    """Return the price list in a file, or the one that ships. Raises PriceListError."""
    if path is None:
        return default_price_list()
    try:
        return parse_price_list(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise PriceListError(f"Cannot read the price list {path}: {error}. Check --price-file.") from error


def parse_price_list(text: str, source: str) -> PriceList:
    try:
        content = load_unique(text)
    except DuplicateKey as error:
        raise PriceListError(f"{source}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise PriceListError(f"{source} is not YAML: {error}") from error
    given = content.get("skus") if is_mapping(content) else None
    if not is_mapping(content) or not is_mapping(given):
        raise PriceListError(f"{source} needs `currency` and `skus`; start from a copy of prices.yaml.")
    try:
        entries = {**given, **token_entries(content.get("tokens"))}
        skus = {str(name): _sku(str(name), entry) for name, entry in entries.items()}
        return PriceList(currency=_currency(content.get("currency")), skus=skus)
    except PriceListError as error:
        raise PriceListError(f"{source}: {error}") from error


def token_entries(models: object) -> Mapping[str, object]:
    """Return the section `tokens`, which has a list of prices for each model, as one entry for each SKU."""
    if models is None:
        return {}
    if not is_mapping(models) or not all(is_list(rows) for rows in models.values()):
        raise PriceListError("tokens must be a list of from, input and output for each model's name")
    entries: dict[str, object] = {}
    for model, rows in models.items():
        for kind in TOKEN_KINDS:
            prices = [_row(f"tokens.{model}", row, kind) for row in as_list(rows)]
            entries[token_sku(str(model), kind)] = {"unit": Unit.MILLION_TOKENS.label, "prices": prices}
    return entries


def _row(name: str, row: object, kind: str) -> Mapping[str, object]:
    columns = {"from", "until", *(each.replace("-", "_") for each in TOKEN_KINDS)}
    if not is_mapping(row) or not set(row) <= columns:
        raise PriceListError(f"{name}: each row has from, input, output and perhaps cached_input and until")
    price = row.get(kind.replace("-", "_"))
    if price is None and kind == CACHED_INPUT:
        price = row.get(INPUT)
    return {"from": row.get("from"), "until": row.get("until"), "price": price}


def _currency(value: object) -> str:
    if isinstance(value, str) and len(value) == 3 and value.isupper():
        return value
    raise PriceListError("currency must be three capital letters, such as USD")


def _sku(name: str, entry: object) -> Sku:
    units = {unit.label: unit for unit in Unit}
    unit = entry.get("unit") if is_mapping(entry) else None
    if not is_mapping(entry) or not isinstance(unit, str) or unit not in units:
        raise PriceListError(f"{name}: unit must be one of {', '.join(units)}")
    rows = entry.get("prices")
    if not is_list(rows) or not rows:
        raise PriceListError(f"{name}: prices must be a list of from and price")
    sku = Sku(name, units[unit], tuple(_prices(name, rows)))
    if sku.unit is Unit.MILLION_TOKENS and any(price.amount % _LEAST_TOKEN_PRICE for price in sku.prices):
        raise PriceListError(f"{name}: a price of tokens has at most 8 decimals")
    return sku


_NO_ROW: Mapping[str, object] = {}


def _prices(name: str, rows: Sequence[object]) -> Sequence[Price]:
    found: list[Price] = []
    for index, row in enumerate(rows):
        following = rows[index + 1] if index + 1 < len(rows) else _NO_ROW
        if not is_mapping(row) or not is_mapping(following):
            raise PriceListError(f"{name}: each price needs from and price")
        price = Price(
            amount=_amount(name, row.get("price")),
            from_day=_day(name, row.get("from")),
            until_day=_until(name, row.get("until"), following.get("from")),
        )
        if price.until_day is not None and price.until_day <= price.from_day:
            raise PriceListError(f"{name}: prices must be in order of from, and end after they begin")
        found.append(price)
    return found


def _until(name: str, own: object, next_from: object) -> date | None:
    ends = [_day(name, value) for value in (own, next_from) if value is not None]
    if len(ends) == 2 and ends[0] > ends[1]:
        raise PriceListError(f"{name}: a price lasts until {ends[0]} though the next begins on {ends[1]}")
    return min(ends, default=None)


def _amount(name: str, value: object) -> Decimal:
    try:
        amount = Decimal(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    except InvalidOperation:
        amount = None
    if amount is None or not amount.is_finite() or amount < 0:
        raise PriceListError(f'{name}: price must be a quoted decimal number such as "0.0032", not {value!r}')
    return amount


def _day(name: str, value: object) -> date:
    if type(value) is date:
        return value
    raise PriceListError(f"{name}: a day must be written as 2026-01-31, not {value!r}")


def price_list(provided: ServiceRegistry) -> PriceList:
    """Return the price list to charge by: the operator's, else the one that ships."""
    return provided.find(PriceList) or default_price_list()


class DuplicateKey(yaml.MarkedYAMLError):
    """A mapping has the same key twice; the message names both lines."""


class _UniqueKeys(yaml.SafeLoader):
    if TYPE_CHECKING:  # its own signature has no types

        def construct_object(self, node: yaml.Node, deep: bool = False) -> object: ...

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if isinstance(key, Hashable) and key in lines:
                raise DuplicateKey(
                    problem=f"{key!r} in line {line} is in line {lines[key]} already; keep one of them"
                )
            if isinstance(key, Hashable):
                lines[key] = line
        return super().construct_mapping(node, deep)


def load_unique(text: str) -> Any:
    """Parse YAML, but refuse duplicate keys: plain YAML takes the last one. Raise yaml.YAMLError."""
    return yaml.load(text, Loader=_UniqueKeys)  # a SafeLoader  # nosec B506
