"""PLAY-04, AIS-16: what may be called, with context length, licence and price, and the way to try it."""

import httpx
from playwright.sync_api import expect

from neocloud.testing.gateway import route
from tests.real.model_gateway.pages.conftest import Open, Site, picture


def test_a_card_says_what_a_model_is_and_leads_to_the_playground(site: Site, open_page: Open) -> None:
    page = open_page(site.link())
    page.get_by_role("link", name="Models").click()
    cards = {card.get_by_role("heading").inner_text(): card for card in page.get_by_role("article").all()}
    assert set(cards) == {"llama-3.1-8b", "bank-support", "local-experiment", "mistral-nemo"}
    for words in ("Ready", "Base model", "8,192 tokens", "llama3.1", "$0.02", "$0.005", "$0.06"):
        expect(cards["llama-3.1-8b"]).to_contain_text(words)
    expect(cards["bank-support"]).to_contain_text("Fine-tuned from llama-3.1-8b")
    for words in ("unpriced", "not stated"):
        expect(cards["local-experiment"]).to_contain_text(words)
    for words in ("Asleep", "131,072 tokens", "by the hour"):
        expect(cards["mistral-nemo"]).to_contain_text(words)
    picture(page, "models")

    cards["local-experiment"].get_by_role("button", name="Go to playground").click()
    expect(page.get_by_role("region", name="local-experiment")).to_be_visible()
    expect(page.get_by_role("region")).to_have_count(1)
    expect(page.get_by_label("Your message")).to_be_focused()

    page.get_by_role("link", name="Models").click()
    cards["bank-support"].get_by_role("button", name="Compare with base").click()
    names = [region.get_attribute("aria-label") for region in page.get_by_role("region").all()]
    assert names == ["llama-3.1-8b", "bank-support"]


def test_an_embedding_model_has_a_card_and_no_place_in_the_playground(site: Site, open_page: Open) -> None:
    bank = route("bank", replicas=[site.engine.address])
    site.gateway.set_routes(bank, route("vectors", replicas=[site.engine.address], task="EMBED"))
    page = open_page(site.link())
    expect(page.get_by_role("region", name="bank")).to_be_visible()
    expect(page.get_by_role("option", name="vectors")).to_have_count(0)
    page.get_by_role("link", name="Models").click()
    card = page.get_by_role("article").filter(has_text="vectors")
    expect(card).to_contain_text("Embedding model")
    expect(card.get_by_role("button")).to_have_count(0)


def test_where_nothing_is_served_it_says_how_to_begin(site: Site, open_page: Open) -> None:
    site.gateway.set_routes()
    page = open_page(site.link())
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("link", name="Models").click()
    expect(page.get_by_text("No models are available yet.")).to_contain_text("neo deploy")


def test_a_link_says_which_models_stand_side_by_side(site: Site, open_page: Open) -> None:
    page = open_page(site.link(model="bank-support", compare="mistral-nemo"))
    expect(page.get_by_role("region")).to_have_count(2)
    names = [region.get_attribute("aria-label") for region in page.get_by_role("region").all()]
    assert names == ["mistral-nemo", "bank-support"]
    models = httpx.get(f"{site.gateway.url}/v1/models", headers=site.gateway.headers, timeout=60).json()[
        "data"
    ]
    script = """async ([models, asked, compare]) =>
        (await import("/chat/static/catalogue.js")).firstNames(models, asked, compare)"""
    pair = ["llama-3.1-8b", "bank-support"]
    for asked, compare, columns in (
        (None, None, pair),
        ("bank-support", None, pair),
        ("llama-3.1-8b", None, pair),
        ("mistral-nemo", None, ["mistral-nemo"]),
        ("gone", None, pair),
    ):
        assert page.evaluate(script, [models, asked, compare]) == columns


def test_the_api_tells_the_same(site: Site) -> None:
    answer = httpx.get(f"{site.gateway.url}/v1/models", headers=site.gateway.headers, timeout=60).json()
    models = {model["id"]: (model["status"], model["pricing"]) for model in answer["data"]}
    price = {"input": "0.02", "cached_input": "0.005", "output": "0.06", "charge": "by_token"}
    free = {"input": "0", "cached_input": "0", "output": "0", "charge": "by_hour"}
    assert models == {
        "llama-3.1-8b": ("ready", price),
        "bank-support": ("ready", price),
        "local-experiment": ("ready", None),
        "mistral-nemo": ("cold", free),
    }


def test_a_deployment_that_is_created_is_not_asleep(site: Site, open_page: Open) -> None:
    site.gateway.set_routes(route("new", state="CREATING"))
    page = open_page(site.link())
    page.get_by_role("link", name="Models").click()
    expect(page.get_by_role("article")).to_contain_text("Starting")
