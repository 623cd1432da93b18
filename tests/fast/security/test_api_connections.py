"""Clients of the JSON API that are slow, silent or many, over TLS as other machines reach it."""

import asyncio
import dataclasses
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.data_plane.http import server as http_server
from neocloud.data_plane.http.connections import SPARE_CONNECTIONS
from neocloud.data_plane.http.protocol import MAX_HEAD_BYTES
from neocloud.server import CertificateFolder, ensure_certificate
from neocloud.server.listening import HEALTH_PATH, ApiConnectionLimits, HttpServer, listen

LONG = 60.0
"""Nothing here takes so long."""
SHORT = ApiConnectionLimits(head_seconds=1.0, body_seconds=2.0, body_quiet_seconds=1.0)
FEW = ApiConnectionLimits(max_connections=3, head_seconds=LONG)
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


async def read_it(request: Request) -> Response:
    return PlainTextResponse(f"{len(await request.body())} bytes")


APPLICATION = Starlette(
    routes=[
        Route("/", read_it, methods=["GET", "POST"]),
        Route(HEALTH_PATH, lambda request: PlainTextResponse("ready")),
    ]
)


class Api:
    def __init__(self, port: int, tls: ssl.SSLContext | None) -> None:
        self._port, self._tls = port, tls

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = "localhost" if self._tls else None
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls, server_hostname=name)

    async def half_open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and begin no handshake."""
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self, path: str = "/") -> tuple[int, bytes]:
        return await self.send(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )

    async def send(self, data: bytes) -> tuple[int, bytes]:
        """Send this and no more; return status and body of the answer."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            answer = await received(reader)
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return (int(head.split(b" ")[1]) if head else 0), body


async def received(reader: asyncio.StreamReader) -> bytes:
    """Return everything until the server closes."""
    async with asyncio.timeout(LONG):
        return await reader.read()


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG):
        while not await holds():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def serving(folder: Path, limits: ApiConnectionLimits, *, tls: bool = True) -> AsyncIterator[Api]:
    ensure_certificate(folder, ("localhost",), datetime.datetime.now(datetime.UTC))
    files = CertificateFolder(folder)
    listener = listen("127.0.0.1", 0)
    certificate = CertificateFiles(files.server, files.server_key) if tls else None
    server = HttpServer(APPLICATION, [listener], certificate, limits)
    await server.start()
    try:
        context = ssl.create_default_context(cafile=str(files.authority)) if tls else None
        yield Api(listener.getsockname()[1], context)
    finally:
        await server.stop()


both = pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])


@pytest.fixture(autouse=True)
def long_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open handshakes stay open, however busy the machine is."""
    monkeypatch.setattr(http_server, "HANDSHAKE_SECONDS", 10 * LONG)


@both
async def test_a_head_that_stops_is_refused(tmp_path: Path, tls: bool) -> None:
    async with serving(tmp_path, SHORT, tls=tls) as api:
        status, body = await api.send(HEAD)
        assert (status, json.loads(body)["code"]) == (408, "deadline_exceeded")
        assert (await api.send(b"")) == (0, b""), "a client that sends nothing gets nothing"


@both
async def test_a_body_that_stops_is_refused(tmp_path: Path, tls: bool) -> None:
    async with serving(tmp_path, SHORT, tls=tls) as api:
        status, body = await api.send(HEAD + b"Content-Length: 1000\r\n\r\n{")
        assert (status, json.loads(body)["code"]) == (408, "deadline_exceeded")
        assert "did not arrive within" in json.loads(body)["message"]


async def test_a_head_without_end_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, FEW) as api:
        status, body = await api.send(HEAD + b"x-a: " + b"y" * 2 * MAX_HEAD_BYTES)
        assert (status, json.loads(body)["code"]) == (431, "resource_exhausted")
        assert (await api.send(HEAD + b"Content-Length: 4\r\nConnection: close\r\n\r\nbody"))[1] == b"4 bytes"


async def test_half_open_handshakes_count_and_health_is_told_meanwhile(tmp_path: Path) -> None:
    async with serving(tmp_path, FEW) as api:
        taken = [await api.half_open() for _ in range(FEW.max_connections)]
        status, body = await api.ask()
        assert (status, json.loads(body)["code"]) == (503, "unavailable")
        assert await api.ask(HEALTH_PATH) == (200, b"ready")
        for _, writer in taken:
            writer.close()

        async def is_served() -> bool:
            return (await api.ask())[0] == 200

        await eventually(is_served)


async def test_a_handshake_has_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE_SECONDS", 0.5)
    async with serving(tmp_path, FEW) as api:
        reader, writer = await api.half_open()
        assert await received(reader) == b""
        writer.close()


async def test_the_newest_of_too_many_handshakes_ends_the_oldest(tmp_path: Path) -> None:
    limits = dataclasses.replace(FEW, max_connections=1)
    async with serving(tmp_path, limits) as api:
        half_open = [await api.half_open() for _ in range(SPARE_CONNECTIONS + 2)]
        assert await received(half_open[1][0]) == b""
        for reader, _ in (half_open[0], half_open[2]):
            assert not reader.at_eof()
        for _, writer in half_open:
            writer.close()


async def test_a_server_stops_while_handshakes_are_half_open(tmp_path: Path) -> None:
    async with serving(tmp_path, FEW) as api:
        reader, writer = await api.half_open()
        assert await api.ask(HEALTH_PATH) == (200, b"ready")
    assert await received(reader) == b""
    writer.close()


async def refused_over_tls(
    api: Api, files: CertificateFolder
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a head that stops and read until the server closes TLS; do not close it in turn. Return the
    connection below."""
    reader, writer = await api.half_open()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(files.authority))
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")

    async def run(work: Callable[[], bytes | None]) -> bytes | None:
        while True:
            try:
                return work()
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))

    async with asyncio.timeout(LONG):
        await run(tls.do_handshake)
        tls.write(HEAD)
        with suppress(ssl.SSLZeroReturnError):
            while await run(lambda: tls.read(65536)):
                pass
    return reader, writer


async def until_cut(reader: asyncio.StreamReader, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        with suppress(ConnectionResetError):
            while await reader.read(65536):
                pass


async def test_a_client_that_does_not_close_tls_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asyncio alone would wait for 30 s."""
    monkeypatch.setattr(http_server, "CLOSE_SECONDS", 0.5)
    async with serving(tmp_path, SHORT) as api:
        reader, writer = await refused_over_tls(api, CertificateFolder(tmp_path))
        await until_cut(reader, 25.0)
        writer.close()


async def test_a_client_that_does_not_close_tls_is_cut_when_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CLOSE_SECONDS", 10 * LONG)
    async with serving(tmp_path, SHORT) as api:
        reader, writer = await refused_over_tls(api, CertificateFolder(tmp_path))
    await until_cut(reader, LONG)
    writer.close()


def test_half_open_handshakes_count_in_the_event_loop_of_the_gateway_too(tmp_path: Path) -> None:
    uvloop.run(test_half_open_handshakes_count_and_health_is_told_meanwhile(tmp_path / "first"))
    uvloop.run(test_the_newest_of_too_many_handshakes_ends_the_oldest(tmp_path / "second"))
    uvloop.run(test_a_server_stops_while_handshakes_are_half_open(tmp_path / "third"))
