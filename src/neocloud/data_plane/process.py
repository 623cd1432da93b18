"""The common parts of both gateways' processes: their sockets, servers, options and end.

The model gateway and the object gateway each serve one application on loopback and, where the cloud listens
to other machines, over TLS. The control plane starts them, and they outlive its restarts.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from neocloud.core.logs import set_up_logging
from neocloud.data_plane.certificate_files import CertificateFiles, CertificateUnusable
from neocloud.data_plane.http.connections import ClientConnections
from neocloud.data_plane.http.protocol import ClientProtocol
from neocloud.data_plane.http.server import WebServer
from neocloud.data_plane.settings import NUMBERS, DataPlaneSettings

logger = logging.getLogger(__name__)
BACKLOG = 2048
COLLECT_AFTER = 20_000
"""Allocated objects between garbage collections. Requests leave hardly any cycles behind."""


_IP_FREEBIND = 15
"""Constant of Linux; Python has no name for it."""


def allow_later_address(listener: socket.socket) -> None:
    """Have the socket bound to an IPv4 address that this machine does not have yet, or loses meanwhile."""
    listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)


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


def listen_over_tls(settings: DataPlaneSettings) -> list[socket.socket]:
    """Return the sockets that other machines reach. Raises OSError."""
    return [listen(host, settings.tls_port, settings.write_seconds) for host in settings.tls_hosts]


def web_server(
    app: Any,
    protocol: type[ClientProtocol],
    settings: DataPlaneSettings,
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
    settings: DataPlaneSettings,
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
    parser: argparse.ArgumentParser, settings: type[DataPlaneSettings], numbers: Sequence[str]
) -> None:
    """Add the options of both gateways. `numbers` names more settings that are options of the same
    name."""
    parser.add_argument("--home", type=Path, required=True, help="state folder of the cloud")
    parser.add_argument("--api", required=True, help="address of the gRPC API, for example 127.0.0.1:7370")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=settings.port, help="0: any free port")
    parser.add_argument("--tls-host", dest="tls_hosts", action="append", default=[], help="may be repeated")
    parser.add_argument("--tls-port", type=int, default=0)
    parser.add_argument("--tls-certificate", type=Path, help="PEM file")
    parser.add_argument("--tls-key", type=Path, help="PEM file")
    for name in (*NUMBERS, *numbers):
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


def log_addresses(
    what: str, settings: DataPlaneSettings, listener: socket.socket, tls_listeners: list[socket.socket]
) -> None:
    host, port = listener.getsockname()[:2]
    logger.info("Serving %s on %s:%d, control plane at %s", what, host, port, settings.api)
    if tls_listeners:
        where = ", ".join(settings.tls_hosts)
        logger.info("Serving %s over TLS on %s, port %d", what, where, settings.tls_port)


def run_gateway(
    name: str,
    settings: DataPlaneSettings,
    serving: Coroutine[object, None, None],
    unusable: tuple[type[Exception], ...],
) -> None:
    """Serve, and end the process. `unusable` are errors of a state with which the gateway cannot start."""
    os.umask(0o077)
    set_up_logging(settings.log_level, settings.log_format)
    try:
        uvloop.run(serving)
    except (*unusable, CertificateUnusable) as error:
        sys.exit(f"The {name} cannot start: {error}")
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        sys.exit(f"The {name} cannot serve on {where}: {error.strerror or error}")
    logger.info("Stopped")
