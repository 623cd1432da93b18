# pyright: strict
"""What the processes of both gateways have in common: their sockets, servers, options and end.

The model gateway and the object gateway each serve one application on loopback and, where the cloud listens
to other machines, over TLS. The control plane starts them, and they outlive its restarts.
"""

import argparse
import asyncio
import gc
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvicorn

from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.data_plane.http.connections import ClientConnections
from neocloud.data_plane.http.protocol import ClientProtocol
from neocloud.data_plane.http.server import WebServer

BACKLOG = 2048
COLLECT_AFTER = 20_000
"""Allocated objects between garbage collections. Requests leave hardly any cycles behind."""


_IP_FREEBIND = 15
"""Of Linux; Python has no name for it."""


def allow_later_address(listener: socket.socket) -> None:
    """Have the socket bound to an IPv4 address that this machine does not have yet, or loses meanwhile."""
    listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)


class GatewayProcessSettings(Protocol):
    """The settings that both gateways have."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def tls_hosts(self) -> tuple[str, ...]: ...
    @property
    def tls_port(self) -> int: ...
    @property
    def tls_certificate(self) -> Path | None: ...
    @property
    def tls_key(self) -> Path | None: ...
    @property
    def keep_alive_seconds(self) -> int: ...
    @property
    def write_seconds(self) -> float: ...
    @property
    def drain_seconds(self) -> float: ...


def listen(host: str, port: int, write_seconds: float, *, is_added_later: bool = False) -> socket.socket:
    """Return a listening socket; the machine may get the address later. Raises OSError.

    Each connection inherits that the kernel closes it when its client accepts no data for `write_seconds`.
    Until then the response is held back, and so is whatever makes it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(write_seconds * 1000))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if is_added_later:
        allow_later_address(listener)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def listen_over_tls(settings: GatewayProcessSettings) -> list[socket.socket]:
    """Return the sockets that other machines reach. Raises OSError."""
    return [listen(host, settings.tls_port, settings.write_seconds) for host in settings.tls_hosts]


def web_server(
    app: Any,
    protocol: type[ClientProtocol],
    settings: GatewayProcessSettings,
    connections: ClientConnections,
    *,
    tls: bool = False,
    certificate: CertificateFiles | None = None,
) -> WebServer:
    """Return a server of an ASGI application; with `tls` its certificate is that of the settings, unless
    another one is given. Raises CertificateUnusable."""
    config = uvicorn.Config(
        app,
        http=partial(protocol, connections),  # type: ignore[arg-type]
        loop="none",  # the running one
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )
    if tls and certificate is None:
        assert settings.tls_certificate and settings.tls_key, "read_options requires both."
        certificate = CertificateFiles(settings.tls_certificate, settings.tls_key)
    return WebServer(config, certificate)


@dataclass(frozen=True)
class Served:
    """One more server, with limits of its own."""

    server: WebServer
    listeners: list[socket.socket]
    connections: ClientConnections


async def serve_until_signalled(
    app: Any,
    protocol: type[ClientProtocol],
    settings: GatewayProcessSettings,
    connections: ClientConnections,
    listener: socket.socket,
    tls_listeners: list[socket.socket],
    more: Sequence[Served] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, and let responses in progress finish. Raises CertificateUnusable."""
    # Objects that exist now stay: the garbage collector need not visit them again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)
    servers, sockets = [web_server(app, protocol, settings, connections)], [[listener]]
    if tls_listeners:
        servers.append(web_server(app, protocol, settings, connections, tls=True))
        sockets.append(tls_listeners)
    servers += [each.server for each in more]
    sockets += [each.listeners for each in more]
    _stop_on_signals(servers)
    counted = (connections, *(each.connections for each in more))
    checking = [asyncio.create_task(each.check_periodically()) for each in counted]
    await asyncio.gather(*(each.serve(sockets=own) for each, own in zip(servers, sockets, strict=True)))
    for each in checking:
        each.cancel()


def _stop_on_signals(servers: Sequence[WebServer]) -> None:
    def stop(number: signal.Signals) -> None:
        for each in servers:
            each.handle_exit(number, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def add_options(
    parser: argparse.ArgumentParser,
    settings: type[GatewayProcessSettings],
    numbers: Sequence[str],
    default_port: int,
) -> None:
    """Add the options of both gateways. `numbers` names settings that are options of the same name."""
    parser.add_argument("--home", type=Path, required=True, help="state folder of the cloud")
    parser.add_argument("--api", required=True, help="address of the gRPC API, for example 127.0.0.1:7370")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=default_port, help="0: any free port")
    parser.add_argument("--tls-host", dest="tls_hosts", action="append", default=[], help="may be repeated")
    parser.add_argument("--tls-port", type=int, default=0)
    parser.add_argument("--tls-certificate", type=Path, help="PEM file")
    parser.add_argument("--tls-key", type=Path, help="PEM file")
    for name in numbers:
        default: int | float = getattr(settings, name)
        number = int if isinstance(default, int) else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=number, default=default)
    parser.add_argument("--log-level", choices=("debug", "info", "warning"), default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")


def read_options(parser: argparse.ArgumentParser, arguments: list[str] | None) -> dict[str, Any]:
    """Return the values by the names of settings; ends the process where an option is missing."""
    values: dict[str, Any] = vars(parser.parse_args(arguments))
    values["tls_hosts"] = tuple[str, ...](values["tls_hosts"])
    if values["tls_hosts"] and not (values["tls_port"] and values["tls_certificate"] and values["tls_key"]):
        parser.error("--tls-host needs --tls-port, --tls-certificate and --tls-key")
    return values
