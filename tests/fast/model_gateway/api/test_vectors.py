"""/v1/embeddings and /v1/rerank: what their input may be, and how a ranking is shown."""

import json
import time
from typing import Any

import orjson
import pytest

from neocloud.model_gateway.api.errors import OpenAiError, model_server_error
from neocloud.model_gateway.api.fields import MAX_VALUES
from neocloud.model_gateway.api.request import CHAT, EMBEDDINGS, RERANK, RESPONSES, ModelRequest
from neocloud.model_gateway.api.vectors import MAX_DOCUMENTS, MAX_EMBEDDING_INPUTS, ranking
from tests.fast.model_gateway.conftest import parse_request

Json = dict[str, Any]
PASSAGES = {"query": "a b", "documents": ["one", "two"]}


def embeddings(**fields: Any) -> ModelRequest:
    return parse_request(EMBEDDINGS, json.dumps({"model": "vectors", **fields}).encode())


def rerank(**fields: Any) -> ModelRequest:
    return parse_request(RERANK, json.dumps({"model": "vectors", **PASSAGES, **fields}).encode())


def sent(request: ModelRequest) -> Json:
    """Return the body for the model server."""
    return json.loads(request.for_model_server("engine"))


@pytest.mark.parametrize(
    ("value", "inputs"),
    [("text", 1), (["a", "b"], 2), ([1, 2, 30521], 1), ([[1, 2], [3]], 2), ("naïve 漢字", 1), ([0], 1)],
)
def test_each_form_of_input_reaches_the_model_server_as_it_is(value: Any, inputs: int) -> None:
    request = embeddings(input=value, encoding_format="base64", user="u-1", dimensions=64)
    assert request.prompts == inputs
    assert request.max_total_output_tokens(512) == 0
    assert sent(request) == {
        **{"model": "engine", "input": value, "encoding_format": "base64"},
        **{"user": "u-1", "dimensions": 64},
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 7]}, "input"),
        ({"input": ["a", None]}, "input"),
        ({"input": ["a", {"text": "b"}]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": [[1], ["a"]]}, "input"),
        ({"input": [[1], [[2]]]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [1, 2.5]}, "input"),
        ({"input": [1, True]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [2**31]}, "input"),
        ({"input": [[5, 2**63 - 1]]}, "input"),
        ({"input": [10**30]}, "input"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "encoding_format": ["float"]}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 10**9}, "dimensions"),
        ({"input": "a", "dimensions": "64"}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 10**12}, "truncate_prompt_tokens"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "messages": []}, "messages"),
        ({"input": "a", "chat_template": "{{ x }}"}, "chat_template"),
    ],
)
def test_what_is_no_input_is_refused_by_its_name(fields: Json, param: str) -> None:
    with pytest.raises(OpenAiError) as caught:
        embeddings(**fields)
    assert (caught.value.status, caught.value.param) == (400, param), caught.value.message


def test_the_place_of_a_wrong_item_is_told() -> None:
    with pytest.raises(OpenAiError, match=r"input\[1\] has the token number -5"):
        embeddings(input=[[1, 2], [3, -5]])


def test_absent_and_null_mean_the_same() -> None:
    asked = sent(embeddings(input="a", encoding_format=None, dimensions=None, user=None))
    assert asked == {"model": "engine", "input": "a"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    with pytest.raises(OpenAiError) as caught:
        parse_request(EMBEDDINGS, b'{"model": "vectors", "input": [%s]}' % number.encode())
    assert caught.value.status == 400


def test_as_many_values_as_a_body_may_have_are_checked_in_time() -> None:
    raw = json.dumps({"model": "vectors", "input": [[7] * (MAX_VALUES // 2000)] * 1990}).encode()
    begun = time.perf_counter()
    assert parse_request(EMBEDDINGS, raw).prompts == 1990
    assert time.perf_counter() - begun < 2


@pytest.mark.parametrize("count", [MAX_EMBEDDING_INPUTS + 1, 100_000])
def test_more_inputs_than_the_limit_are_refused(count: int) -> None:
    with pytest.raises(OpenAiError, match=f"the limit is {MAX_EMBEDDING_INPUTS} per request") as caught:
        embeddings(input=["a"] * count)
    assert caught.value.code == "too_many_prompts"


def test_an_input_that_is_too_long_is_refused_unless_it_may_be_cut() -> None:
    long = "word " * 2000
    with pytest.raises(OpenAiError, match="maximum context length is 256 tokens"):
        embeddings(input=long).require_length(256)
    embeddings(input=long, truncate_prompt_tokens=-1).require_length(256)
    with pytest.raises(OpenAiError, match="maximum context length is 256 tokens"):
        rerank(documents=[long]).require_length(256)
    rerank(documents=[long], truncate_prompt_tokens=-1).require_length(256)


def test_documents_are_sent_as_strings_and_what_clients_see_is_left_out() -> None:
    request = rerank(documents=["one", {"text": "two", "title": "t"}], top_n=1, return_documents=True)
    assert sent(request) == {
        **{"model": "engine", "query": "a b", "documents": ["one", "two"], "top_n": 1},
    }


def test_a_query_is_read_with_each_document() -> None:
    assert rerank(documents=["x"] * 100, query="q" * 400).input_tokens > 100 * 100


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"query": {"content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1"}}]}}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": "one"}, "documents"),
        ({"documents": {"a": 1}}, "documents"),
        ({"documents": ["a", 7]}, "documents"),
        ({"documents": ["a", ""]}, "documents"),
        ({"documents": ["a", {"text": 7}]}, "documents"),
        ({"documents": [{"content": [{"type": "text", "text": "a"}]}]}, "documents"),
        ({"documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents"),
        ({"documents": ["a"] * 100_000}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"instruction": "a"}, "instruction"),
        ({"mm_processor_kwargs": {}}, "mm_processor_kwargs"),
        ({"priority": 1}, "priority"),
    ],
)
def test_what_is_no_ranking_is_refused_by_its_name(fields: Json, param: str) -> None:
    with pytest.raises(OpenAiError) as caught:
        rerank(**fields)
    assert (caught.value.status, caught.value.param) == (400, param), caught.value.message


def answered(*scores: tuple[Any, Any]) -> bytes:
    results = [
        {"index": index, "relevance_score": score, "document": {"text": "x", "multi_modal": None}}
        for index, score in scores
    ]
    usage = {"prompt_tokens": 9, "total_tokens": 9}
    return orjson.dumps({"id": "score-1", "model": "engine", "results": results, "usage": usage})


def test_a_ranking_has_the_best_first_and_texts_where_they_are_asked_for() -> None:
    answer = answered((0, 0.25), (1, 0.75))
    shown = json.loads(rerank().for_client(answer))
    assert shown == {
        "id": "score-1",
        "object": "list",
        "model": "engine",
        "results": [{"index": 1, "relevance_score": 0.75}, {"index": 0, "relevance_score": 0.25}],
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    with_text = json.loads(rerank(return_documents=True).for_client(answer))
    assert [each["document"] for each in with_text["results"]] == [{"text": "two"}, {"text": "one"}]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"results": 1}',
        b'{"results": [1]}',
        answered((2, 0.5)),
        answered((-1, 0.5)),
        answered((0, "a")),
    ],
)
def test_an_answer_that_is_no_ranking_is_not_passed_on(answer: bytes) -> None:
    with pytest.raises(ValueError):
        ranking({"documents": ["one", "two"]}, answer)


@pytest.mark.parametrize(
    ("task", "path", "right"),
    [
        ("GENERATE", EMBEDDINGS, "POST /v1/chat/completions"),
        ("GENERATE", RERANK, "POST /v1/chat/completions"),
        ("EMBED", CHAT, "POST /v1/embeddings"),
        ("EMBED", RESPONSES, "POST /v1/embeddings or POST /v1/rerank"),
        ("RERANK", EMBEDDINGS, "POST /v1/rerank"),
        ("RERANK", CHAT, "POST /v1/rerank"),
    ],
)
def test_the_right_endpoint_is_told(task: str, path: str, right: str) -> None:
    fields = {
        EMBEDDINGS: {"input": "a"},
        RERANK: PASSAGES,
        CHAT: {"messages": [{"role": "user", "content": "a"}]},
        RESPONSES: {"input": "a"},
    }[path]
    request = parse_request(path, json.dumps({"model": "m", **fields}).encode())
    with pytest.raises(OpenAiError) as caught:
        request.require_task(task)
    assert (caught.value.status, caught.value.code) == (400, "model_not_for_this_endpoint")
    assert right in caught.value.message


def test_tokens_of_another_tokenizer_are_told_apart_where_that_is_possible() -> None:
    """LangChain sends the tokens of OpenAI's models by default."""
    said = b'{"error": {"message": "Token id 40000 is out of vocabulary", "code": 400}}'
    error = model_server_error(400, said, served_name="vectors", name="vectors")
    assert error.status == 400 and "Token id 40000 is out of vocabulary. " in error.message
    assert "check_embedding_ctx_length=False" in error.message
