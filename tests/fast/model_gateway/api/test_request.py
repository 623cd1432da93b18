"""AIS-02, bad input: what is refused before anything is computed; the rest goes through untouched."""

import json
import time
from typing import Any

import pytest

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.api.lengths import PREFIX_LENGTH
from neocloud.model_gateway.api.request import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, ModelRequest
from tests.fast.model_gateway.conftest import parse_request

HELLO = [{"role": "user", "content": "hello"}]


def asked(path: str = CHAT, **fields: Any) -> ModelRequest:
    fields.setdefault("model", "bank")
    if path == CHAT:
        fields.setdefault("messages", HELLO)
    return parse_request(path, json.dumps(fields).encode())


def refused(path: str = CHAT, **fields: Any) -> OpenAiError:
    with pytest.raises(OpenAiError) as caught:
        asked(path, **fields)
    return caught.value


def test_malformed_json_is_told_with_its_place() -> None:
    with pytest.raises(OpenAiError) as caught:
        parse_request(CHAT, b'{\n  "model": bank}')
    assert caught.value.status == 400
    assert "line 2, column 12" in caught.value.message


@pytest.mark.parametrize("raw", [b"", b"[]", b'"text"', b"{" * 3000, b'{"model":"\xff"}', b"[" * 100_000])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(OpenAiError) as caught:
        parse_request(CHAT, raw)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_completion_tokens": 1e30}, "max_completion_tokens"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert (error.status, error.param) == (400, param)


def test_absurd_max_tokens_is_refused_as_openai_does() -> None:
    with pytest.raises(OpenAiError) as caught:
        asked(max_tokens=10**18).require_length(8192)
    assert caught.value.status == 400
    assert caught.value.param == "max_tokens"
    assert "8192" in caught.value.message


def test_a_prompt_that_cannot_fit_is_refused_without_the_engine() -> None:
    request = asked(messages=[{"role": "user", "content": "x" * 200_000}])
    with pytest.raises(OpenAiError) as caught:
        request.require_length(8192)
    assert caught.value.code == "context_length_exceeded"


def test_a_prompt_that_may_fit_is_left_to_the_engine() -> None:
    asked(messages=[{"role": "user", "content": " " * 100_000}]).require_length(8192)


def test_a_hundred_thousand_messages_are_bounded_work() -> None:
    raw = json.dumps({"model": "bank", "messages": HELLO * 100_000}).encode()
    started = time.process_time()
    request = parse_request(CHAT, raw)
    with pytest.raises(OpenAiError):
        request.require_length(8192)
    assert time.process_time() - started < 5


def test_a_body_goes_through_but_for_the_name_and_the_usage() -> None:
    fields = {
        "model": "bank",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "é"}, {"type": "image_url", "image_url": {}}],
            }
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": [1, 2.5, None]}}}
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
        "stream": True,
        "stream_options": {"continuous_usage_stats": False},
        "structured_outputs": {"regex": "[a-z]+"},
        "seed": 2**60,
    }
    request = parse_request(CHAT, json.dumps(fields).encode())
    sent = json.loads(request.for_model_server("engine-name"))
    options = {"continuous_usage_stats": True, "include_usage": True}
    assert sent == {**fields, "model": "engine-name", "stream_options": options}
    assert list(sent) == list(fields)
    assert request.images == 1
    assert not request.shows_usage


@pytest.mark.parametrize(
    ("path", "fields", "most"),
    [
        (CHAT, {"max_tokens": 10}, 10),
        (CHAT, {"max_tokens": 10, "max_completion_tokens": 20}, 20),
        (CHAT, {"max_tokens": 10, "n": 3}, 30),
        (CHAT, {}, 8192 - 3),
        (COMPLETIONS, {"prompt": "a"}, 16),
        (COMPLETIONS, {"prompt": "a", "best_of": 4, "max_tokens": 5}, 20),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "max_tokens": 5}, 20),
        (COMPLETIONS, {"prompt": [[1, 2], [3], [4]], "max_tokens": 5}, 15),
        (COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 5}, 5),
        (EMBEDDINGS, {"input": ["a", "b"]}, 0),
        (RESPONSES, {"input": "a", "max_output_tokens": 9}, 9),
    ],
)
def test_the_most_that_it_may_cost(path: str, fields: dict[str, Any], most: int) -> None:
    assert asked(path, **fields).max_total_output_tokens(8192) == most


@pytest.mark.parametrize(
    ("path", "fields", "tokens"),
    [
        (COMPLETIONS, {"prompt": "x" * 400}, 101),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 4),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 4),
        (EMBEDDINGS, {"input": ["x" * 40, "x" * 40]}, 21),
        (RESPONSES, {"input": [{"role": "user", "content": "x" * 36}], "instructions": "x" * 40}, 21),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 36}]}, 11),
    ],
)
def test_input_is_estimated_by_its_bytes(path: str, fields: dict[str, Any], tokens: int) -> None:
    assert asked(path, **fields).input_tokens == tokens


def test_the_prefix_is_the_start_of_the_first_messages() -> None:
    def prefix(*contents: object) -> str:
        return asked(messages=[{"role": "user", "content": content} for content in contents]).prefix

    assert prefix("a" * 5000, "b") == prefix("a" * 9000, "c") == "a" * PREFIX_LENGTH
    assert prefix("a", "b", "c") == prefix("a", "b", "d") != prefix("a", "c", "c")
    parts = [{"type": "text", "text": "a"}]
    assert prefix(parts, "b") == prefix(parts, "b") != prefix([{"type": "text", "text": "b"}], "b")


PIXEL = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image_url", "text": "", "image_url": {"url": PIXEL}},
        {"type": "text", "text": "a", "image_url": PIXEL},
        {"text": "a", "video_url": {"url": PIXEL}},
        {"type": "input_image", "text": "x", "image_url": PIXEL},
        {"type": "input_audio", "text": "", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "text": "", "file": {"file_data": PIXEL}},
        {"type": "something new"},
    ],
)
def test_media_are_counted_whatever_lies_beside_them(part: dict[str, Any]) -> None:
    text = {"type": "text", "text": "a"}
    request = asked(messages=[{"role": "user", "content": [text, part]}])
    assert request.images == 1
    error = refused(messages=[{"role": "user", "content": [part] * 65}])
    assert (error.code, error.param) == ("too_many_media", "messages")
    inputs = [{"type": "function_call_output", "call_id": "1", "output": [part] * 65}]
    assert refused(RESPONSES, input=inputs).code == "too_many_media"


def test_two_media_in_one_part_count_twice() -> None:
    part = {"type": "text", "text": "a", "image_url": PIXEL, "video_url": PIXEL}
    assert asked(messages=[{"role": "user", "content": [part]}]).images == 2


def test_functions_count_as_tools_do() -> None:
    function = {"name": "f", "description": "x" * 30_000}
    assert asked(functions=[function]).input_tokens > 7_500
    assert asked(tools=[{"type": "function", "function": function}]).input_tokens > 7_500


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("tools", [[], None])
@pytest.mark.parametrize(
    "choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none", "parallel_tool_calls": True}]
)
def test_empty_tools_are_none(path: str, tools: Any, choice: dict[str, Any]) -> None:
    given = {"input": "hello"} if path == RESPONSES else {"messages": HELLO}
    sent = json.loads(asked(path, **given, tools=tools, **choice).for_model_server("bank"))
    assert sent == {**given, "model": "bank"}
    for wrong in ("required", {"type": "function", "name": "f"}):
        assert refused(path, **given, tools=tools, tool_choice=wrong).param == "tool_choice"


def test_an_echo_needs_no_token() -> None:
    request = asked(COMPLETIONS, prompt="a", echo=True, logprobs=1, max_tokens=0)
    assert request.max_total_output_tokens(8192) == 0
    assert json.loads(request.for_model_server("bank"))["max_tokens"] == 0
    for fields in ({"prompt": "a"}, {"prompt": "a", "echo": False}):
        error = refused(COMPLETIONS, max_tokens=0, **fields)
        assert error.param == "max_tokens"
        assert "with echo" in error.message
    assert refused(max_tokens=0, echo=True).param == "max_tokens"


@pytest.mark.parametrize("arguments", [None, {}, {"a": 1}, [], 7])
def test_a_call_with_arguments_that_are_no_text_is_named(arguments: Any) -> None:
    good = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    bad = {"id": "2", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [good, bad]}]
    error = refused(messages=messages)
    assert error.param == "messages[1].tool_calls[1].function.arguments"
    assert error.param in error.message
    assert refused(messages=[{**messages[1], "tool_calls": [good, "x"]}]).param == "messages[0].tool_calls"
    asked(messages=[*HELLO, {"role": "assistant", "tool_calls": []}, {**messages[1], "tool_calls": [good]}])


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": None}])
def test_a_model_that_is_not_shown_tools_may_not_choose(choice: dict[str, Any]) -> None:
    with pytest.raises(OpenAiError, match="leaves tools out") as caught:
        asked(tools=[FUNCTION], **choice).require_demanded_call()
    assert (caught.value.param, caught.value.status) == ("tool_choice", 400)


@pytest.mark.parametrize("choice", ["required", "none", {"type": "function", "function": {"name": "f"}}])
def test_a_call_that_is_demanded_is_served_by_any_model(choice: Any) -> None:
    asked(tools=[FUNCTION], tool_choice=choice).require_demanded_call()
    asked().require_demanded_call()
