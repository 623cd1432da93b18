"""Issue 4, faults: replicas that fail in every way, clients that leave or read slowly, gateways that stop.

Each request ends in an answer or an error, and is in the ledger once.
"""

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from neocloud.model_gateway.openai_files.validation import SMALL_BYTES
from neocloud.testing.gateway import engine_process, gateway_process, reserved_port, route
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import CHAT, Served, body, ledger_row, ledger_rows


def events_of(text: str) -> list[dict[str, object] | str]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("fault", "is_stream"),
    [
        ("die", False),
        *((fault, is_stream) for fault in ("drop", "busy", "gone") for is_stream in (False, True)),
    ],
)
def test_another_replica_takes_what_one_did_not_begin_to_answer(
    served: Served, fault: str, is_stream: bool
) -> None:
    bad, good = served.engines
    bad.tell(fault="" if fault == "gone" else fault)
    with reserved_port() as nobody:
        served.use(f"127.0.0.1:{nobody}" if fault == "gone" else bad, good)
        for number in range(6):
            asked = [{"role": "user", "content": f"{number} {fault}"}]
            response = served.post(stream=is_stream, messages=asked)
            assert response.status_code == 200
            assert "error" not in response.text
            row = served.row(response)
            assert (row["output"], row["outcome"], row["is_estimated"]) == (8, "ok", 0)


def test_a_replica_that_dies_in_a_stream_ends_it_with_an_error(served: Served) -> None:
    first, _ = served.engines
    first.tell(fault="die", after=4)
    served.use(first)
    response = served.post(stream=True)
    events = events_of(response.text)
    assert len(events) == 1 + 4 + 1
    assert events[-1]["error"]["code"] == "replica_lost"  # type: ignore[index]
    row = served.row(response)
    assert (row["input"], row["output"], row["outcome"], row["is_estimated"]) == (2, 4, "replica_lost", 0)
    lines = (served.gateway.home / "gateway.log").read_text().splitlines()
    of_request = [line for line in lines if f" [{response.headers['x-request-id']}]: " in line]
    assert any("response lost" in line for line in of_request), "its lines name the request, as all others do"


def test_the_engines_own_error_in_a_stream_is_no_success(served: Served) -> None:
    first, _ = served.engines
    first.tell(fault="stream-error", after=4)
    served.use(first)
    response = served.post(stream=True)
    assert "EngineCore died" in response.text
    row = served.row(response)
    assert (row["output"], row["outcome"], row["is_estimated"]) == (4, "replica_lost", 0)


def test_a_request_that_kills_engines_does_not_kill_them_all(served: Served) -> None:
    for engine in served.engines:
        engine.tell(fault="drop")
    before = [engine.counts()["requests"] for engine in served.engines]
    response = served.post()
    assert response.status_code in (502, 503)
    sent = sum(engine.counts()["requests"] for engine in served.engines) - sum(before)
    assert sent <= 3
    assert served.row(response)["output"] == 0


def test_when_no_replica_is_left_it_says_so(served: Served) -> None:
    with reserved_port() as nobody:
        served.use(f"127.0.0.1:{nobody}")
        response = served.post()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_replica")
    assert response.headers["retry-after"]
    assert served.row(response)["outcome"] == "refused"


def test_an_engine_that_closed_an_unused_connection_is_asked_again(served: Served) -> None:
    with reserved_port() as port:
        with engine_process(Behaviour(tokens=8), port=port) as engine:
            served.use(engine)
            assert served.post().status_code == 200
        with engine_process(Behaviour(tokens=8), port=port):
            assert served.post().status_code == 200


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_engine_that_hangs_is_given_up(served: Served, is_stream: bool) -> None:
    first, _ = served.engines
    first.tell(fault="hang")
    served.use(first)
    response = served.post(stream=is_stream)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "replica_silent")
    assert served.row(response)["outcome"] == "replica_lost"


def test_an_engine_that_falls_silent_in_a_stream_is_given_up(served: Served) -> None:
    first, _ = served.engines
    first.tell(fault="stall", after=5)
    served.use(first)
    response = served.post(stream=True)
    assert events_of(response.text)[-1]["error"]["code"] == "replica_silent"  # type: ignore[index]
    assert served.row(response)["output"] == 5
    wait_until(lambda: first.counts()["in_flight"] == 0, seconds=60)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_stops_the_engine(served: Served, is_stream: bool) -> None:
    first, _ = served.engines
    first.tell(tokens=2000, token_seconds=0.02)
    served.use(first)
    before = first.counts()
    with raw_request(served, stream=is_stream) as connection:
        wait_until(lambda: first.counts()["in_flight"] == 1, seconds=60)
        seen = tokens_received(connection, at_least=5) if is_stream else 1
        request_id = first.counts()["last"]["headers"]["x-request-id"]
        connection.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: first.counts()["in_flight"] == 0, seconds=60)
    assert first.counts()["cancelled"] == before["cancelled"] + 1
    row = ledger_row(served.gateway.home, request_id)
    assert (row["outcome"], row["is_estimated"]) == ("client_left", int(not is_stream))
    made = first.counts()["completion_tokens"] - before["completion_tokens"]
    if is_stream:
        assert row["input"] == 2, "the model server's count, not one of bytes"
        assert seen <= row["output"] <= made
    else:
        assert row["output"] >= seen  # what the engine may have made, which nobody saw


def tokens_received(connection: socket.socket, *, at_least: int) -> int:
    """Read a stream until it has brought this many tokens; return how many it has."""
    text = b""
    while (tokens := text.count(b" word")) < at_least:
        piece = connection.recv(65536)
        assert piece, text
        text += piece
    return tokens


@contextmanager
def raw_request(served: Served, *, receive_buffer: int = 0, **fields: object) -> Iterator[socket.socket]:
    """Sent, and not read."""
    host, port = served.gateway.url.removeprefix("http://").split(":")
    content = json.dumps(body(**fields))
    with socket.socket() as connection:
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect((host, int(port)))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {served.gateway.token}\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
        yield connection


def test_a_client_that_does_not_read_holds_the_engine_back_and_is_left(served: Served) -> None:
    first, _ = served.engines
    first.tell(tokens=100_000, pad=1000)
    served.use(first)
    before = first.counts()
    with raw_request(served, receive_buffer=4096, stream=True):
        wait_until(lambda: first.counts()["in_flight"] == 1, seconds=60)
        request_id = first.counts()["last"]["headers"]["x-request-id"]
        wait_until(lambda: first.counts()["cancelled"] == before["cancelled"] + 1, seconds=60)
    made = first.counts()["completion_tokens"] - before["completion_tokens"]
    assert made * 1000 < 16 * 1024 * 1024, "what nobody reads is not made and kept"
    row = ledger_row(served.gateway.home, request_id)
    assert (row["outcome"], row["is_estimated"]) == ("client_left", 0)


def test_a_gateway_that_is_told_to_stop_finishes_what_it_began(tmp_path: Path) -> None:
    with (
        engine_process(Behaviour(tokens=400, token_seconds=0.03)) as engine,
        gateway_process(tmp_path) as gateway,
        ThreadPoolExecutor(4) as threads,
    ):
        gateway.set_routes(route("bank", replicas=[engine.address]))
        url, headers = gateway.url + CHAT, gateway.headers
        asked = body(stream=True)
        answers = [threads.submit(httpx.post, url, json=asked, headers=headers, timeout=60) for _ in range(4)]
        wait_until(lambda: engine.counts()["in_flight"] == 4, seconds=60)
        gateway.process.send_signal(signal.SIGTERM)
        assert [len(events_of(answer.result(60).text)) for answer in answers] == [1 + 400 + 1] * 4
        assert gateway.process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.post(url, json=asked, headers=headers, timeout=60)
        rows = [ledger_row(tmp_path, answer.result().headers["x-request-id"]) for answer in answers]
        assert {(row["output"], row["outcome"]) for row in rows} == {(400, "ok")}
        assert (tmp_path / "gateway" / "routes.json").stat().st_mode & 0o777 == 0o600


def test_a_gateway_killed_under_load_serves_again_and_has_each_request_once(tmp_path: Path) -> None:
    with (
        engine_process(Behaviour(tokens=500, token_seconds=0.02)) as engine,
        gateway_process(tmp_path) as gateway,
        ThreadPoolExecutor(4) as threads,
    ):
        gateway.set_routes(route("bank", replicas=[engine.address]))
        url, headers = gateway.url + CHAT, gateway.headers
        ask = partial(httpx.post, url, json=body(stream=True), headers=headers, timeout=60)
        answers = [threads.submit(ask) for _ in range(4)]
        wait_until(lambda: engine.counts()["in_flight"] == 4, seconds=60)
        request_id = engine.counts()["last"]["headers"]["x-request-id"]
        wait_until(lambda: ledger_rows(tmp_path, request_id), "its start is in the ledger")
        gateway.process.kill()
        gateway.process.wait()
        assert all(isinstance(answer.exception(60), httpx.TransportError) for answer in answers)
        wait_until(lambda: engine.counts()["in_flight"] == 0, seconds=60)
        gateway.start()
        engine.tell(tokens=3, token_seconds=0)
        gateway.set_routes(route("bank", replicas=[engine.address]))
        assert httpx.post(url, json=body(), headers=headers, timeout=60).status_code == 200
        assert ledger_row(tmp_path, request_id)["outcome"] == "interrupted"


def test_a_gateway_serves_without_the_control_plane_also_after_a_restart(
    served: Served, tmp_path: Path
) -> None:
    engine, _ = served.engines
    with gateway_process(tmp_path) as gateway:
        gateway.set_routes(route("bank", replicas=[engine.address]))
        url, headers = gateway.url + CHAT, gateway.headers
        assert httpx.post(url, json=body(), headers=headers, timeout=60).status_code == 200
        gateway.stop_control_plane()
        assert httpx.post(url, json=body(), headers=headers, timeout=60).status_code == 200
        gateway.process.terminate()
        assert gateway.process.wait(60) == 0
        gateway.start()
        response = httpx.post(url, json=body(), headers=headers, timeout=60)
        assert response.status_code == 200
        assert ledger_row(tmp_path, response.headers["x-request-id"])["outcome"] == "ok"
        outsider = httpx.post(url, json=body(), headers={"Authorization": "Bearer other"}, timeout=60)
        assert (outsider.status_code, outsider.headers["retry-after"]) == (503, "2")
        kept = (tmp_path / "gateway" / "callers.json").read_text()
        assert gateway.token not in kept.replace(f"subject-{gateway.token}", "")
        assert httpx.get(gateway.url + "/health", timeout=60).json()["control_plane"] == "away"


def test_a_program_is_started_without_grpcs_fork_handlers(served: Served) -> None:
    """They crash the child now and then. gRPC logs each fork, also where it leaves them out."""
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body(user="x" * SMALL_BYTES)}
    files = {"file": ("b", json.dumps(line).encode())}  # so large that a process of its own checks it
    made = served.client.post("/v1/files", data={"purpose": "batch"}, files=files).json()
    asked = {"input_file_id": made["id"], "endpoint": CHAT, "completion_window": "24h"}
    path = f"/v1/batches/{served.client.post('/v1/batches', json=asked).json()['id']}"
    wait_until(lambda: served.client.get(path).json()["status"] == "completed", seconds=60)
    assert "fork" not in (served.gateway.home / "gateway.log").read_text()


def test_a_replica_that_must_prove_itself_and_cannot_gets_no_request(served: Served) -> None:
    """On a Slurm cluster, others may listen at its address."""
    first, _ = served.engines
    before = first.counts()["requests"]
    served.use(first, engine_key="key-of-the-deployment", replicas_must_prove=True)
    response = served.post()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_replica")
    assert first.counts()["requests"] == before
    served.use(first, engine_key="", replicas_must_prove=True)
    assert served.post().status_code == 503
    served.use(first, engine_key="key-of-the-deployment")
    assert served.post().status_code == 200
