"""`neo embed` through a gateway: vectors in the order of the texts, rankings, and what it refuses."""

import io
import json
from collections.abc import Callable
from typing import cast

import pytest

from neocloud.cli.commands import embed
from neocloud.cli.main import run
from neocloud.client.gateway import Gateway
from tests.fast.model_gateway.conftest import Served, running, served

__all__ = ["running", "served"]

Ran = tuple[int, str, str]
Neo = Callable[..., Ran]


@pytest.fixture
def neo(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Neo:
    served.use(served.engines[0], task="EMBED")
    monkeypatch.setenv("OPENAI_API_KEY", served.gateway.token)

    def neo(*words: str, stdin: str = "") -> Ran:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = run(["embed", *words, "--gateway", f"{served.gateway.url}/v1"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return neo


def test_the_vectors_of_texts_and_lines(neo: Neo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "BATCH", 2)
    code, out, err = neo("bank", "first", "-", "--output", "json", stdin="a\r\n\n  \nb c\n")
    assert code == 0, err
    found = json.loads(out)
    assert [(each["index"], each["text"]) for each in found] == [(0, "first"), (1, "a"), (2, "b c")]
    assert all(each["embedding"] == [0.5, 0.25, 0.125] for each in found)
    assert err.startswith("3 vectors, 3 tokens in, ")


def test_a_table_shows_the_start_of_a_vector(neo: Neo) -> None:
    code, out, err = neo("bank", "one\x1b[31m\ntwo")
    assert code == 0, err
    assert "0.500 0.250 0.125" in out and "\x1b" not in out and len(out.splitlines()) == 2


def test_texts_are_ranked_by_a_query(neo: Neo) -> None:
    code, out, err = neo("bank", "--query", "card blocked", "bees", "a card is blocked")
    assert code == 0, err
    assert [line.split(None, 1) for line in out.splitlines()[1:]] == [
        ["1.000", "a card is blocked"],
        ["0.000", "bees"],
    ]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("bank", "-"), "There is no text"),
        (("bank", "--query", "a", "--dimensions", "2", "b"), "--query returns no vectors"),
        (("bank", "--query", "a", *["b"] * 1001), "at most 1,000 are ranked"),
        (("gone", "b"), "'gone' does not exist"),
        (("bank", "--dimensions", "70000", "b"), "dimensions must be between"),
    ],
)
def test_what_cannot_be_done_is_told(neo: Neo, words: tuple[str, ...], complaint: str) -> None:
    code, out, err = neo(*words)
    assert code != 0 and complaint in err and not out


def test_a_model_that_generates_says_where_to_ask_it(served: Served, neo: Neo) -> None:
    served.use(served.engines[0])
    code, _, err = neo("bank", "text")
    assert code != 0 and "does not serve embeddings: use POST /v1/chat/completions" in err


def test_vectors_are_put_in_the_order_of_their_texts(capsys: pytest.CaptureFixture[str]) -> None:
    class Unordered:
        def post(self, path: str, body: dict[str, object]) -> object:
            data = [{"index": 1, "embedding": [2]}, {"index": 0, "embedding": [1]}]
            return {"data": data, "usage": {"prompt_tokens": 2}}

    embed._embed(cast(Gateway, Unordered()), {}, ["one", "two"], embed.Format.JSON)  # pyright: ignore[reportPrivateUsage]
    assert [(each["text"], each["embedding"]) for each in json.loads(capsys.readouterr().out)] == [
        ("one", [1]),
        ("two", [2]),
    ]
