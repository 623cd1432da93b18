"""The requests of one caller may hold a bounded part of the gateway, and release it in every case."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.model_gateway.api.errors import OpenAiError
from neocloud.model_gateway.metering.limits import RequestLimits, RequestSlot
from neocloud.model_gateway.settings import GatewaySettings
from neocloud.testing.gateway import (
    EngineProcess,
    GatewayProcess,
    engine_process,
    gateway_process,
    route,
)
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import CHAT, body

MAX_REQUESTS, MAX_BYTES = 6, 400_000
BUSY = "too_many_requests_under_way"
WAITING = {"x-neocloud-wait": "120"}


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with engine_process(Behaviour(tokens=8)) as started:
        yield started


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    options = ("--max-subject-requests", str(MAX_REQUESTS), "--max-subject-bytes", str(MAX_BYTES))
    with gateway_process(tmp_path_factory.mktemp("limits"), *options, "--max-requests", "8") as started:
        started.control_plane.add_caller("key-b", tenant="tenant-a", projects=["project-a"])
        yield started


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    gateway.set_routes(route("bank"))
    limits = httpx.Limits(max_connections=50)
    with httpx.Client(base_url=gateway.url, headers=gateway.headers, timeout=120, limits=limits) as ready:
        yield ready


def sized(size: int) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": "x"}], user="x" * size)


def is_counted(client: httpx.Client, size: int) -> bool:
    """Return whether no request of `size` bytes is taken now."""
    answer = client.post(CHAT, json=sized(size))
    if answer.status_code != 429:
        return False
    assert (answer.json()["error"]["code"], answer.headers["retry-after"]) == (BUSY, "2")
    assert answer.headers["x-request-id"]
    return True


@contextmanager
def waiting(client: httpx.Client, count: int, size: int) -> Iterator[list[Future[httpx.Response]]]:
    """Yield `count` requests for a model that sleeps.

    A request that is refused is sent again: a probe of `is_counted` may have held its slot.
    """

    def send() -> httpx.Response:
        return wait_until(
            lambda: client.post(CHAT, json=sized(size), headers=WAITING),
            holds=lambda answer: answer.status_code != 429,
            seconds=60,
        )

    with ThreadPoolExecutor(count) as threads:
        yield [threads.submit(send) for _ in range(count)]


def test_bodies_of_requests_that_wait_are_bounded(
    client: httpx.Client, gateway: GatewayProcess, engine: EngineProcess
) -> None:
    with waiting(client, 3, 120_000) as asked:
        wait_until(lambda: is_counted(client, 120_000), seconds=60)
        other = httpx.post(
            gateway.url + CHAT, json=sized(120_000), headers={"Authorization": "Bearer key-b"}, timeout=60
        )
        assert other.status_code == 503, other.text  # another caller has its own
        gateway.set_routes(route("bank", replicas=[engine.address], engine_name="mock"))
        assert [one.result(60).status_code for one in asked] == [200] * 3
    wait_until(lambda: not is_counted(client, 300_000), seconds=60)


def test_requests_that_wait_are_bounded(
    client: httpx.Client, gateway: GatewayProcess, engine: EngineProcess
) -> None:
    with waiting(client, MAX_REQUESTS, 10) as asked:
        wait_until(lambda: is_counted(client, 10), seconds=60)
        answer = wait_until(lambda: client.get("/v1/files"), holds=lambda seen: seen.status_code == 429)
        assert answer.json()["error"]["code"] == BUSY
        assert client.get("/health").status_code == 200
        gateway.set_routes(route("bank", replicas=[engine.address], engine_name="mock"))
        assert [one.result(60).status_code for one in asked] == [200] * MAX_REQUESTS
    wait_until(lambda: not is_counted(client, 10), seconds=60)
    wait_until(lambda: client.get("/v1/files").status_code == 200)


def test_requests_of_all_callers_are_bounded(client: httpx.Client, gateway: GatewayProcess) -> None:
    second = httpx.Client(base_url=gateway.url, headers={"Authorization": "Bearer key-b"}, timeout=120)
    with second, waiting(client, 4, 10) as first, waiting(second, 4, 10):
        wait_until(lambda: is_counted(client, 10) and is_counted(second, 10), seconds=60)
        gateway.set_routes(route("bank", state="ERROR"))
        assert [one.result(60).status_code for one in first] == [503] * 4
    wait_until(lambda: not is_counted(client, 10), seconds=60)


def test_a_client_that_leaves_gives_back(client: httpx.Client, gateway: GatewayProcess) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer key-a\r\n"
        "Content-Length: 200000\r\n\r\n"
    )
    connections = [socket.create_connection((host, int(port)), timeout=60) for _ in range(3)]
    for connection in connections:
        connection.sendall(head.encode() + b"x" * 150_000)  # and never the rest
    wait_until(lambda: is_counted(client, 150_000), seconds=60)
    for connection in connections:
        connection.close()
    wait_until(lambda: not is_counted(client, 300_000), seconds=60)


@pytest.mark.parametrize(
    ("content", "status"), [(b"{", 400), (b'{"model": "none", "messages": [{}]}', 404), (b"[]", 400)]
)
def test_a_request_that_is_refused_gives_back(client: httpx.Client, content: bytes, status: int) -> None:
    for _ in range(MAX_REQUESTS + 1):
        assert client.post(CHAT, content=content).status_code == status
    big = content + b" " * 300_000
    assert [client.post(CHAT, content=big).status_code for _ in range(3)] == [status] * 3


def test_an_upload_counts_for_what_it_keeps_in_memory(client: httpx.Client) -> None:
    form = {"data": {"purpose": "user_data"}, "files": {"file": ("f", b"x" * 300_000)}}
    assert [client.post("/v1/files", **form).status_code for _ in range(3)] == [200] * 3


def test_a_caller_that_calls_too_often_is_told_when_to_go_on(tmp_path: Path) -> None:
    a_year = 1 / (365 * 86_400)  # nothing is refilled while the test runs
    with gateway_process(tmp_path, "--requests-per-second", str(a_year)) as slow:
        slow.control_plane.add_caller("key-b", tenant="tenant-a", projects=["project-a"])
        with httpx.Client(base_url=slow.url, timeout=30) as client:
            answers = [client.get("/v1/models", headers=slow.headers) for _ in range(2)]
            other = client.get("/v1/models", headers={"authorization": "Bearer key-b"})
    assert [each.status_code for each in (*answers, other)] == [200, 429, 200]
    assert answers[1].json()["error"]["code"] == "rate_limit_exceeded"
    assert int(answers[1].headers["retry-after"]) > 1


def test_what_is_given_back_is_what_was_taken() -> None:
    settings = GatewaySettings(home=Path("/none"), api="", max_subject_requests=2, max_requests=3)
    limits = RequestLimits(replace(settings, max_subject_bytes=10, max_bytes=15))
    first, second, third = RequestSlot(limits), RequestSlot(limits), RequestSlot(limits)
    first.acquire("one")
    first.add_bytes(10)
    with pytest.raises(OpenAiError):
        first.add_bytes(1)
    second.acquire("two")
    with pytest.raises(OpenAiError):
        second.add_bytes(6)
    second.add_bytes(5)
    third.acquire("two")
    with pytest.raises(OpenAiError):
        RequestSlot(limits).acquire("two")
    for slot in (first, second, third, first):
        slot.release()
    assert (limits._requests, limits._bytes, limits._subjects) == (0, 0, {})
    third.acquire("one")
    third.release()
