"""Work that was begun with a key ends when the key does: streams, waiting requests and batches."""

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from neocloud.testing.gateway import (
    EngineProcess,
    GatewayProcess,
    engine_process,
    gateway_process,
    route,
)
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import CHAT, body, ledger_row


@pytest.fixture
def key() -> str:
    """Another one for each test: what a gateway knew of a key a moment ago, it still believes."""
    return f"key-{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, EngineProcess]]:
    home = tmp_path_factory.mktemp("rights")
    with (
        engine_process(Behaviour(tokens=100_000, token_seconds=0.02)) as engine,
        gateway_process(home, "--admit-seconds", "0.5", "--renew-seconds", "1") as gateway,
    ):
        yield gateway, engine


@pytest.fixture
def engine(process: tuple[GatewayProcess, EngineProcess], key: str) -> EngineProcess:
    gateway, engine = process
    gateway.set_routes(route("bank", replicas=[engine.address]))
    gateway.control_plane.add_caller(key, tenant="tenant-a", projects=["project-a"])
    return engine


@pytest.fixture
def gateway(process: tuple[GatewayProcess, EngineProcess], engine: EngineProcess) -> GatewayProcess:
    return process[0]


@pytest.fixture
def client(gateway: GatewayProcess, key: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as client:
        yield client


def revoke(gateway: GatewayProcess, key: str) -> None:
    del gateway.control_plane.callers[key]


def take_away(gateway: GatewayProcess, key: str) -> None:
    """The permission; the key stays."""
    gateway.control_plane.callers[key].ClearField("grants")


@pytest.mark.parametrize("end", [revoke, take_away])
def test_a_stream_ends_with_an_error(
    gateway: GatewayProcess, engine: EngineProcess, client: httpx.Client, key: str, end: Any
) -> None:
    with client.stream("POST", CHAT, json=body(stream=True, max_tokens=8000)) as response:
        lines = response.iter_lines()
        next(lines)
        end(gateway, key)
        rest = [line for line in lines if line]
    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert error["code"] == "right_ended"
    wait_until(lambda: engine.counts()["in_flight"] == 0, seconds=60)
    row = ledger_row(gateway.home, response.headers["x-request-id"])
    assert row["output"] > 0 and row["is_estimated"] == 0


@pytest.mark.parametrize("end", [revoke, take_away])
def test_an_answer_that_is_computed_is_given_up(
    gateway: GatewayProcess, engine: EngineProcess, client: httpx.Client, key: str, end: Any
) -> None:
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.post, CHAT, json=body(max_tokens=8000))
        wait_until(lambda: engine.counts()["in_flight"] == 1, seconds=60)
        end(gateway, key)
        response = answer.result(60)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "right_ended")
    wait_until(lambda: engine.counts()["in_flight"] == 0, seconds=60)
    assert ledger_row(gateway.home, response.headers["x-request-id"])["output"] > 0


def test_who_waits_for_a_replica_is_told(gateway: GatewayProcess, client: httpx.Client, key: str) -> None:
    gateway.set_routes(route("bank"))
    gateway.control_plane.traffic.clear()
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.post, CHAT, json=body(), headers={"x-neocloud-wait": "60"})
        reported = gateway.control_plane.reported
        wait_until(lambda: max(reported("deployment-bank", "waiting"), default=0) > 0, seconds=60)
        revoke(gateway, key)
        response = answer.result(60)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "right_ended")


def test_a_stream_whose_right_holds_goes_on(gateway: GatewayProcess, client: httpx.Client) -> None:
    admits = gateway.control_plane.admits
    with client.stream("POST", CHAT, json=body(stream=True, max_tokens=200)) as response:
        text = "".join(response.iter_text())
    assert "[DONE]" in text and "error" not in text
    assert gateway.control_plane.admits > admits + 1


@pytest.mark.parametrize("end", [revoke, take_away])
def test_a_batch_ends_with_what_was_answered(
    gateway: GatewayProcess, engine: EngineProcess, client: httpx.Client, key: str, end: Any
) -> None:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body(max_tokens=10)}
        for number in range(5000)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    made = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("b", content)})
    asked = {"input_file_id": made.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = client.post("/v1/batches", json=asked).json()["id"]
    wait_until(lambda: engine.counts()["in_flight"] > 0, seconds=60)
    end(gateway, key)
    gateway.control_plane.add_caller("key-of-another", tenant="tenant-a", projects=["project-a"])
    other = {"Authorization": "Bearer key-of-another"}
    path = f"{gateway.url}/v1/batches/{batch}"
    wait_until(lambda: httpx.get(path, headers=other, timeout=60).json()["status"] == "cancelled", seconds=60)
    found = httpx.get(path, headers=other, timeout=60).json()
    assert [error["code"] for error in found["errors"]["data"]] == ["right_ended"]
    assert found["request_counts"]["completed"] < 5000
    wait_until(lambda: engine.counts()["in_flight"] == 0, seconds=60)
