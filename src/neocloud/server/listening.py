"""Bind the ports of the API, and run its HTTP side on them."""

import asyncio
import errno
import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import uvicorn
from starlette.applications import Starlette

from neocloud.core import contract
from neocloud.data_plane.certificate_files import CertificateFiles, CertificateUnusable
from neocloud.data_plane.http.connections import (
    Answer,
    ClientConnections,
    ConnectionLimits,
    Refusal,
)
from neocloud.data_plane.http.protocol import ClientProtocol
from neocloud.data_plane.http.server import WebServer

LOOPBACK = "127.0.0.1"
EVERY_ADDRESS = "all"
"""Stands for every address of this host, IPv4 and IPv6."""
HEALTH_PATH = "/healthz"
ANY_PORT_ATTEMPTS = 8
"""How often any free port is chosen when it is taken on another of the addresses."""


class ServerError(Exception):
    """The server cannot start; the message says what to do next."""


class AddressMissing(ServerError):
    """This host does not have an address on which it is to listen."""


KEEP_ALIVE_SECONDS = 5
"""Time that an idle connection stays open after a request."""
WRITE_SECONDS = 60
"""A client that accepts no data for so long is disconnected."""


@dataclass(frozen=True)
class ApiConnectionLimits:
    """Limits on connections to one side of the JSON API: this machine, or the others."""

    max_connections: int = 1024
    max_address_connections: int = 256
    head_seconds: float = 15.0
    body_seconds: float = 60.0
    body_quiet_seconds: float = 30.0


class HttpServer:
    """Serves an application on bound sockets, over TLS when there are files of a certificate."""

    def __init__(
        self,
        application: Starlette,
        listeners: Sequence[socket.socket],
        certificate: CertificateFiles | None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Raises ServerError when the certificate cannot be used."""
        self._connections = ClientConnections(limits or ApiConnectionLimits(), HEALTH_PATH, _answer)
        config = uvicorn.Config(
            application,
            http=partial(ClientProtocol, self._connections),  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            # A proxy on this machine may name its client; anybody beyond it could name anybody.
            proxy_headers=certificate is None,
        )
        try:
            self._server = WebServer(config, certificate)
        except CertificateUnusable as error:
            raise ServerError(str(error)) from error
        self._listeners = list(listeners)
        self._task: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ServerError."""
        serving = asyncio.create_task(self._server.serve(sockets=self._listeners))
        listening = asyncio.create_task(self._server.is_listening.wait())
        await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            raise ServerError(f"The HTTP side of the API ended as it started: {serving.exception()}")
        self._task = serving
        self._checking = asyncio.create_task(self._connections.check_periodically())

    async def stop(self) -> None:
        self._server.end()
        if self._task is not None:
            await self._task
        if self._checking is not None:
            self._checking.cancel()
        close_all(self._listeners)


_CODES = {
    400: contract.Code.INVALID_ARGUMENT,
    408: contract.Code.DEADLINE_EXCEEDED,
    431: contract.Code.RESOURCE_EXHAUSTED,
    503: contract.Code.UNAVAILABLE,
}


def _answer(refusal: Refusal) -> Answer:
    """Return a refusal as the JSON API writes errors."""
    headers = {"content-type": "application/json"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    content = {"code": _CODES[refusal.status].name.lower(), "message": refusal.message}
    return headers, json.dumps(content).encode()


def listen_on(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Return listening sockets of all addresses on one port; 0: any free port. Raises ServerError.

    A port that is free on the first address may be taken on the next: others are tried.
    """
    hosts = expanded(addresses)
    for _ in range(ANY_PORT_ATTEMPTS - 1 if not port else 0):
        with suppress(ServerError):
            return _listen_on(hosts, port)
    return _listen_on(hosts, port)


def _listen_on(hosts: Sequence[str], port: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for host in hosts:
            listeners.append(listen(host, port))
            port = port or listeners[0].getsockname()[1]
    except ServerError:
        close_all(listeners)
        raise
    return listeners


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ServerError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Connections inherit it. Without, the end of each answer waits 40 ms for the client's kernel.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, WRITE_SECONDS * 1000)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise not_bound(host, port, error) from None
    listener.setblocking(False)
    return listener


def close_all(listeners: Sequence[socket.socket]) -> None:
    for each in listeners:
        each.close()


def host_and_port(host: str, port: int) -> str:
    """Return "192.0.2.7:7372", or "[2001:db8::7]:7372"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def has_ipv6() -> bool:
    """Return whether this host has IPv6 at all; its kernel may be without."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def not_bound(host: str, port: int, error: OSError | None = None) -> ServerError:
    """Return the error of a port that cannot be used, or of an address that this host does not have."""
    if error is not None and error.errno == errno.EADDRNOTAVAIL:
        return AddressMissing(
            f"This host has no address {host}. Choose one that `ip address` shows: neo up --listen ADDRESS."
        )
    return ServerError(
        f"Port {port} on {host} is taken or may not be used. "
        "Stop what listens there, or choose another port (0 takes any that is free)."
    )


def expanded(addresses: Sequence[str]) -> list[str]:
    """Return the addresses to bind: for "all", the one of each family that stands for every address."""
    if EVERY_ADDRESS not in addresses:
        return list(addresses)
    return ["0.0.0.0", "::"] if has_ipv6() else ["0.0.0.0"]  # asked for by the operator  # nosec B104
