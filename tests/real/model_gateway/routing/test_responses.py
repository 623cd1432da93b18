"""AIS-01, AIS-14: requests through a gateway process to engines; each is in the ledger once, by the token."""

import json

import pytest

from neocloud.testing.gateway import route
from tests.fast.model_gateway.conftest import CHAT, Served, events_of


def test_an_answer_is_the_engines_with_the_name_that_was_asked_for(served: Served) -> None:
    response = served.post(max_tokens=3)
    assert response.status_code == 200
    answer = response.json()
    assert answer["model"] == "bank"
    assert answer["choices"][0]["message"]["content"] == " word word word"
    assert answer["usage"]["completion_tokens"] == 3
    row = served.row(response)
    assert (row["input"], row["output"], row["outcome"], row["is_estimated"]) == (2, 3, "ok", 0)
    assert (row["model_name"], row["project_id"], row["tenant_id"]) == ("bank", "project-a", "tenant-a")
    assert int(response.headers["openai-processing-ms"]) >= 0
    assert "x-ratelimit-remaining-tokens" in response.headers


def test_a_stream_passes_and_usage_is_counted_but_not_shown(served: Served) -> None:
    response = served.post(stream=True, max_tokens=5)
    events = events_of(response)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert len(events) == 6
    assert {event["model"] for event in events} == {"bank"}
    assert not any("usage" in event for event in events)
    row = served.row(response)
    assert (row["input"], row["output"], row["outcome"], row["is_estimated"]) == (2, 5, "ok", 0)


def test_usage_is_shown_to_who_asks(served: Served) -> None:
    response = served.post(stream=True, max_tokens=5, stream_options={"include_usage": True})
    last = events_of(response)[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5  # type: ignore[index]


def test_cached_input_is_told_apart(served: Served) -> None:
    for engine in served.engines:
        engine.tell(cached=1)
    row = served.row(served.post())
    assert (row["input"], row["cached_input"]) == (2, 1)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked", "tokens"),
    [
        ("/v1/completions", {"prompt": "a b c", "max_tokens": 4}, (3, 4)),
        ("/v1/responses", {"input": "a b", "max_output_tokens": 4}, (2, 4)),
    ],
)
def test_the_other_paths(
    served: Served, path: str, asked: dict[str, object], tokens: tuple[int, int], is_stream: bool
) -> None:
    response = served.client.post(path, json={"model": "bank", "stream": is_stream, **asked})
    assert response.status_code == 200, response.text
    row = served.row(response)
    assert (row["input"], row["output"], row["is_estimated"]) == (*tokens, 0)


def test_embeddings_are_of_models_that_are_served_for_them(served: Served) -> None:
    refused = served.client.post("/v1/embeddings", json={"model": "bank", "input": "a"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert "does not serve embeddings" in refused.json()["error"]["message"]
    served.use(served.engines[0], task="EMBED")
    response = served.client.post("/v1/embeddings", json={"model": "bank", "input": "a b c d"})
    assert response.status_code == 200, response.text
    assert response.json()["data"][0]["embedding"] == [0.5, 0.25, 0.125]
    row = served.row(response)
    assert (row["input"], row["output"], row["is_estimated"]) == (4, 0, 0)
    messages = [{"role": "user", "content": "a"}]
    inputs = {"chat/completions": {"messages": messages}, "completions": {"prompt": "a"}}
    for path, asked in {**inputs, "responses": {"input": "a"}}.items():
        refused = served.client.post(f"/v1/{path}", json={"model": "bank", **asked})
        assert refused.status_code == 400
        assert "POST /v1/embeddings" in refused.json()["error"]["message"]


def test_tools_and_formats_reach_the_engine_as_they_are(served: Served) -> None:
    first, _ = served.engines
    served.use(first)
    extra = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "json_object"},
    }
    served.post(**extra, temperature=0.25)
    body = first.counts()["last"]["body"]
    assert body == {
        "model": "mock",
        "messages": [{"role": "user", "content": "two words"}],
        **extra,
        "temperature": 0.25,
    }


def test_the_engines_key_is_sent_and_the_callers_is_not(served: Served) -> None:
    first, _ = served.engines
    first.tell(key="engine-secret")
    served.use(first, engine_key="engine-secret")
    assert served.post().status_code == 200
    headers = first.counts()["last"]["headers"]
    assert headers["authorization"] == "Bearer engine-secret"
    assert served.gateway.token not in json.dumps(first.counts()["last"])
    served.use(first, engine_key="wrong")
    response = served.post()
    assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_refused")


def test_an_adapter_is_asked_where_it_is_loaded(served: Served) -> None:
    _, second = served.engines
    before = second.counts()["adapters"].get("tuned", 0)
    for number in range(6):
        response = served.post(model="tuned", messages=[{"role": "user", "content": str(number)}])
        assert response.json()["model"] == "tuned"
    assert second.counts()["adapters"]["tuned"] == before + 6


def test_an_adapter_that_no_engine_could_load_is_refused_with_the_reason(served: Served) -> None:
    first, second = (engine.address for engine in served.engines)
    errors = {"tuned": "unsupported LoRA weight"}
    given = {"replicas": [first, second], "engine_name": "mock", "adapter_errors": errors}
    served.gateway.set_routes(route("bank", adapters={"tuned": []}, **given))
    answer = served.post(model="tuned")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "unsupported LoRA weight" in answer.json()["error"]["message"]
    assert served.post().status_code == 200, "the base is served"
    served.gateway.set_routes(route("bank", adapters={"tuned": [second]}, **given))
    assert served.post(model="tuned").status_code == 200, "one replica has it"


def test_the_engines_words_are_told_in_openais_shape(served: Served) -> None:
    for engine in served.engines:
        engine.tell(fault="error")
    response = served.post()
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert served.row(response)["outcome"] == "refused"


def test_models_are_those_that_the_caller_may_call(served: Served) -> None:
    listed = served.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["bank", "tuned"]
    assert listed["data"][1]["parent"] == "bank"
    assert served.client.get("/v1/models/tuned").json()["max_model_len"] == 8192
    served.gateway.control_plane.add_caller("key-b", tenant="tenant-b", projects=["project-b"])
    served.gateway.control_plane.add_caller("key-c", tenant="tenant-a", projects=["project-c"])
    for key in ("key-b", "key-c"):
        other = {"Authorization": f"Bearer {key}"}
        assert served.client.get("/v1/models", headers=other).json()["data"] == []
        assert served.client.get("/v1/models/bank", headers=other).status_code == 404
        refused = served.post(headers=other)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert refused.json() == served.post(model="bank", headers=other).json()


def test_metrics_count_what_passed(served: Served) -> None:
    served.post(max_tokens=3)
    headers = {"Authorization": f"Bearer {served.gateway.scrape_key}"}
    text = served.client.get("/metrics", headers=headers).text
    assert f'neocloud_gateway_requests_total{{model="bank",path="{CHAT}",status="200"}}' in text
    assert 'neocloud_gateway_tokens_total{kind="output",model="bank"}' in text
    assert "neocloud_gateway_time_to_first_byte_seconds_bucket" in text
