"""The OpenAI-compatible API as `neo` calls it: the caller, the project, and the text of a refusal."""

from collections.abc import Callable

import httpx
import pytest

from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

BASE = "http://gateway.test/v1"


class Tokens:
    """Counts how often it was asked for a new one."""

    def __init__(self) -> None:
        self.forgotten = 0

    def token(self) -> str:
        return f"token-{self.forgotten}"

    def forget(self) -> None:
        self.forgotten += 1


def gateway(answer: Callable[[httpx.Request], httpx.Response], project: str = "") -> Gateway:
    return Gateway(BASE, Tokens(), httpx.Client(transport=httpx.MockTransport(answer)), project)


def test_a_request_says_who_asks_and_for_which_project() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"data": []})

    with gateway(answer, "project-1") as opened:
        assert opened.get("models") == {"data": []}
    with gateway(answer) as opened:
        opened.get("models")
    assert seen[0].url == f"{BASE}/models"
    assert seen[0].headers["authorization"] == "Bearer token-0"
    assert seen[0].headers["openai-project"] == "project-1"
    assert "openai-project" not in seen[1].headers


def test_a_token_that_is_refused_is_renewed_once() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        is_new = request.headers["authorization"] == "Bearer token-1"
        return httpx.Response(200 if is_new else 401, json={})

    with gateway(answer) as opened:
        assert opened.post("chat/completions", {}) == {}
    with gateway(lambda _: httpx.Response(401, json={})) as opened:
        with pytest.raises(ClientError) as refused:
            opened.get("models")
        assert refused.value.code == "UNAUTHENTICATED"


def test_a_refusal_keeps_the_gateways_words() -> None:
    body = {"error": {"message": "Say which project.", "type": "invalid_request_error"}}
    with gateway(lambda _: httpx.Response(400, json=body)) as opened:
        with pytest.raises(ClientError, match=r"Say which project\.") as refused:
            opened.get("models")
        assert refused.value.code == "INVALID_ARGUMENT"


def test_a_stream_gives_its_chunks_and_raises_an_error_in_its_middle() -> None:
    text = 'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: {"error": {"message": "gone"}}\n\n'
    with gateway(lambda _: httpx.Response(200, text=text)) as opened:
        chunks = opened.stream("chat/completions", {"model": "one"})
        assert [next(chunks), next(chunks)] == [{"n": 1}, {"n": 2}]
        with pytest.raises(ClientError, match="gone"):
            next(chunks)


def test_what_is_no_json_and_what_does_not_answer_say_where() -> None:
    page = gateway(lambda _: httpx.Response(200, text="<html>"))
    with page, pytest.raises(ClientError, match=r"http://gateway\.test/v1 answered without valid JSON"):
        page.get("models")

    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with gateway(refuse) as opened, pytest.raises(ClientError, match="does not answer: refused"):
        opened.get("models")
