"""Limits of a gRPC connection: pings as the published clients send them pass, and a flood of them ends it; so
does a handshake without end, and one connection too many.
"""

import asyncio
import datetime
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from neocloud.server import ensure_certificate, grpc_server

INTERVAL_MS = 100
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _PING, _GOAWAY = 4, 6, 7
_ACK = 1


class _NoMethods:
    paths: frozenset[str] = frozenset()


def _frame(kind: int, flags: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + bytes(4) + body


class _Http2:
    """The part of HTTP/2 that pings need."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        writer.write(_PREFACE + _frame(_SETTINGS))

    async def ping(self) -> int:
        """The kind of the frame that answers: PING, or GOAWAY when the connection ends."""
        self._writer.write(_frame(_PING, body=bytes(8)))
        async with asyncio.timeout(30):
            while True:
                head = await self._reader.readexactly(9)
                await self._reader.readexactly(int.from_bytes(head[:3]))
                if head[3] == _GOAWAY or (head[3] == _PING and head[4] & _ACK):
                    return head[3]

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def connection(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Http2]:
    """To a server with our settings that allows a ping every 100 ms."""
    monkeypatch.setattr(grpc_server, "PING_INTERVAL_MS", INTERVAL_MS)
    async with serving() as connection:
        yield connection


@asynccontextmanager
async def serving() -> AsyncIterator[_Http2]:
    server = grpc.aio.server(options=grpc_server.options(_NoMethods()))  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection = _Http2(*await asyncio.open_connection("127.0.0.1", port))
    yield connection
    connection.close()
    await server.stop(0)


async def test_pings_of_an_idle_client_pass(connection: _Http2) -> None:
    for _ in range(3 * grpc_server.MAX_PING_STRIKES + 3):
        assert await connection.ping() == _PING
        await asyncio.sleep(2 * INTERVAL_MS / 1000)  # the client's own interval


async def test_a_flood_of_pings_ends_its_connection(connection: _Http2) -> None:
    answers = [await connection.ping()]
    while answers[-1] == _PING and len(answers) < 100:
        answers.append(await connection.ping())
    assert answers[-1] == _GOAWAY


async def test_a_connection_without_a_call_ends_although_it_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "PING_INTERVAL_MS", INTERVAL_MS)
    monkeypatch.setattr(grpc_server, "MAX_IDLE_MS", 1000)
    async with serving() as client:
        answer = await client.ping()
        async with asyncio.timeout(60):
            while answer == _PING:
                await asyncio.sleep(5 * INTERVAL_MS / 1000)  # too early a ping ends it too
                answer = await client.ping()
        assert answer == _GOAWAY


@pytest.mark.parametrize(("name", "value", "clients"), [("HANDSHAKE_MS", 300, 1), ("MAX_CONNECTIONS", 2, 3)])
async def test_a_half_open_handshake_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: int, clients: int
) -> None:
    """It ends by its time, or because others have taken all connections."""
    monkeypatch.setattr(grpc_server, "HANDSHAKE_MS", 600_000)
    monkeypatch.setattr(grpc_server, name, value)
    certificate = ensure_certificate(tmp_path, ("localhost",), datetime.datetime.now(datetime.UTC))
    server = grpc.aio.server(options=grpc_server.options(_NoMethods()))  # type: ignore[arg-type]
    credentials = grpc.ssl_server_credentials([(certificate.key, certificate.chain)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(clients)]
    async with asyncio.timeout(60):
        assert await opened[-1][0].read() == b""
    assert not any(reader.at_eof() for reader, _ in opened[:-1])
    for _, writer in opened:
        writer.close()
    await server.stop(0)
