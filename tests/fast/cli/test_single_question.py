"""`neo chat --once` says why an answer takes long, and `neo chat` where its link opens."""

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from neocloud.cli.commands import chat
from neocloud.client.gateway import Gateway


class SlowGateway:
    """Answers after the reason was given."""

    def __init__(self, said: threading.Event) -> None:
        self.said = said

    def stream(self, path: str, body: object) -> Iterator[Any]:
        assert self.said.wait(60)
        yield {"choices": [{"delta": {"content": "Hello"}}]}


def test_a_long_wait_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, texts = threading.Event(), list[str]()

    def say(text: str) -> None:
        texts.append(text)
        said.set()

    monkeypatch.setattr(chat, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(chat, "say", say)
    chat.answer(cast(Gateway, SlowGateway(said)), {"model": "bank"}, None)
    assert texts[0].startswith("Waiting for bank: it may be starting")
    assert capsys.readouterr().out == "Hello\n"


@pytest.mark.parametrize(
    ("link", "is_direct"),
    [
        ("http://127.0.0.1:8900/chat#code=1", False),
        ("https://[::1]:8901/chat#code=1", False),
        ("https://192.0.2.7:8901/chat#code=1", True),
        ("https://models.bank.example/chat#code=1", True),
    ],
)
def test_only_a_link_of_loopback_needs_ssh(link: str, is_direct: bool) -> None:
    assert ("`ssh -L`" not in chat.where_to_open(link)) is is_direct
