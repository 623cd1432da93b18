"""Issue 4, bad input: every refusal has OpenAI's shape, an id, and words that say what to do."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import CHAT, Served, body


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/v1/nothing", b"", 404, "unknown_url"),
        ("GET", "/", b"", 404, "unknown_url"),
        ("GET", CHAT, b"", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", b"", 405, "method_not_allowed"),
        ("POST", CHAT, b'{"model": "bank", }', 400, "invalid_json"),
        ("POST", CHAT, b"", 400, "invalid_json"),
        ("POST", CHAT, b"\x00\xff", 400, "invalid_json"),
        ("POST", CHAT, json.dumps(body(model="no such")).encode(), 404, "model_not_found"),
        ("POST", CHAT, json.dumps(body(max_tokens=10**15)).encode(), 400, "invalid_value"),
        ("POST", CHAT, json.dumps(body(messages=[])).encode(), 400, "missing_required_parameter"),
        ("POST", CHAT, json.dumps(body(prompt="x" * 2_000_000)).encode(), 413, "request_too_large"),
        (
            "POST",
            CHAT,
            json.dumps(body(messages=[{"role": "user", "content": "many words"}] * 30_000)).encode(),
            400,
            "context_length_exceeded",
        ),
    ],
)
def test_it_is_refused_in_openais_shape(
    served: Served, method: str, path: str, content: bytes, status: int, code: str
) -> None:
    response = served.client.request(method, path, content=content)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert len(error["message"]) > 15
    assert response.headers["x-request-id"].startswith("req_")


def test_a_body_that_does_not_say_its_length_is_limited_too(served: Served) -> None:
    response = served.client.post(CHAT, content=(b" " * 100_000 for _ in range(30)))
    assert response.status_code == 413


@pytest.mark.parametrize("key", ["Bearer wrong", "Bearer", "Basic a2V5", ""])
def test_a_wrong_key_is_401(served: Served, key: str) -> None:
    for path in (CHAT, "/v1/models", "/v1/files"):
        method = "POST" if path == CHAT else "GET"
        response = served.client.request(method, path, headers={"Authorization": key}, json=body())
        assert response.status_code == 401, path
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert key.partition(" ")[2] not in response.text or not key.partition(" ")[2]


def test_a_project_that_is_not_the_callers_is_403(served: Served) -> None:
    response = served.post(headers={"OpenAI-Project": "project-z"})
    assert response.status_code == 403


def test_who_may_work_in_several_projects_says_which(served: Served) -> None:
    plane = served.gateway.control_plane
    plane.add_caller("key-two", tenant="tenant-a", projects=["project-a", "project-b"])
    plane.callers["key-two"].home_project_id = ""
    headers = {"Authorization": "Bearer key-two"}
    assert served.post(headers=headers).status_code == 400
    response = served.post(headers={**headers, "OpenAI-Project": "project-b"})
    assert response.status_code == 200
    assert served.row(response)["project_id"] == "project-b"


def test_a_cold_model_is_503_and_wakes(served: Served) -> None:
    served.use(start_seconds=42)
    response = served.post()
    assert (response.status_code, response.headers["retry-after"]) == (503, "42")
    assert response.json()["error"]["code"] == "model_not_ready"
    plane = served.gateway.control_plane
    wait_until(lambda: max(plane.reported("deployment-bank", "waiting"), default=0) > 0, seconds=60)


def test_who_asks_to_wait_is_held_until_a_replica_is_ready(served: Served) -> None:
    served.use()
    plane = served.gateway.control_plane
    plane.traffic.clear()
    with (
        ThreadPoolExecutor(1) as threads,
        httpx.Client(base_url=served.gateway.url, headers=served.gateway.headers, timeout=120) as client,
    ):
        request = client.build_request("POST", CHAT, json=body(), headers={"x-neocloud-wait": "100"})
        answer = threads.submit(client.send, request)
        wait_until(lambda: max(plane.reported("deployment-bank", "waiting"), default=0) > 0, seconds=60)
        served.use(served.engines[0])
        assert answer.result(120).status_code == 200
    wait_until(lambda: plane.reported("deployment-bank", "waiting")[-1] == 0, seconds=60)


def test_nobody_is_held_longer_than_asked(served: Served) -> None:
    served.use()
    assert served.post(headers={"x-neocloud-wait": "0.2"}).status_code == 503
    assert served.post(headers={"x-neocloud-wait": "301"}).status_code == 400
    assert served.post(headers={"x-neocloud-wait": "soon"}).status_code == 400


@pytest.mark.parametrize("state", ["STOPPED", "ERROR"])
def test_what_will_not_wake_says_so(served: Served, state: str) -> None:
    served.use(state=state)
    response = served.post(headers={"x-neocloud-wait": "20"})
    assert response.status_code == 503
    assert state in response.json()["error"]["message"]


def test_headers_without_end_are_not_kept(served: Served) -> None:
    host, port = served.gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nx-long: ")
        with pytest.raises(OSError):
            for _ in range(64):
                connection.sendall(b"x" * 100_000)
    assert served.client.get("/health").status_code == 200
