"""Limits of a request to a model: its cost, its nesting, and the fields that reach an engine."""

import json
from typing import Any

import pytest

from neocloud.model_gateway.api.fields import OPERATORS
from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import CHAT, Served, running, served

__all__ = ["running", "served"]

COMPLETIONS, EMBEDDINGS, RESPONSES = "/v1/completions", "/v1/embeddings", "/v1/responses"


def engine_requests(served: Served) -> int:
    return sum(engine.counts()["requests"] for engine in served.engines)


def refused(served: Served, path: str, code: str, **fields: Any) -> dict[str, Any]:
    """The error of a request that reaches no engine."""
    before = engine_requests(served)
    response = served.client.post(path, json={"model": "bank", **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == code, error
    assert engine_requests(served) == before
    return error


def part(**content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "Look."}, content]}]


@pytest.mark.parametrize("prompt", ["one", [1, 2, 3]])
def test_each_prompt_of_a_request_counts_against_the_limit(served: Served, prompt: Any) -> None:
    limit = 1_000_000
    served.use(*served.engines, limits={"tokens_per_minute": limit})
    asked = {"model": "bank", "prompt": [prompt] * 100, "max_tokens": 1500}
    response = served.client.post(COMPLETIONS, json=asked)
    assert int(response.headers["x-ratelimit-remaining-tokens"]) <= limit - 100 * 1500


def test_each_prompt_of_a_request_counts_against_the_budget(served: Served) -> None:
    price = {"input": "0", "output": "1000"}  # a thousandth of a dollar each
    engines = [engine.address for engine in served.engines]
    served.use(*engines, price=price)
    budget = {"project_id": "project-a", "monthly_limit": "0.50"}
    served.gateway.set_routes(*served.gateway.control_plane.routes, budgets=[budget])
    asked = {"model": "bank", "prompt": ["one"] * 100, "max_tokens": 10}
    response = served.client.post(COMPLETIONS, json=asked)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "insufficient_quota")
    assert served.client.post(COMPLETIONS, json={**asked, "prompt": "one"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "field", "most"), [(COMPLETIONS, "prompt", 128), (EMBEDDINGS, "input", 2048)]
)
@pytest.mark.parametrize("prompt", ["one", [1, 2]])
def test_the_number_of_prompts_is_bounded(
    served: Served, path: str, field: str, most: int, prompt: Any
) -> None:
    served.use(*served.engines, task="EMBED" if path == EMBEDDINGS else "GENERATE")
    fields = {"model": "bank", field: [prompt] * most}
    assert served.client.post(path, json=fields).status_code == 200
    error = refused(served, path, "too_many_prompts", **{field: [prompt] * (most + 1)})
    assert error["param"] == field


def test_prompts_times_choices_are_bounded(served: Served) -> None:
    assert refused(served, COMPLETIONS, "invalid_value", prompt=["a"] * 100, n=100)["param"] == "n"


@pytest.mark.parametrize("levels", [65, 200, 900, 1023])
@pytest.mark.parametrize("field", ["metadata", "unknown", "messages", "tools"])
def test_deep_json_is_refused(served: Served, field: str, levels: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        inner = "1" if opened == "[" else "{}"
        deep = opened * levels + inner + closed * levels
        start = '{"model": "bank", "messages": [{"role": "user", "content": "a"}], '
        text = f'{start} "{field}": {deep}}}'
        response = served.client.post(CHAT, content=text)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/fine_tuning/jobs", "/chat/session"])
def test_deep_json_is_refused_on_other_paths_too(served: Served, path: str) -> None:
    headers = {"origin": served.gateway.url} if path == "/chat/session" else {}
    for levels in (100, 900, 20_000):
        response = served.client.post(path, content="[" * levels + "]" * levels, headers=headers)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_the_number_of_values_is_bounded(served: Served) -> None:
    text = '{"model": "bank", "messages": [' + ",".join(["[]"] * 400_000) + "]}"
    response = served.client.post(CHAT, content=text)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    assert "values" in response.json()["error"]["message"]


def test_commas_inside_of_a_text_are_no_values(served: Served) -> None:
    text = ',[{\\",' * 100_000
    response = served.post(messages=[{"role": "user", "content": text}])
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_what_is_the_operators_is_refused(served: Served, name: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    error = refused(served, CHAT, "parameter_not_allowed", messages=messages, **{name: {"a": 1}})
    assert error["param"] == name


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "guided_magic": 1}),
        (COMPLETIONS, {"prompt": "a", "messages": []}),
        (EMBEDDINGS, {"input": "a", "temperature": 1}),
        (RESPONSES, {"input": "a", "n": 2}),
    ],
)
def test_an_unknown_field_is_named(served: Served, path: str, fields: dict[str, Any]) -> None:
    assert refused(served, path, "unknown_parameter", **fields)["param"] in fields


@pytest.mark.parametrize("name", ["background", "conversation", "prompt"])
def test_responses_that_would_have_to_be_kept_are_refused(served: Served, name: str) -> None:
    assert refused(served, RESPONSES, "parameter_not_allowed", input="a", **{name: True})["param"] == name


def test_fields_that_are_null_do_not_reach_the_engine(served: Served) -> None:
    served.use(served.engines[0])
    assert served.post(chat_template=None, priority=None, temperature=0.5).status_code == 200
    body = served.engines[0].counts()["last"]["body"]
    assert "chat_template" not in body and "priority" not in body and body["temperature"] == 0.5


def test_switches_of_the_template_stay(served: Served) -> None:
    assert served.post(chat_template_kwargs={"enable_thinking": False}).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        {"chat_template_kwargs": {"documents": "x"}},
        {"chat_template_kwargs": {"deep": {"a": 1}}},
        {"chat_template_kwargs": {"long": "x" * 1025}},
        {"response_format": {"type": "json_schema", "json_schema": {"pattern": "x" * 70_000}}},
        {"structured_outputs": {"grammar": "x" * 70_000}},
        {"stop": ["x"] * 65},
        {"tools": [{"type": "function", "function": {"name": "f"}}] * 129},
    ],
)
def test_what_the_engine_would_compile_or_repeat_is_bounded(served: Served, fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "a"}]
    assert refused(served, CHAT, "invalid_value", messages=messages, **fields)["param"] in fields


URLS = [
    "http://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/",
    "https://example.com/a.png",
    "file:///etc/passwd",
    "FILE:/etc/passwd",
    " http://127.0.0.1/",
    "//127.0.0.1/a",
    "ftp://127.0.0.1/a",
    "/etc/passwd",
]


@pytest.mark.parametrize("url", URLS)
def test_engines_fetch_nothing_in_a_chat(served: Served, url: str) -> None:
    for name in ("image_url", "video_url", "audio_url"):
        for value in (url, {"url": url}):
            messages = part(**{"type": name, name: value})
            assert refused(served, CHAT, "media_url_not_allowed", messages=messages)["param"] == "messages"
            hidden = part(**{"type": "text", "text": "a", name: value})
            refused(served, CHAT, "media_url_not_allowed", messages=hidden)
    tool = [{"role": "tool", "tool_call_id": "1", "content": [{"image_url": url}]}]
    refused(served, CHAT, "media_url_not_allowed", messages=tool)


@pytest.mark.parametrize("url", URLS)
def test_engines_fetch_nothing_for_responses(served: Served, url: str) -> None:
    image = {"type": "input_image", "image_url": url}
    for item in (
        {"role": "user", "content": [image]},
        {"type": "function_call_output", "call_id": "1", "output": [image]},
        {"type": "computer_call_output", "call_id": "1", "output": image},
        {"role": "user", "content": [{"type": "input_file", "file_url": url}]},
    ):
        assert refused(served, RESPONSES, "media_url_not_allowed", input=[item])["param"] == "input"


def test_a_url_in_a_batch_is_not_fetched_either(served: Served) -> None:
    body = {"model": "bank", "messages": part(type="image_url", image_url={"url": URLS[0]})}
    line = {"custom_id": "1", "method": "POST", "url": CHAT, "body": body}
    before = engine_requests(served)
    made = served.client.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("b", json.dumps(line).encode())}
    )
    asked = {"input_file_id": made.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = served.client.post("/v1/batches", json=asked).json()
    wait_until(lambda: served.client.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed")
    done = served.client.get(f"/v1/batches/{batch['id']}").json()
    assert done["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    errors = served.client.get(f"/v1/files/{done['error_file_id']}/content").text
    assert "media_url_not_allowed" in errors
    assert engine_requests(served) == before


def test_media_in_the_request_itself_passes(served: Served) -> None:
    served.use(served.engines[0])
    messages = part(type="image_url", image_url={"url": "data:image/png;base64,AAAA"})
    assert served.post(messages=messages).status_code == 200
    assert served.engines[0].counts()["last"]["body"]["messages"] == messages


@pytest.mark.parametrize("kind", ["image_embeds", "audio_embeds", "prompt_embeds"])
def test_tensors_are_refused(served: Served, kind: str) -> None:
    messages = part(**{"type": kind, kind: "gASV"})
    response = served.post(messages=messages)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


def test_the_number_of_media_is_bounded(served: Served) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    messages = [{"role": "user", "content": [image] * 65}]
    refused(served, CHAT, "too_many_media", messages=messages)


@pytest.mark.parametrize("key", [b"Bearer key-a\xa0", b"Bearer \tkey-a", b"Bearer \xe9"])
def test_a_key_with_other_than_printable_ascii_is_refused(served: Served, key: bytes) -> None:
    for path in ("/v1/models", "/v1/fine_tuning/jobs"):
        response = served.client.get(path, headers={b"Authorization": key})
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "host", ["a:b", "[", "[::1", "localhost:b", "localhost:99999999", "127.0.0.1:" + "9" * 5000]
)
def test_hosts_and_origins_that_are_none_are_refused(served: Served, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    for method, path, content in (
        ("GET", "session", b""),
        ("POST", "session", b"{}"),
        ("GET", "v1/models", b""),
    ):
        response = served.client.request(method, f"/chat/{path}", headers=headers, content=content)
        assert response.status_code in (401, 403, 421), response.text
        assert response.json()["error"]["message"]
