"""The admin calls of an engine, as vLLM answers them, over real HTTP shapes."""

import json

import httpx
import pytest

from neocloud.services.inference.reconcile.model_server import (
    HttpModelServerClient,
    ModelServerRefused,
    ModelServerUnreachable,
)

ADDRESS, KEY = "10.89.1.2:8000", "secret-of-the-engine"


class Vllm:
    """Plays vLLM's answers, as they were recorded from it."""

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}
        self.asked: list[dict] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return httpx.Response(401, json={"error": "Unauthorized"})
        body = json.loads(request.content or b"{}")
        self.asked.append(body)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": name} for name in ("tiny", *self.adapters)]})
        if request.url.path == "/v1/load_lora_adapter":
            if not body["lora_path"].startswith("/adapters/"):
                return self._refuse(404, f"No adapter found for '{body['lora_name']}'")
            self.adapters[body["lora_name"]] = body["lora_path"]
            return httpx.Response(
                200, text=f"Success: LoRA adapter '{body['lora_name']}' added successfully."
            )
        if request.url.path == "/v1/unload_lora_adapter":
            if self.adapters.pop(body["lora_name"], None) is None:
                return self._refuse(404, "The lora adapter cannot be found.")
            return httpx.Response(200, text="Success")
        if request.url.path == "/v1/completions":
            if body["model"] not in ("tiny", *self.adapters):
                return self._refuse(500, f"EngineCore encountered an issue with {body['model']}")
            return httpx.Response(200, json={"choices": [{"text": "!"}]})
        if request.url.path == "/v1/embeddings" and body["model"] == "vectors":
            return httpx.Response(200, json={"data": [{"embedding": [0.5]}]})
        return self._refuse(404, "Not Found")

    def _refuse(self, status: int, message: str) -> httpx.Response:
        return httpx.Response(status, json={"error": {"message": message, "code": status}})


@pytest.fixture
def vllm() -> Vllm:
    return Vllm()


@pytest.fixture
def client(vllm: Vllm) -> HttpModelServerClient:
    return HttpModelServerClient(httpx.MockTransport(vllm))


async def test_adapters_are_loaded_listed_and_taken_away(client: HttpModelServerClient) -> None:
    await client.load(ADDRESS, KEY, "support", "/adapters/inferencemodel-e00one")
    assert await client.names(ADDRESS, KEY) == {"tiny", "support"}
    await client.unload(ADDRESS, KEY, "support")
    await client.unload(ADDRESS, KEY, "support")
    assert await client.names(ADDRESS, KEY) == {"tiny"}


async def test_an_adapter_is_not_asked_to_be_loaded_in_place(
    client: HttpModelServerClient, vllm: Vllm
) -> None:
    """vLLM keeps that with the adapter, and reads its files again at each step of each request."""
    await client.load(ADDRESS, KEY, "support", "/adapters/inferencemodel-e00one")
    assert vllm.asked == [{"lora_name": "support", "lora_path": "/adapters/inferencemodel-e00one"}]


async def test_a_refusal_is_the_engine_s_own_words(client: HttpModelServerClient) -> None:
    with pytest.raises(ModelServerRefused, match="No adapter found for 'support'"):
        await client.load(ADDRESS, KEY, "support", "/elsewhere")
    with pytest.raises(ModelServerRefused, match="EngineCore encountered an issue"):
        await client.warm_up(ADDRESS, KEY, "broken")


async def test_the_first_answer_is_one_token(client: HttpModelServerClient, vllm: Vllm) -> None:
    await client.warm_up(ADDRESS, KEY, "tiny")
    assert vllm.asked[-1]["max_tokens"] == 1 and vllm.asked[-1]["model"] == "tiny"


async def test_the_first_answer_of_an_engine_for_embeddings_is_a_vector(
    client: HttpModelServerClient, vllm: Vllm
) -> None:
    await client.warm_up(ADDRESS, KEY, "vectors", task="EMBED")
    assert vllm.asked[-1]["model"] == "vectors" and "max_tokens" not in vllm.asked[-1]


async def test_the_first_answer_of_a_cross_encoder_is_a_ranking(
    client: HttpModelServerClient, vllm: Vllm
) -> None:
    await client.warm_up(ADDRESS, KEY, "vectors", task="RERANK")
    assert vllm.asked[-1]["documents"] and vllm.asked[-1]["query"]


async def test_who_does_not_answer_is_silent_not_refusing() -> None:
    def break_off(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    client = HttpModelServerClient(httpx.MockTransport(break_off))
    with pytest.raises(ModelServerUnreachable, match="does not answer: connection refused"):
        await client.names(ADDRESS, KEY)
