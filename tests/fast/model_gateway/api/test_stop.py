"""The gateway stops in its drain time, whatever its clients do, and names an unusable certificate."""

import asyncio
import dataclasses
import datetime
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from neocloud.control_plane.gateway_supervisor import DRAIN_SECONDS
from neocloud.data_plane.certificate_files import CertificateFiles, CertificateUnusable
from neocloud.data_plane.process import listen, web_server
from neocloud.model_gateway.api.client_protocol import GatewayProtocol, gateway_connections
from neocloud.model_gateway.settings import GatewaySettings
from neocloud.server import CertificateFolder, ensure_certificate
from neocloud.server.listening import HttpServer, ServerError
from neocloud.server.listening import listen as listen_for_api

SOON_SECONDS = 25.0
"""Less than the 30 s for which asyncio waits for the end of a TLS connection."""
APPLICATION = Starlette(routes=[Route("/", lambda request: PlainTextResponse("done"))])


@pytest.fixture
def settings(tmp_path: Path) -> GatewaySettings:
    ensure_certificate(tmp_path / "tls", ("localhost", "127.0.0.1"), datetime.datetime.now(datetime.UTC))
    files = CertificateFolder(tmp_path / "tls")
    return GatewaySettings(
        home=tmp_path, api="127.0.0.1:1", tls_certificate=files.server, tls_key=files.server_key
    )


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket() as plain:
        plain.settimeout(60)
        yield plain


def call(client: socket.socket, address: tuple[str, int], authority: Path) -> ssl.SSLSocket:
    """Make a call and keep the connection, as clients with a pool do."""
    client.connect(address)
    tls = ssl.create_default_context(cafile=str(authority)).wrap_socket(client, server_hostname="localhost")
    tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b"done"):
        answer += tls.recv(1000)
    return tls


async def test_an_idle_tls_client_does_not_delay_the_stop(
    settings: GatewaySettings, client: socket.socket
) -> None:
    settings = dataclasses.replace(settings, drain_seconds=600)
    running = web_server(APPLICATION, GatewayProtocol, settings, gateway_connections(settings), tls=True)
    listener = listen("127.0.0.1", 0, settings.write_seconds)
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    authority = CertificateFolder(settings.home / "tls").authority
    tls = await asyncio.to_thread(call, client, listener.getsockname(), authority)
    running.end()
    async with asyncio.timeout(SOON_SECONDS):
        await serving
    tls.close()


def test_the_ledger_is_closed_before_the_supervisor_kills_the_gateway() -> None:
    assert GatewaySettings.drain_seconds + 3 < DRAIN_SECONDS


def make_unusable(settings: GatewaySettings) -> str:
    assert settings.tls_certificate is not None
    settings.tls_certificate.write_text("no certificate")
    return str(settings.tls_certificate)


def test_an_unusable_certificate_is_named_by_the_gateway(settings: GatewaySettings) -> None:
    with pytest.raises(CertificateUnusable, match=make_unusable(settings)):
        web_server(APPLICATION, GatewayProtocol, settings, gateway_connections(settings), tls=True)


async def test_an_unusable_certificate_is_named_by_the_api(settings: GatewaySettings) -> None:
    files = CertificateFiles(settings.tls_certificate, settings.tls_key)  # type: ignore[arg-type]
    path = make_unusable(settings)
    listener = listen_for_api("127.0.0.1", 0)
    with pytest.raises(ServerError, match=path):
        HttpServer(APPLICATION, [listener], files)
    listener.close()
