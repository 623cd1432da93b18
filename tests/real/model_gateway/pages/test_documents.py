"""An answer from documents on the page: a vector store is chosen, and its sources stand below the answer."""

import openai
from playwright.sync_api import expect

from neocloud.testing.gateway import route
from tests.real.model_gateway.pages.conftest import Open, Site, ask, picture

HOSTILE = "<img src=x onerror=alert(1)> A lost card is blocked in the app under Cards."


def test_an_answer_shows_its_sources(site: Site, open_page: Open) -> None:
    address = site.engine.address
    site.gateway.set_routes(
        route("bank", replicas=[address]), route("minilm", replicas=[address], task="EMBED")
    )
    page = open_page(site.link())
    expect(page.get_by_label("Documents")).to_be_hidden()
    with openai.OpenAI(base_url=f"{site.gateway.url}/v1", api_key=site.gateway.token) as client:
        store = client.vector_stores.create(name="terms")
        for name, text in (("cards.txt", HOSTILE), ("fees.txt", "A transfer costs nothing.")):
            client.vector_stores.files.upload_and_poll(
                vector_store_id=store.id, file=(name, text.encode()), poll_interval_ms=20
            )
    page = open_page(site.link())
    page.get_by_label("Documents").select_option("terms")
    ask(page, "what about a lost card?")
    answer = page.locator(".answer").last
    expect(answer.locator(".text")).to_contain_text("word word word")
    expect(answer.locator(".figures div", has_text="Tokens out").locator("dd")).to_have_text("12")
    answer.get_by_text("2 sources").click()
    first = answer.locator(".sources li").first
    expect(first.locator(".file")).to_have_text("cards.txt")
    expect(first.locator("p")).to_have_text(HOSTILE)
    assert not page.locator(".sources img").count()
    picture(page, "sources")
    page.get_by_role("button", name="View code").click()
    page.get_by_role("tab", name="Python").click()
    expect(page.locator("#code-text")).to_contain_text("client.responses.create(")
    page.keyboard.press("Escape")
    page.get_by_label("Documents").select_option("None")
    ask(page, "hello")
    expect(page.locator(".answer").last.locator(".sources")).to_have_count(0)
    assert "messages" in site.asked()
