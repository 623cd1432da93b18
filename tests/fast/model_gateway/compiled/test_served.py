"""Attacks with schemas through a gateway process: how much a model server has to compile at a time."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from neocloud.model_gateway.compiled.turns import BASE_SECONDS
from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import CHAT, Served, body, events_of

pytestmark = pytest.mark.slow

HOSTILE = {"regex": "|".join(["(a.*b.*){1,50}"] * 3000)}
COMPILE_SECONDS = 0.2


def schema(number: int, **more: Any) -> dict[str, Any]:
    return {"structured_outputs": {"choice": [f"never seen {number} {time.monotonic_ns()}"]}, **more}


@pytest.fixture
def compiling(served: Served) -> Served:
    """One model server, which takes a while to compile."""
    first, _ = served.engines
    served.use(first)
    first.tell(compile_seconds=COMPILE_SECONDS)
    return served


def key(served: Served, name: str) -> dict[str, str]:
    served.gateway.control_plane.add_caller(name, tenant="tenant-a", projects=["project-a"])
    return {"Authorization": f"Bearer {name}"}


def all_at_once(
    served: Served, requests: list[dict[str, Any]], keys: list[dict[str, str]]
) -> list[httpx.Response]:
    def send(number: int) -> httpx.Response:
        return httpx.post(
            f"{served.gateway.url}{CHAT}",
            json=body(**requests[number]),
            headers=keys[number % len(keys)],
            timeout=60,
        )

    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(send, range(len(requests))))


def test_eight_hostile_expressions_at_once_never_reach_the_engine(compiling: Served) -> None:
    before = compiling.engines[0].counts()["requests"]
    answers = all_at_once(compiling, [{"structured_outputs": HOSTILE}] * 8, [key(compiling, "mallory")])
    assert {(each.status_code, each.json()["error"]["param"]) for each in answers} == {
        (400, "structured_outputs.regex")
    }
    assert compiling.engines[0].counts()["requests"] == before


def test_one_caller_has_one_compilation_under_way(compiling: Served) -> None:
    engine = compiling.engines[0]
    most = engine.counts()["most_compiling"]
    engine.tell(compile_seconds=COMPILE_SECONDS)
    answers = all_at_once(compiling, [schema(n) for n in range(6)], [key(compiling, "eager")])
    assert [each.status_code for each in answers] == [200] * 6
    assert engine.counts()["most_compiling"] == max(most, 1)


def test_a_deployment_has_two_compilations_under_way_and_chats_go_on(compiling: Served) -> None:
    engine = compiling.engines[0]
    keys = [key(compiling, f"caller-{number}") for number in range(6)]
    with ThreadPoolExecutor(1) as threads:
        attack = threads.submit(all_at_once, compiling, [schema(n) for n in range(12)], keys)
        wait_until(lambda: engine.counts()["compiling"], seconds=60)
        assert compiling.post(max_tokens=1).status_code == 200
        assert not attack.done(), "a chat without a schema does not wait"
        answers = attack.result(60)
    assert [each.status_code for each in answers] == [200] * 12
    assert engine.counts()["most_compiling"] == 2


def test_a_known_schema_does_not_wait_behind_new_ones(compiling: Served) -> None:
    engine = compiling.engines[0]
    known = schema(0)
    assert compiling.post(**known).status_code == 200
    engine.tell(compile_seconds=1.0)
    keys = [key(compiling, f"new-{number}") for number in range(4)]
    with ThreadPoolExecutor(1) as threads:
        attack = threads.submit(all_at_once, compiling, [schema(n) for n in range(4)], keys)
        wait_until(lambda: engine.counts()["compiling"] == 2, seconds=60)
        engine.tell(compile_seconds=0.0)
        assert compiling.post(**known).status_code == 200
        assert not attack.done()
        attack.result(60)


def test_a_caller_that_leaves_does_not_start_another_compilation(compiling: Served) -> None:
    engine = compiling.engines[0]
    engine.tell(compile_seconds=1.0)
    mallory = key(compiling, "leaves")
    before, began = engine.counts()["requests"], time.monotonic()
    for number in range(5):
        with pytest.raises(httpx.TimeoutException):
            url = f"{compiling.gateway.url}{CHAT}"
            httpx.post(url, json=body(**schema(number)), headers=mallory, timeout=0.2)
    turns = 1 + (time.monotonic() - began) / BASE_SECONDS
    assert engine.counts()["requests"] - before <= turns
    wait_until(lambda: engine.counts()["compiling"] == 0, seconds=60)


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_does_not_compile_is_the_callers_mistake(served: Served, is_stream: bool) -> None:
    first, _ = served.engines
    served.use(first)
    first.tell(fault="compile")
    mallory = key(served, f"mistaken-{is_stream}")
    answer = served.post(headers=mallory, **schema(1, stream=is_stream))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("structured_outputs", "invalid_value")
    assert served.row(answer)["outcome"] == "refused"
    assert served.post().status_code == 200, "requests without schemas are answered"
    first.tell(fault="")
    began = time.monotonic()
    assert served.post(headers=mallory, **schema(2)).status_code == 200
    assert time.monotonic() - began > 2, "the next schema of this caller waits"
    assert served.post(headers=key(served, f"other-{is_stream}"), **schema(3)).status_code == 200


def test_a_model_server_that_dies_of_a_schema_is_no_mistake_of_the_caller(served: Served) -> None:
    first, _ = served.engines
    served.use(first)
    first.tell(fault="error")
    answer = served.post(headers=key(served, "unlucky"), **schema(1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")


def test_a_stream_with_a_schema_arrives_whole(compiling: Served) -> None:
    answer = compiling.post(headers=key(compiling, "streams"), **schema(1, stream=True, max_tokens=5))
    assert len(events_of(answer)) == 6
    row = compiling.row(answer)
    assert (row["output"], row["outcome"], row["is_estimated"]) == (5, "ok", 0)
    short = compiling.post(headers=key(compiling, "streams"), **schema(2, stream=True, max_tokens=1))
    assert len(events_of(short)) == 2


def test_batches_have_the_same_bounds(served: Served) -> None:
    first, _ = served.engines
    served.use(first)
    first.tell(fault="compile")
    lines = [
        {"structured_outputs": HOSTILE},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
        schema(1),
    ]
    requests = [
        {"custom_id": f"{number}", "method": "POST", "url": CHAT, "body": body(**line)}
        for number, line in enumerate(lines)
    ]
    content = "\n".join(map(json.dumps, requests))
    file = served.client.post(
        "/v1/files", files={"file": ("f.jsonl", content)}, data={"purpose": "batch"}
    ).json()
    asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = served.client.post("/v1/batches", json=asked).json()

    def done() -> dict[str, Any] | None:
        found = served.client.get(f"/v1/batches/{batch['id']}").json()
        return found if found["status"] == "completed" else None

    found = wait_until(done, seconds=60)
    assert found is not None
    errors = served.client.get(f"/v1/files/{found['error_file_id']}/content").text.splitlines()
    by_id = {line["custom_id"]: line["response"] for line in map(json.loads, errors)}
    assert {name: answer["status_code"] for name, answer in by_id.items()} == {"0": 400, "1": 400, "2": 400}
    assert by_id["0"]["body"]["error"]["param"] == "structured_outputs.regex"
