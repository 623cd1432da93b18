"""The plan: rows and parameters of a bill of materials (plan.yaml), and the guide to models (guide.yaml)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_MOST = 1_000_000_000
_NUMBER = re.compile(r"[0-9]{1,12}([.][0-9]{1,6})?")


class WrongValue(Exception):
    """An unknown parameter, or a value that it cannot have; `index` is its position in the list."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True)
class Parameter:
    name: str
    default: str | int
    about: str

    def value(self, given: str) -> str | int:
        """Return the value as the plan uses it. Raises ValueError with what is valid."""
        if isinstance(self.default, int):
            if not given.isdecimal() or not given.isascii() or int(given) > _MOST:
                raise ValueError(f"{self.name} must be a whole number from 0 to {_MOST}, not {given!r}")
            return int(given)
        if self.name == "monthly_cost" and given and not _NUMBER.fullmatch(given):
            raise ValueError(f"{self.name} must be an amount such as 19000, not {given!r}")
        return given


@dataclass(frozen=True)
class Item:
    """One row to price: nodes of a shape, storage of an SKU, or neither, which is free."""

    section: str
    name: str
    count: int
    most: int
    platform: str = ""
    preset: str = ""
    sku: str = ""
    gib: int = 0


@dataclass(frozen=True)
class Values:
    """Every parameter, as given or with its default."""

    by_name: Mapping[str, str | int]
    changed: frozenset[str]

    def number(self, name: str) -> int:
        return int(self.by_name[name])

    def amount(self, name: str) -> Decimal | None:
        text = str(self.by_name[name])
        return Decimal(text) if text else None


@cache
def _content() -> Any:
    text = files("neocloud.services.billing.tco").joinpath("plan.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def parameters() -> Sequence[Parameter]:
    return [Parameter(**entry) for entry in _content()["parameters"]]


def usual_scenarios() -> Sequence[tuple[str, Decimal]]:
    return [(entry["name"], Decimal(entry["tokens_per_second"])) for entry in _content()["scenarios"]]


def values(given: Iterable[tuple[str, str]]) -> Values:
    """Return all parameters, with the given values. Raises WrongValue."""
    known = {each.name: each for each in parameters()}
    found: dict[str, str | int] = {}
    for index, (name, text) in enumerate(given):
        if name not in known:
            raise WrongValue(index, f"{name!r} is not a parameter; there are {', '.join(known)}")
        if name in found:
            raise WrongValue(index, f"{name} is given twice; give it once")
        try:
            found[name] = known[name].value(text)
        except ValueError as error:
            raise WrongValue(index, str(error)) from error
    changed = frozenset(name for name, value in found.items() if value != known[name].default)
    return Values({each.name: found.get(each.name, each.default) for each in known.values()}, changed)


def items(chosen: Values) -> Sequence[Item]:
    """Return the rows of the plan with these values."""
    return [_item(entry, chosen) for entry in _content()["rows"]]


def _item(entry: Mapping[str, str | int], chosen: Values) -> Item:
    filled = {
        key: chosen.by_name[value[1:]] if isinstance(value, str) and value.startswith("$") else value
        for key, value in entry.items()
    }
    count = int(filled["count"])
    return Item(
        section=str(filled["section"]),
        name=str(filled["name"]),
        count=count,
        most=max(count, int(filled.get("most", count))),
        platform=str(filled.get("platform", "")),
        preset=str(filled.get("preset", "")),
        sku=str(filled.get("sku", "")),
        gib=int(filled.get("gib", 0)),
    )


@dataclass(frozen=True)
class Choice:
    """A question to answer before choosing a small or a large model. TCO-10."""

    question: str
    small_model: str
    large_model: str
    advice: str


@cache
def choices() -> Sequence[Choice]:
    text = files("neocloud.services.billing.tco").joinpath("guide.yaml").read_text(encoding="utf-8")
    return [Choice(**entry) for entry in yaml.safe_load(text)]
