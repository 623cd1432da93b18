"""The catalogue of known models, and the terms of a model's tokens. Pure.

An unknown model can be served and sold too: it has the usual limit, and the price of the price list or of its
deployment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any

from neocloud.services.billing.rules.price_list import PriceList, load_unique
from neocloud.services.billing.types import TOKEN_KINDS, TokenPrices, TokenTerms, token_sku

FAST = "-fast"


@dataclass(frozen=True)
class KnownModel:
    name: str
    also: tuple[str, ...]
    context_length: int
    license: str
    tokens_per_minute: int


@dataclass(frozen=True)
class Catalogue:
    models: tuple[KnownModel, ...]
    tokens_per_minute: int
    """The limit of a tenant for any other model."""

    def find(self, name: str) -> KnownModel | None:
        """Find a model by any of its names, in either flavour."""
        return self._by_name.get(_plain(name).removesuffix(FAST))

    @property
    def _by_name(self) -> Mapping[str, KnownModel]:
        return _by_name(self)


@cache
def default_catalogue() -> Catalogue:
    content = load_unique(files("neocloud.services.billing").joinpath("models.yaml").read_text("utf-8"))
    usual = content["tokens_per_minute"]
    return Catalogue(tuple(_models(content["models"], usual)), usual)


def token_prices(prices: PriceList, catalogue: Catalogue | None = None) -> TokenPrices:
    """Return a lookup that joins the price list and the catalogue."""
    known = catalogue or default_catalogue()

    def terms(name: str, day: date) -> TokenTerms:
        model = known.find(name)
        listed = _listed_name(name, model, prices)
        amounts = [_price(prices, token_sku(listed, kind), day) for kind in TOKEN_KINDS]
        return TokenTerms(
            *amounts,
            tokens_per_minute=model.tokens_per_minute if model else known.tokens_per_minute,
            context_length=model.context_length if model else 0,
            license=model.license if model else "",
            name=model.name if model else "",
        )

    return terms


def priced_models(prices: PriceList) -> Iterator[str]:
    """Yield the models with prices of tokens in the price list, in its order."""
    start, end = "tokens.", ".input"
    for sku in prices.skus:
        if sku.startswith(start) and sku.endswith(end):
            yield sku[len(start) : -len(end)]


def _listed_name(name: str, model: KnownModel | None, prices: PriceList) -> str:
    """Return the name itself if the price list has it, else the catalogue's name in the same flavour."""
    if model is None or token_sku(name, TOKEN_KINDS[0]) in prices.skus:
        return name
    return model.name + (FAST if _plain(name).endswith(FAST) else "")


def _price(prices: PriceList, sku_name: str, day: date) -> str:
    sku = prices.skus.get(sku_name)
    amount = sku.price_on(day) if sku else None
    return "" if amount is None else f"{amount:f}"


def _models(entries: Mapping[str, Mapping[str, Any]], usual: int) -> Iterator[KnownModel]:
    for name, entry in entries.items():
        yield KnownModel(
            name=name,
            also=tuple(entry.get("also", ())),
            context_length=entry["context_length"],
            license=entry["license"],
            tokens_per_minute=entry.get("tokens_per_minute", usual),
        )


@cache
def _by_name(catalogue: Catalogue) -> Mapping[str, KnownModel]:
    return {_plain(name): model for model in catalogue.models for name in (model.name, *model.also)}


def _plain(name: str) -> str:
    return name.rpartition("/")[2].casefold()
