"""CHAT-01..03, FORM-13: `neo chat` makes a link that signs in, or answers one question in the terminal."""

import re

import pytest
from playwright.sync_api import expect

from neocloud.cli.commands.chat import Measured, format_cost
from neocloud.cli.main import run
from tests.real.model_gateway.pages.conftest import Open, Site


@pytest.fixture
def neo(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("OPENAI_API_KEY", site.gateway.token)

    def neo(*arguments: str) -> tuple[int, str, str]:
        code = run(["chat", *arguments, "--gateway", f"{site.gateway.url}/v1"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return neo


def test_the_link_opens_the_models_that_were_named(neo, open_page: Open) -> None:
    code, out, err = neo("bank-support", "--compare", "mistral-nemo")
    assert code == 0, err
    page = open_page(out.strip())
    expect(page.get_by_role("region", name="mistral-nemo")).to_be_visible()
    expect(page.get_by_role("region", name="bank-support")).to_be_visible()


def test_one_question_is_answered_here_with_its_figures(neo, site: Site) -> None:
    code, out, err = neo("bank-support", "--once", "How are you?", "--system", "Be brief.")
    assert (code, out) == (0, " ".join(["word"] * 12) + "\n")
    figures = r"first token 0\.\d+ s, total 0\.\d+ s, [\d.]+ tokens/s, 5 tokens in, 12 out, \$0\.00000082"
    assert re.fullmatch(figures, err.strip()), err
    asked = site.asked()
    assert [message["role"] for message in asked["messages"]] == ["system", "user"]
    assert asked["max_tokens"] == 512 and "temperature" not in asked, "the model's own"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("gone",), "'gone' does not exist"),
        (("--once", "Hello"), "There are several models: bank-support, "),
        (("bank-support", "--once", "Hello", "--compare", "llama-3.1-8b"), "--once uses one model"),
    ],
)
def test_what_is_wrong_is_said(neo, arguments: tuple[str, ...], complaint: str) -> None:
    code, out, err = neo(*arguments)
    assert code != 0 and not out
    assert complaint in err


def test_a_request_costs_its_tokens_times_their_prices() -> None:
    """FORM-13's example: GPT-4 at $30 and $60 a million tokens, a thousand of each."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 1000}
    price = {"input": "30", "cached_input": "30", "output": "60", "charge": "by_token"}
    assert format_cost(usage, price) == "$0.09"
    assert format_cost(usage, {**price, "input": "0.1", "output": "0.3"}) == "$0.0004"
    cached = {**usage, "prompt_tokens_details": {"cached_tokens": 400}}
    assert format_cost(cached, {**price, "cached_input": "10"}) == "$0.082"
    assert format_cost(usage, None) == "unpriced"
    assert format_cost(usage, {**price, "charge": "by_hour"}) == "paid by the hour"
    assert Measured(0.5, 1.5, {"completion_tokens": 11}).tokens_per_second == 10
