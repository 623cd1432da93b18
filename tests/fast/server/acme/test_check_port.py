"""The port on which an authority checks the names: it answers one path, and outsiders do not hold it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from neocloud.control_plane.public_certificate import http_check
from tests.acme_authority import Authority
from tests.fast.server.acme.conftest import (
    LONG,
    Cloud,
    listening_beside,
)


@asynccontextmanager
async def checked_port(check: socket.socket) -> AsyncIterator[int]:
    async with http_check.answering(
        [listening_beside(check)], {"/.well-known/acme-challenge/token": "token.print"}
    ):
        yield check.getsockname()[1]


async def said(port: int, sent: bytes) -> bytes:
    async with asyncio.timeout(LONG):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /.well-known/acme-challenge/token HTTP/1.1", b"200"),
        ("GET /.well-known/acme-challenge/other HTTP/1.1", b"404"),
        ("GET /.well-known/acme-challenge/../acme-challenge/token HTTP/1.1", b"404"),
        ("GET /.well-known/acme-challenge/token?x HTTP/1.1", b"404"),
        ("GET /.well-known/acme-challenge/ HTTP/1.1", b"404"),
        ("GET / HTTP/1.1", b"404"),
        ("GET /healthz HTTP/1.1", b"404"),
        ("POST /.well-known/acme-challenge/token HTTP/1.1", b"404"),
        ("CONNECT cloud:443 HTTP/1.1", b"404"),
        ("\x16\x03\x01", b"404"),
        ("", b"404"),
        ("GET", b"404"),
    ],
)
async def test_the_port_of_the_check_answers_one_path(
    check: socket.socket, request_line: str, status: bytes
) -> None:
    async with checked_port(check) as port:
        answer = await said(port, f"{request_line}\r\nHost: evil.test\r\n\r\n".encode("latin-1"))
    assert answer.split()[1] == status
    body = answer.partition(b"\r\n\r\n")[2]
    assert body == (b"token.print" if status == b"200" else b"")


async def test_the_port_of_the_check_is_not_held_by_outsiders(
    check: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_check, "CHECK_SECONDS", 0.3)
    async with checked_port(check) as port:
        assert await said(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000) == b""
        assert await said(port, b"GET / HT") == b"", "it is closed when the time is over"
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(http_check.MAX_CHECKS + 5)]
        async with asyncio.timeout(LONG):
            for reader, _ in idle:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        monkeypatch.setattr(http_check, "CHECK_SECONDS", LONG)
        found = await said(port, b"GET /.well-known/acme-challenge/token HTTP/1.1\r\n\r\n")
        assert found.endswith(b"token.print")
        for _, writer in idle:
            writer.close()


async def test_outsiders_who_hold_all_connections_do_not_keep_the_authority_out(
    check: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_check, "CHECK_SECONDS", LONG)
    async with checked_port(check) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(http_check.MAX_CHECKS)]
        found = await said(port, b"GET /.well-known/acme-challenge/token HTTP/1.1\r\n\r\n")
        assert found.endswith(b"token.print")
        for _, writer in idle:
            writer.close()


async def test_an_outsider_who_stays_until_the_end_leaves_no_traceback(
    check: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(LONG):
        async with checked_port(check) as port:
            assert b"404" in await said(port, b"GET / HTTP/1.1\r\n\r\n")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await said(port, b"GET / HTTP/1.1\r\n\r\n")  # accepted after the outsider
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_the_port_of_the_check_is_closed_after_an_order(
    cloud: Cloud, authority: Authority, check: socket.socket
) -> None:
    seen = []

    async def look(request: web.Request) -> None:
        if request.path.startswith("/finalize"):
            seen.append(await said(check.getsockname()[1], b"GET / HTTP/1.1\r\n\r\n"))

    authority.before = look
    await cloud.order()
    assert seen and b"404" in seen[0], "it is open during the order"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*check.getsockname())
