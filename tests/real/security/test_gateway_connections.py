"""Clients that are slow, silent or many, and heads without end; and that others are served meanwhile."""

import asyncio
import itertools
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from neocloud.data_plane.http import connections as connections
from neocloud.data_plane.http.connections import (
    SPARE_CONNECTIONS,
    ClientConnections,
    client_of,
)
from neocloud.data_plane.http.protocol import MAX_HEAD_BYTES, MAX_HEADERS, ResponseTransport
from neocloud.model_gateway.api.client_protocol import gateway_connections
from neocloud.model_gateway.settings import GatewaySettings
from neocloud.testing.gateway import (
    EngineProcess,
    FakeControlPlane,
    GatewayProcess,
    engine_process,
    gateway_process,
    route,
)
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.waiting import wait_until
from tests.fast.model_gateway.conftest import CHAT, body

HEAD_SECONDS, BODY_SECONDS, QUIET_SECONDS = 5, 4, 5
KEEP_ALIVE_SECONDS = 5
"""A client that a busy machine stops for two or three seconds is not cut in these tests."""
LONG = 60.0
MOST = 6
ASK = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-a\r\n".encode()


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with engine_process(Behaviour(tokens=300, token_seconds=0.02)) as started:
        yield started


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: EngineProcess) -> Iterator[GatewayProcess]:
    options = (
        *("--head-seconds", str(HEAD_SECONDS), "--body-seconds", str(BODY_SECONDS)),
        *("--body-quiet-seconds", str(QUIET_SECONDS), "--keep-alive-seconds", str(KEEP_ALIVE_SECONDS)),
    )
    with gateway_process(tmp_path_factory.mktemp("connections"), *options) as started:
        started.set_routes(route("bank", replicas=[engine.address]))
        yield started


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[socket.socket]:
    with connected(gateway) as connection:
        yield connection


def connected(gateway: GatewayProcess) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=LONG)


def received(connection: socket.socket) -> bytes:
    """All until the gateway closes."""
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def status(answer: bytes) -> int:
    """Return the status of the last answer of a connection that the gateway closes."""
    head, _, content = answer[answer.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    code = int(head.split(b" ")[1])
    if code >= 400:
        assert b"x-request-id: req_" in head.lower()
        assert set(json.loads(content)["error"]) == {"message", "type", "param", "code"}
    return code


def drip(connection: socket.socket, data: bytes, pause: float) -> bytes:
    """Send it byte by byte until there is an answer."""
    connection.settimeout(pause)
    for number in range(len(data)):
        try:
            connection.sendall(data[number : number + 1])
            answer = connection.recv(1)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return b""
        connection.settimeout(LONG)
        return answer + received(connection)
    raise AssertionError("all was sent, and it was not refused")


def test_a_connection_that_asks_nothing_is_closed(client: socket.socket) -> None:
    assert received(client) == b""


@pytest.mark.parametrize("start", [b"G", ASK, b"\r\n"])
def test_a_head_that_stops_is_refused(client: socket.socket, start: bytes) -> None:
    client.sendall(start)
    assert status(received(client)) == 408


@pytest.mark.parametrize("first", [b"", ASK + b"\r\n"])
def test_a_head_that_drips_is_refused(client: socket.socket, first: bytes) -> None:
    """Also after another request, whose answer does not give it the time of an unused connection."""
    if first:
        client.sendall(first)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert status(drip(client, ASK + b"x-a: " + b"y" * 1000, 0.2)) == 408


def test_an_unused_connection_is_closed(client: socket.socket) -> None:
    client.sendall(ASK + b"\r\n")
    assert status(received(client)) == 200


def test_a_body_that_stops_is_refused(client: socket.socket) -> None:
    client.sendall(POST + b"Content-Length: 1000\r\n\r\n{")
    assert status(received(client)) == 408


def test_a_body_that_drips_is_refused(client: socket.socket) -> None:
    client.sendall(POST + b"Content-Length: 1000\r\n\r\n")
    assert status(drip(client, b" " * 1000, 0.2)) == 408


def test_chunks_that_drip_are_refused(client: socket.socket) -> None:
    client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    assert status(drip(client, b"1\r\nx\r\n" * 1000, 0.1)) == 408


def test_a_body_that_is_not_wanted_may_not_drip_either(client: socket.socket) -> None:
    client.sendall(b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    answer = client.recv(65536) + drip(client, b" " * 1000, 0.2)
    assert (answer.count(b"HTTP/1.1 "), status(answer)) == (1, 405)


def test_an_upload_that_takes_longer_is_taken(gateway: GatewayProcess) -> None:
    """40 KiB/s, for longer than any of the limits without bytes."""

    def pieces() -> Iterator[bytes]:
        begin = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b\r\n'
        yield begin + b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        began = time.monotonic()
        while time.monotonic() < began + QUIET_SECONDS + 2:
            yield b"x" * 8192
            time.sleep(0.2)  # the rate is what is tested
        yield b"\r\n--b--\r\n"

    headers = {**gateway.headers, "Content-Type": "multipart/form-data; boundary=b"}
    answer = httpx.post(gateway.url + "/v1/files", content=pieces(), headers=headers, timeout=LONG)
    assert answer.status_code == 200, answer.text


class Slow(FakeControlPlane):
    """Takes longer over a key than a client may be silent."""

    def _admit(self, request: Any, context: grpc.ServicerContext) -> Any:
        time.sleep(4)  # a lookup may take 5 s
        return super()._admit(request, context)


def test_a_client_that_the_gateway_keeps_waiting_is_not_cut(tmp_path: Path) -> None:
    options = ("--body-seconds", "3", "--body-quiet-seconds", "3")
    with gateway_process(tmp_path, *options, control_plane=Slow()) as gateway:
        asked = body(user="x" * 20_000_000)  # more than buffers of sockets hold
        answer = httpx.post(gateway.url + CHAT, json=asked, headers=gateway.headers, timeout=LONG)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_stream_is_not_cut_while_it_is_read(gateway: GatewayProcess) -> None:
    """Six seconds, longer than every limit; and the next request begins while it continues."""
    content = json.dumps(body(stream=True)).encode()
    with connected(gateway) as connection:
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n%b" % (len(content), content) + ASK)
        answer = received(connection)
    assert b"[DONE]" in answer and answer.count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
        ASK + b"x-a: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
        ASK + b"x-a: " + b"y" * 2 * MAX_HEAD_BYTES,
        ASK + b"x" * 2 * MAX_HEAD_BYTES,
        ASK + b"a: b\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        ASK + b"x-a: " + b"y\r\n y" * MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
@pytest.mark.parametrize("before", [b"", ASK + b"\r\n"])
def test_a_head_is_bounded(client: socket.socket, before: bytes, head: bytes) -> None:
    if before:
        client.sendall(before)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    client.sendall(head)
    assert status(received(client)) in ((431,) if b"\r\n y" not in head else (400, 431))


@pytest.mark.parametrize(
    "rest", [b"a: b\r\n" * (MAX_HEADERS + 1), b"a: " + b"x" * MAX_HEAD_BYTES, b"a: " + b"x" * 100_000]
)
def test_trailers_are_bounded(client: socket.socket, rest: bytes) -> None:
    client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + rest + b"\r\n\r\n")
    assert status(received(client)) == 431


def test_a_trailer_is_no_header(client: socket.socket) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    client.sendall(head + b"2\r\n{}\r\n0\r\nAuthorization: Bearer key-a\r\n\r\n")
    assert client.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_a_usual_head_passes(gateway: GatewayProcess) -> None:
    headers = {f"x-{number}": "y" * 300 for number in range(MAX_HEADERS - 10)}
    assert httpx.get(gateway.url + "/health", headers=headers, timeout=LONG).status_code == 200


@contextmanager
def crowded(home: Path, most: int) -> Iterator[tuple[GatewayProcess, list[socket.socket]]]:
    """All ordinary connections are taken, and wait for an answer or ask nothing."""
    options = ("--max-connections", str(most), "--head-seconds", "60")
    with gateway_process(home, *options) as gateway, ExitStack() as open_ones:
        yield gateway, [open_ones.enter_context(connected(gateway)) for _ in range(most)]


def models(gateway: GatewayProcess) -> httpx.Response:
    return httpx.get(gateway.url + "/v1/models", headers=gateway.headers, timeout=LONG)


def test_health_is_told_while_all_connections_are_taken(tmp_path: Path) -> None:
    with crowded(tmp_path, MOST) as (gateway, taken):

        def refusal() -> bool:
            answer = models(gateway)
            return answer.status_code == 503 and answer.headers["retry-after"] == "5"

        wait_until(refusal)
        answer = httpx.get(gateway.url + "/health", timeout=LONG)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        more = [connected(gateway) for _ in range(SPARE_CONNECTIONS * 2)]
        assert httpx.get(gateway.url + "/health", timeout=LONG).status_code == 200
        for connection in [*more, *taken]:
            connection.close()
        wait_until(lambda: models(gateway).status_code == 200)


def test_a_refused_connection_asks_once(tmp_path: Path) -> None:
    with crowded(tmp_path, 1) as (gateway, _), connected(gateway) as connection:
        connection.sendall(POST + b"Content-Length: 0\r\n\r\n" + ASK + b"\r\n")
        answer = received(connection)
    assert (answer.count(b"HTTP/1.1 "), status(answer)) == (1, 503)


class Open:
    """A connection as the watch sees it."""

    def __init__(self) -> None:
        self.is_aborted = False

    def check(self, seconds: float) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


class Written(asyncio.Transport):
    """A transport that keeps what is written, each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True


async def test_headers_are_sent_with_the_start_of_the_body() -> None:
    below = Written()
    transport = ResponseTransport(below)
    for data in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"first", b"second"):
        transport.write(data)
    await asyncio.sleep(0)
    expected = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nfirst", b"second"]
    assert below.writes == expected


async def test_headers_do_not_wait_for_a_body() -> None:
    below = Written()
    ResponseTransport(below).write(b"HTTP/1.1 200 OK\r\n\r\n")
    await asyncio.sleep(0)
    assert below.writes == [b"HTTP/1.1 200 OK\r\n\r\n"]


async def test_headers_are_sent_before_the_connection_closes() -> None:
    below = Written()
    transport = ResponseTransport(below)
    transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    transport.close()
    assert (below.writes, below.is_closed) == ([b"HTTP/1.1 204 No Content\r\n\r\n"], True)


def watch(**limits: int) -> ClientConnections:
    return gateway_connections(GatewaySettings(home=Path("/none"), api="", **limits))  # type: ignore[arg-type]


def test_one_address_does_not_take_all_connections() -> None:
    found = watch(max_connections=10, max_address_connections=3)
    first = [Open() for _ in range(5)]
    assert [found.enter(one, "192.0.2.1") for one in first] == [True] * 3 + [False] * 2
    assert found.enter(Open(), "192.0.2.2")
    found.leave(first[3])
    found.leave(first[0])
    assert found.enter(Open(), "192.0.2.1") and not found.enter(Open(), "192.0.2.1")


def test_this_machine_counts_only_against_all_connections() -> None:
    found = watch(max_connections=10, max_address_connections=3)
    addresses = itertools.cycle(["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
    assert [found.enter(Open(), next(addresses)) for _ in range(11)] == [True] * 10 + [False]


def test_all_addresses_of_a_site_are_one_client() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:1") != client_of("2001:db8:0:1::1")
    assert client_of("::ffff:192.0.2.1") == client_of("192.0.2.1") != client_of("192.0.2.2")


def test_the_newest_has_a_place_beyond_the_limits() -> None:
    found = watch(max_connections=1)
    assert found.enter(Open(), "127.0.0.1")
    spare = [Open() for _ in range(SPARE_CONNECTIONS + 1)]
    assert not any(found.enter(one, "192.0.2.1") for one in spare)
    assert [one.is_aborted for one in spare] == [True] + [False] * SPARE_CONNECTIONS
    for one in spare:
        found.leave(one)
    assert not found._spare and len(found._ordinary) == 1


def test_what_is_gone_is_forgotten() -> None:
    found = watch()
    many = {Open(): f"192.0.2.{number % 250}" for number in range(1000)}
    for one, address in many.items():
        found.enter(one, address)
    for one in many:
        found.leave(one)
    assert not found._ordinary and not found._of_client


def test_one_broken_connection_does_not_end_the_look() -> None:
    class Broken(Open):
        def check(self, seconds: float) -> None:
            raise RuntimeError("broken")

    class Last(Open):
        def check(self, seconds: float) -> None:
            self.seconds = seconds

    found, broken, last = watch(), Broken(), Last()
    for one in (broken, last):
        found.enter(one, "127.0.0.1")
    found.check(2.0)
    assert broken.is_aborted and last.seconds == 2.0


def test_open_files_lower_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert connections.connections_allowed_by_files() == (4096 - 512) // 2 - SPARE_CONNECTIONS
    assert watch()._most == connections.connections_allowed_by_files() < GatewaySettings.max_connections
