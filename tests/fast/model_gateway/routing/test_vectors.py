"""Embeddings and rankings through a gateway process: answers, usage, and attacks that reach no engine."""

import http.client
import json
from typing import Any

import openai
import pytest

from tests.fast.model_gateway.conftest import CHAT, Served, running, served

__all__ = ["running", "served"]

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
DOCUMENTS = ["bees make honey", "cards can be blocked", "a card was blocked today"]


@pytest.fixture
def vectors(served: Served) -> Served:
    """The model "bank" is served for embeddings, at two cents per million tokens of input."""
    served.use(served.engines[0], task="EMBED", price={"input": "0.02", "output": "0"})
    return served


def requests(served: Served) -> int:
    return served.engines[0].counts()["requests"]


def test_vectors_come_in_the_order_of_the_inputs_and_only_input_is_charged(vectors: Served) -> None:
    response = vectors.client.post(EMBEDDINGS, json={"model": "bank", "input": ["a", "b", "c"], "user": "u"})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    assert answer["model"] == "bank"
    row = vectors.row(response)
    assert (row["input"], row["output"], row["outcome"], row["is_estimated"]) == (3, 0, "ok", 0)
    assert (row["model_name"], row["project_id"]) == ("bank", "project-a")
    assert "x-ratelimit-remaining-tokens" in response.headers


def test_the_official_client_reads_both_encodings(vectors: Served) -> None:
    gateway = vectors.gateway
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token) as client:
        packed = client.embeddings.create(model="bank", input=["a", "b"])
        plain = client.embeddings.create(model="bank", input=[[1, 2], [3]], encoding_format="float")
    assert vectors.engines[0].counts()["last"]["body"]["encoding_format"] == "float"
    assert [each.embedding for each in packed.data] == [each.embedding for each in plain.data]
    assert (packed.usage.prompt_tokens, packed.usage.total_tokens) == (2, 2)


def test_a_ranking_is_charged_as_input_and_its_best_comes_first(vectors: Served) -> None:
    asked = {"model": "bank", "query": "card blocked", "documents": DOCUMENTS}
    response = vectors.client.post(RERANK, json={**asked, "top_n": 2, "return_documents": True})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert [each["index"] for each in answer["results"]] == [2, 1]
    assert answer["results"][0] == {"index": 2, "relevance_score": 1.0, "document": {"text": DOCUMENTS[2]}}
    assert answer["model"] == "bank" and answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"]
    row = vectors.row(response)
    assert (row["output"], row["outcome"], row["is_estimated"]) == (0, "ok", 0)
    assert row["input"] == answer["usage"]["prompt_tokens"] > 0


def test_a_cross_encoder_ranks_and_does_nothing_else(served: Served) -> None:
    served.use(served.engines[0], task="RERANK")
    asked = {"model": "bank", "query": "card", "documents": [{"text": each} for each in DOCUMENTS]}
    answer = served.client.post(RERANK, json=asked)
    assert answer.json()["results"][0]["index"] == 2
    assert "document" not in answer.json()["results"][0]
    refused = served.client.post(EMBEDDINGS, json={"model": "bank", "input": "a"})
    assert refused.status_code == 400 and "use POST /v1/rerank" in refused.json()["error"]["message"]


def test_models_are_listed_with_what_they_do(vectors: Served) -> None:
    (model,) = vectors.client.get("/v1/models").json()["data"]
    assert (model["task"], model["endpoints"]) == ("embed", [EMBEDDINGS, RERANK])
    assert model["pricing"] == {"input": "0.02", "cached_input": "0.02", "output": "0", "charge": "by_token"}
    vectors.use(vectors.engines[0])
    model = vectors.client.get("/v1/models/bank").json()
    assert (model["task"], CHAT in model["endpoints"]) == ("generate", True)


def test_the_limit_of_tokens_holds_for_embeddings(served: Served) -> None:
    limits = {"tokens_per_minute": 50, "requests_per_minute": 0}
    served.use(served.engines[0], task="EMBED", limits=limits)
    asked = {"model": "bank", "input": ["word " * 40] * 2}
    refused = served.client.post(EMBEDDINGS, json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


def test_another_tenants_key_and_no_key_get_nothing(vectors: Served) -> None:
    before = requests(vectors)
    for headers, status in (({"authorization": "Bearer wrong"}, 401), ({"authorization": ""}, 401)):
        for path, asked in ((EMBEDDINGS, {"input": "a"}), (RERANK, {"query": "a", "documents": ["b"]})):
            response = vectors.client.post(path, json={"model": "bank", **asked}, headers=headers)
            assert response.status_code == status
    assert requests(vectors) == before


ATTACKS: dict[str, Any] = {
    "a hundred thousand inputs": b'{"model": "bank", "input": [%s]}' % b",".join([b'"a"'] * 100_000),
    "six hundred thousand tokens": b'{"model": "bank", "input": [%s]}' % b",".join([b"1"] * 600_000),
    "deep JSON": b'{"model": "bank", "input": %s1%s}' % (b"[" * 900_000, b"]" * 900_000),
    "NaN": b'{"model": "bank", "input": [NaN]}',
    "a huge token": b'{"model": "bank", "input": [[1], [4294967296]]}',
    "a negative token": b'{"model": "bank", "input": [-7]}',
    "a number of 100,000 digits": b'{"model": "bank", "input": [%s]}' % (b"9" * 100_000),
    "a lone surrogate": b'{"model": "bank", "input": "\\ud800"}',
    "an URL to fetch": b'{"model": "bank", "input": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1"}}]}',
    "another answer's type": b'{"model": "bank", "input": "a", "encoding_format": "bytes_only"}',
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_is_refused_before_it_reaches_an_engine(vectors: Served, name: str) -> None:
    before = requests(vectors)
    response = vectors.client.post(EMBEDDINGS, content=ATTACKS[name])
    assert response.status_code == 400, (response.status_code, response.text)
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert requests(vectors) == before
    assert vectors.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", [EMBEDDINGS, RERANK])
def test_a_body_of_a_gigabyte_is_refused_by_its_head(vectors: Served, path: str) -> None:
    address = vectors.gateway.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.putrequest("POST", path)
        for name, value in {**vectors.gateway.headers, "content-length": str(1 << 30)}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 413
        assert json.loads(answer.read())["error"]["code"] == "request_too_large"
    finally:
        connection.close()


def test_a_hundred_thousand_documents_and_a_query_of_a_megabyte_are_refused(vectors: Served) -> None:
    before = requests(vectors)
    many = vectors.client.post(RERANK, json={"model": "bank", "query": "a", "documents": ["b"] * 100_000})
    assert (many.status_code, many.json()["error"]["code"]) == (400, "too_many_prompts")
    long = {"model": "bank", "query": "q" * 1_000_000, "documents": ["b"] * 1000}
    refused = vectors.client.post(RERANK, json=long)
    assert refused.status_code in (400, 429), refused.text
    assert requests(vectors) == before
