"""Token prices of models, and their published properties.
AIS-05 to AIS-08, AIS-11, AIS-14, AIS-16, FORM-13, FORM-18."""

from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any

import httpx
import pytest
import pytest_asyncio

from neocloud.services.billing.rules.catalogue import default_catalogue, priced_models, token_prices
from neocloud.services.billing.rules.price_list import default_price_list, parse_price_list
from tests.fast.services.billing.conftest import Bank, running_bank

shared = pytest.mark.asyncio(loop_scope="module")

TODAY = date(2026, 11, 1)
PRICES = default_price_list()
terms_of = token_prices(PRICES)

PUBLISHED = """
    llama-3.1-8b               .03 .09  .02 .06
    llama-3.1-70b              .25 .75  .13 .40
    llama-3.1-405b             -   -    1   3
    mistral-nemo               .08 .24  .04 .12
    mixtral-8x7b               .15 .45  .08 .24
    mixtral-8x22b              .70 2.1  .40 1.2
    olmo-7b                    -   -    .08 .24
    qwen2.5-coder-7b           .03 .09  .01 .03
    qwen2.5-coder-7b-instruct  .03 .09  .01 .03
    phi-3-mini                 .13 .4   .04 .12
    deepseek-coder-v2-lite     .08 .24  .04 .12
"""
ROWS = [row.split() for row in PUBLISHED.strip().splitlines()]


@pytest.mark.parametrize(("model", "fast_in", "fast_out", "base_in", "base_out"), ROWS)
def test_prices_are_the_published_ones(model: str, fast_in: str, fast_out: str, base_in: str, base_out: str):
    """AIS-05, AIS-06: fast then base, in and out, for a million tokens."""
    base, fast = terms_of(model, TODAY), terms_of(f"{model}-fast", TODAY)
    assert (Decimal(base.input), Decimal(base.output)) == (Decimal(base_in), Decimal(base_out))
    assert base.cached_input == base.input
    if fast_in == "-":
        assert not fast.is_priced
    else:
        assert (Decimal(fast.input), Decimal(fast.output)) == (Decimal(fast_in), Decimal(fast_out))


def test_there_are_no_other_models_and_output_is_three_times_input() -> None:
    """AIS-11: a ratio of 3.0 to 3.25."""
    names = list(priced_models(PRICES))
    assert {name.removesuffix("-fast") for name in names} == {row[0] for row in ROWS}
    assert {model.name for model in default_catalogue().models} == {row[0] for row in ROWS}
    for name in names:
        terms = terms_of(name, TODAY)
        assert Decimal("3") <= Decimal(terms.output) / Decimal(terms.input) <= Decimal("3.25"), name


@pytest.mark.parametrize(
    ("context", "models"),
    [
        (128, ["llama-3.1-8b", "llama-3.1-405b", "mistral-nemo", "deepseek-coder-v2-lite"]),
        (64, ["mixtral-8x22b"]),  # published as 65k: 65,536
        (2, ["olmo-7b"]),
        (4, ["phi-3-mini"]),
    ],
)
def test_contexts_are_the_published_ones(context: int, models: list[str]) -> None:
    """AIS-07."""
    assert {terms_of(model, TODAY).context_length for model in models} == {context * 1024}


def test_every_model_has_a_licence_and_its_limit() -> None:
    """AIS-07, AIS-08: 100,000 tokens a minute for the 405B model, 200,000 for all others."""
    for model in default_catalogue().models:
        terms = terms_of(model.name, TODAY)
        assert terms.license
        assert terms.tokens_per_minute == (100_000 if model.name == "llama-3.1-405b" else 200_000)
    assert terms_of("of-our-own", TODAY).tokens_per_minute == 200_000


@pytest.mark.parametrize(
    ("name", "model", "price"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b", "0.02"),
        ("Meta-Llama-3.1-8B-Instruct-fast", "llama-3.1-8b", "0.03"),
        ("LLAMA-3.1-8B", "llama-3.1-8b", "0.02"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-coder-7b-instruct", "0.01"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct-fast", "llama-3.1-405b", ""),
        ("bank", "", ""),
        ("bank-fast", "", ""),
        ("-fast", "", ""),
    ],
)
def test_a_model_is_known_by_any_of_its_names(name: str, model: str, price: str) -> None:
    terms = terms_of(name, TODAY)
    assert (terms.name, terms.input) == (model, price)


def test_ones_own_models_and_prices_have_their_days() -> None:
    own = parse_price_list(
        """
currency: EUR
skus: {}
tokens:
  bank:
    - {from: 2026-01-01, input: "1", cached_input: "0.25", output: "4"}
    - {from: 2026-11-01, input: "2", output: "5", until: 2026-12-01}
""",
        "mine.yaml",
    )
    terms = token_prices(own)
    found = [terms("bank", date(2026, month, 1)) for month in (10, 11, 12)]
    assert [(each.input, each.cached_input, each.output) for each in found] == [
        ("1", "0.25", "4"),
        ("2", "2", "5"),
        ("", "", ""),
    ]
    assert not terms("llama-3.1-8b", TODAY).is_priced
    assert list(priced_models(own)) == ["bank"]


@pytest_asyncio.fixture(scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bank]:
    """Run one bank for all tests here: estimates change nothing."""
    async with running_bank(tmp_path_factory.mktemp("bank")) as started:
        yield started


async def ask(bank: Bank, verb: str, **request: Any) -> httpx.Response:
    token = await bank.sdk.get_token(timeout=60)
    async with httpx.AsyncClient(
        base_url=f"http://{bank.running.server.addresses.http}", trust_env=False, timeout=60
    ) as http:
        return await http.post(
            f"/neocloud.billing.v1.TokenPriceService/{verb}",
            json=request,
            headers={"authorization": f"Bearer {token.token}"},
        )


@shared
async def test_the_catalogue_and_what_a_chat_costs(bank: Bank) -> None:
    """AIS-14, AIS-16, FORM-18: 6,000 tokens in and 2,000 out of the 70B model are $0.00158."""
    items = {item["model"]: item for item in (await ask(bank, "List")).json()["items"]}
    assert len(items) == 20
    assert items["mixtral-8x22b-fast"] == {
        "model": "mixtral-8x22b-fast",
        "input": "0.70",
        "cachedInput": "0.70",
        "output": "2.10",
        "contextLength": "65536",
        "license": "Apache-2.0",
        "tokensPerMinute": "200000",
    }
    asked = {"model": "llama-3.1-70b", "inputTokens": 6000, "cachedInputTokens": 1000, "outputTokens": 2000}
    one = (await ask(bank, "Estimate", **asked)).json()
    assert (one["cost"], one["costPerRequest"], one["currency"]) == ("0.00158", "0.00158", "USD")
    assert [(item["sku"], item["tokens"], item["cost"]) for item in one["items"]] == [
        ("tokens.llama-3.1-70b.input", "5000", "0.00065"),
        ("tokens.llama-3.1-70b.cached-input", "1000", "0.00013"),
        ("tokens.llama-3.1-70b.output", "2000", "0.0008"),
    ]
    many = (await ask(bank, "Estimate", **asked, requests=1_000_000)).json()
    assert (many["cost"], many["costPerRequest"]) == ("1580", "0.00158")


@shared
@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (
            {"model": "bank"},
            "'bank' has no price of tokens; there are prices for llama-3.1-8b, llama-3.1-8b-fast,",
        ),
        ({"model": "llama-3.1-8b", "inputTokens": 1, "cachedInputTokens": 2}, "is more than input_tokens"),
        ({"model": "llama-3.1-8b", "inputTokens": -1}, "input_tokens"),
        ({}, "model"),
    ],
)
async def test_what_cannot_be_estimated_is_told(bank: Bank, request_: Any, told: str) -> None:
    answer = await ask(bank, "Estimate", **request_)
    assert answer.status_code == 400 and told in answer.text
