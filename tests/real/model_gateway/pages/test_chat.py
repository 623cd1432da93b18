"""CHAT-01, CHAT-03, PLAY-01, PLAY-02: a chat that streams in one column or two, as a person sees it."""

import re

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from neocloud.testing.gateway import route
from neocloud.testing.waiting import wait_until
from tests.real.model_gateway.pages.conftest import PHONE, Open, Site, ask, picture

WORDS = " ".join(["word"] * 12)


def column(page: Page, model: str) -> Locator:
    return page.get_by_role("region", name=model, exact=True)


def answer(place: Locator) -> Locator:
    return place.locator(".answer").last


def text(place: Locator) -> Locator:
    return answer(place).locator(".text")


def figure(place: Locator, name: str) -> Locator:
    return answer(place).locator(".figures div", has_text=name).locator("dd")


def test_base_and_fine_tuned_answer_side_by_side(site: Site, open_page: Open) -> None:
    page = open_page(site.link())
    ask(page, "How do I block my card?")
    for model in ("llama-3.1-8b", "bank-support"):
        place = column(page, model)
        expect(text(place)).to_have_text(WORDS)
        expect(figure(place, "Tokens in")).to_have_text("6")
        expect(figure(place, "Tokens out")).to_have_text("12")
        expect(figure(place, "Cost")).to_have_text("$0.00000084")
        first, total = (figure(place, name).inner_text() for name in ("First token", "Total"))
        assert 50 <= milliseconds(first) <= milliseconds(total)
        assert float(figure(place, "Tokens/s").inner_text()) > 1
    picture(page, "two-columns")


def milliseconds(words: str) -> float:
    number, unit = words.split()
    return float(number) * (1 if unit == "ms" else 1000)


def test_an_answer_is_shown_as_it_comes_and_can_be_stopped(site: Site, open_page: Open) -> None:
    site.engine.tell(tokens=4000, token_seconds=0.02)
    cancelled = site.engine.counts()["cancelled"]
    page = open_page(site.link(model="local-experiment"))
    ask(page, "Tell me everything")
    expect(text(page.locator("main"))).to_contain_text("word word word")
    picture(page, "one-column-streaming")
    page.get_by_role("button", name="Stop").click()
    wait_until(lambda: site.engine.counts()["cancelled"] == cancelled + 1, seconds=60)
    place = column(page, "local-experiment")
    expect(answer(place)).to_contain_text("Stopped.")
    expect(figure(place, "Tokens out")).to_have_text(re.compile("^≈ "))
    expect(figure(place, "Cost")).to_have_text("unpriced")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_a_conversation_goes_on_can_be_retried_and_edited(site: Site, open_page: Open) -> None:
    page = open_page(site.link(model="local-experiment"))
    place = column(page, "local-experiment")
    ask(page, "First question")
    expect(figure(place, "Tokens out")).to_have_text("12")
    ask(page, "Second question")
    expect(place.locator(".figures:visible")).to_have_count(2)
    said = {"role": "assistant", "content": " word" * 12}
    first, second = ({"role": "user", "content": f"{which} question"} for which in ("First", "Second"))
    assert site.asked()["messages"] == [first, said, second]

    site.engine.tell(tokens=3)
    answer(place).get_by_role("button", name="Retry").click()
    expect(figure(place, "Tokens out")).to_have_text("3")
    assert site.asked()["messages"] == [first, said, second]

    place.get_by_role("button", name="Edit this message").first.click()
    expect(page.get_by_label("Your message")).to_have_value("First question")
    expect(page.get_by_label("Your message")).to_be_focused()
    ask(page, "Another question")
    expect(figure(place, "Tokens out")).to_have_text("3")
    assert site.asked()["messages"] == [{"role": "user", "content": "Another question"}]

    page.get_by_role("button", name="New chat").click()
    expect(place).to_contain_text("Ask something below.")


def test_each_column_has_parameters_of_its_own(site: Site, open_page: Open) -> None:
    page = open_page(site.link(model="local-experiment"))
    page.get_by_role("button", name="Compare").click()
    left, right = page.get_by_role("region").all()
    right.get_by_label("Model", exact=True).select_option("local-experiment")
    right.get_by_text("Parameters").click()
    for name, value in (
        ("System prompt", "Be brief."), ("Temperature", "1.2"), ("Max tokens", "5"), ("Top p", "0.9"),
        ("Seed", "7"), ("Stop sequences", "END\nSTOP"),
    ):  # fmt: skip
        right.get_by_label(name).fill(value)
    picture(page, "parameters")
    ask(page, "Hello")
    expect(figure(left, "Tokens out")).to_have_text("12")
    expect(figure(right, "Tokens out")).to_have_text("5")
    answer(right).get_by_role("button", name="Retry").click()
    expect(figure(right, "Tokens out")).to_have_text("5")
    asked = site.asked()
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    names = ("temperature", "max_tokens", "top_p", "seed", "stop")
    assert [asked[name] for name in names] == [1.2, 5, 0.9, 7, ["END", "STOP"]]
    answer(left).get_by_role("button", name="Retry").click()
    wait_until(lambda: "seed" not in site.asked(), seconds=60)
    asked = site.asked()
    assert asked["max_tokens"] == 512 and not {"temperature", "top_p"} & asked.keys(), "the model's own"

    right.get_by_label("Temperature").fill("9")
    ask(page, "Too hot")
    expect(page.locator(".question .text", has_text="Too hot")).to_have_count(0)
    assert right.get_by_label("Temperature").evaluate("input => input.matches(':invalid')")


def test_a_limit_says_when_to_try_again(site: Site, open_page: Open) -> None:
    site.serve(limits={"tokens_per_minute": 600})
    site.engine.tell(first_seconds=5)  # the first must not end before the second is sent
    page = open_page(site.link(model="llama-3.1-8b"))
    page.get_by_label("Model", exact=True).last.select_option("llama-3.1-8b")
    ask(page, "How do I block my card?")  # each column sets aside 512 tokens and its question
    expect(page.locator(".answer .text p")).to_have_text([WORDS])
    problem = page.get_by_role("alert")  # one, or the next line fails
    expect(problem).to_have_text(re.compile(r"Rate limit reached\. Try again in \d+ s\."))
    expect(problem).to_contain_text("Rate limit reached for llama-3.1-8b: 600 tokens per minute")
    picture(page, "error")


def test_a_model_that_sleeps_is_woken_and_answers_by_itself(site: Site, open_page: Open) -> None:
    page = open_page(site.link(model="mistral-nemo"))
    place = column(page, "mistral-nemo")
    ask(page, "Good morning")
    expect(answer(place)).to_contain_text("The model is starting")
    picture(page, "asleep")
    site.gateway.set_routes(route("mistral-nemo", replicas=[site.engine.address], charge="BY_HOUR"))
    expect(text(place)).to_have_text(WORDS)
    expect(figure(place, "Cost")).to_have_text("by the hour")
    expect(place.locator("header")).to_contain_text("Ready")


@pytest.mark.parametrize("fault", ["die", "stream-error"])
def test_what_came_of_a_lost_answer_stays_and_it_can_be_asked_again(
    site: Site, open_page: Open, fault: str
) -> None:
    site.engine.tell(fault=fault, after=3)
    page = open_page(site.link(model="local-experiment"))
    place = column(page, "local-experiment")
    ask(page, "Hello")
    expect(answer(place).get_by_role("alert")).to_contain_text("The response was interrupted.")
    expect(text(place)).to_have_text("word word word")
    site.engine.tell(fault="")
    answer(place).get_by_role("button", name="Retry").click()
    expect(text(place)).to_have_text(WORDS)


def test_what_a_model_says_is_never_markup(site: Site, open_page: Open) -> None:
    page = open_page(site.link(model="local-experiment"))
    said = "<img src=x onerror=alert(1)> **bold** `a<b`\n\n```js\n<script>1</script>\n```"
    script = """async (said) => {
        const { prose } = await import("/chat/static/prose.js");
        const place = document.createElement("div");
        place.append(...prose(said));
        return place.innerHTML;
    }"""
    made = page.evaluate(script, said)
    assert made == (
        "<p>&lt;img src=x onerror=alert(1)&gt; <strong>bold</strong> <code>a&lt;b</code></p>"
        '<div class="block"><button type="button" class="quiet copy" aria-label="Copy this code">'
        'Copy</button><pre tabindex="0"><code>&lt;script&gt;1&lt;/script&gt;</code></pre></div>'
    )
    rel = 'target="_blank" rel="noopener noreferrer nofollow"'
    plain = "https://bank.example/a?b=1"
    for words, shown in {
        f"See {plain}.": f'See <a href="{plain}" {rel}>{plain}</a>.',
        f"[my bank]({plain})": f'<a href="{plain}" {rel}>my bank</a> (bank.example)',
        "[x](javascript:alert(1))": "[x](javascript:alert(1))",
        "[x](data:text/html,1) file:///etc": "[x](data:text/html,1) file:///etc",
        "https://": "https://",
    }.items():
        assert page.evaluate(script, words) == f"<p>{shown}</p>"
    table = "Fees:\n| fee | EUR |\n|---|--:|\n| card | `a|b` |\n| <b> | 1 \\| 2 |\nand so on"
    assert page.evaluate(script, table) == (
        '<p>Fees:</p><div class="table" tabindex="0"><table><thead><tr><th>fee</th><th>EUR</th></tr></thead>'
        "<tbody><tr><td>card</td><td><code>a|b</code></td></tr>"
        "<tr><td>&lt;b&gt;</td><td>1 | 2</td></tr></tbody></table></div><p>and so on</p>"
    )


def test_code_is_copied_with_a_button(site: Site, open_page: Open) -> None:
    page = open_page(site.link(model="local-experiment"))
    script = """async (said) => {
        const { prose } = await import("/chat/static/prose.js");
        document.querySelector("main").append(...prose(said));
    }"""
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.evaluate(script, "```sh\necho 1\necho 2\n```")
    page.evaluate('document.getElementById("sign-in").hidden = false')
    page.get_by_role("button", name="Copy this code").click()
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == "echo 1\necho 2", seconds=60)


def test_an_example_is_asked_with_a_click(site: Site, open_page: Open) -> None:
    page = open_page(site.link(model="local-experiment"))
    place = column(page, "local-experiment")
    place.get_by_role("button", name="What can you help me with?").click()
    expect(text(place)).to_have_text(WORDS)
    assert site.asked()["messages"] == [{"role": "user", "content": "What can you help me with?"}]


def test_an_answer_that_never_began_was_not_interrupted(site: Site, open_page: Open) -> None:
    site.engine.tell(fault="error")
    page = open_page(site.link(model="local-experiment"))
    ask(page, "Hello")
    alert = answer(column(page, "local-experiment")).get_by_role("alert")
    expect(alert).to_contain_text("The model could not answer.")
    expect(alert).to_contain_text("EngineCore encountered an issue")


def test_two_columns_are_tabs_on_a_phone(site: Site, open_page: Open) -> None:
    page = open_page(site.link(), size=PHONE)
    ask(page, "How do I block my card?")
    for model in ("llama-3.1-8b", "bank-support"):
        page.get_by_role("tab", name=model).click()
        expect(page.get_by_role("region")).to_have_count(1)
        expect(figure(column(page, model), "Tokens out")).to_have_text("12")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(site: Site, open_page: Open, scheme: str) -> None:
    page = open_page(site.link(), size=PHONE, scheme=scheme)
    ask(page, "How do I block my card?")
    expect(figure(column(page, "bank-support"), "Tokens out")).to_have_text("12")
    picture(page, f"phone-two-columns-{scheme}")
    page.get_by_role("button", name="Compare").click()
    picture(page, f"phone-one-column-{scheme}")
    for view in ("Playground", "Models"):
        page.get_by_role("link", name=view).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    picture(page, f"phone-models-{scheme}")


def test_it_is_dark_where_people_want_it(site: Site, open_page: Open) -> None:
    page = open_page(site.link(), scheme="dark")
    ask(page, "How do I block my card?")
    expect(figure(column(page, "bank-support"), "Tokens out")).to_have_text("12")
    picture(page, "two-columns-dark")
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g)")
    assert max(int(red), int(green), int(blue)) < 60


def test_an_answer_is_rated_and_its_text_is_stored_only_with_consent(site: Site, open_page: Open) -> None:
    page = open_page(site.link(model="local-experiment"))
    ask(page, "How do I block my card?")
    place = answer(column(page, "local-experiment"))
    place.get_by_role("button", name="Helpful", exact=True).click()
    expect(place).to_contain_text("Neither question nor answer was stored.")
    assert [(each["rating"], each["question"]) for each in ratings(site)] == [("up", "")]
    place.get_by_role("button", name="Not helpful").click()
    place.get_by_role("button", name="Share both with the project").click()
    expect(place).to_contain_text("shared with the project")
    (stored,) = ratings(site)
    assert (stored["rating"], stored["question"]) == ("down", "How do I block my card?")
    assert stored["answer"].strip() == WORDS and stored["called"] == "local-experiment"
    picture(page, "rated")


def ratings(site: Site) -> list[dict[str, str]]:
    found = httpx.get(f"{site.gateway.url}/v1/feedback", headers=site.gateway.headers, timeout=60)
    return found.json()["data"]
