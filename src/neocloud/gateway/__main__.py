# pyright: strict
"""Run the gateway: `python -m neocloud.gateway`. The control plane starts it; it outlives restarts of the
control plane."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from neocloud.core.certificate_files import CertificateFiles, CertificateUnusable
from neocloud.core.client_connections import ClientConnections
from neocloud.core.clock import SystemClock
from neocloud.core.logs import set_up_logging
from neocloud.core.web_server import WebServer
from neocloud.gateway.api.app import GatewayApp
from neocloud.gateway.api.client_protocol import GatewayProtocol, gateway_connections
from neocloud.gateway.composition import Gateway
from neocloud.gateway.control_plane import GrpcControlPlane
from neocloud.gateway.metering.ledger import open_ledger
from neocloud.gateway.metering.ledger_tables import LedgerError
from neocloud.gateway.settings import DEFAULT_PORT, GatewaySettings

BACKLOG = 2048


def listen(host: str, port: int, settings: GatewaySettings) -> socket.socket:
    """Bind the port before anything else is done, so that two gateways cannot compete for it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    # Inherited by each connection: the kernel closes those whose client accepts no data for so long. Until
    # then the response is held back, and so is the model server.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.write_seconds * 1000))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def stop_on_signals(servers: Sequence[WebServer]) -> None:
    def stop(number: signal.Signals) -> None:
        for each in servers:
            each.handle_exit(number, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def server(
    app: GatewayApp, settings: GatewaySettings, connections: ClientConnections, *, tls: bool = False
) -> WebServer:
    config = uvicorn.Config(
        app,
        http=partial(GatewayProtocol, connections),  # type: ignore[arg-type]
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
    certificate = None
    if tls:
        assert settings.tls_certificate and settings.tls_key, "settings_of requires both."
        certificate = CertificateFiles(settings.tls_certificate, settings.tls_key)
    return WebServer(config, certificate)


logger = logging.getLogger("neocloud.gateway")

SWITCH_SECONDS = 0.0005
"""Switch interval of Python threads. With the default of 5 ms, requests would wait for the thread of the
ledger."""
NUMBERS = (
    *("max_subject_requests", "max_requests", "max_subject_bytes", "max_bytes"),
    *("max_connections", "max_address_connections"),
    *("head_seconds", "body_seconds", "body_quiet_seconds", "keep_alive_seconds"),
    *("silence_seconds", "write_seconds", "drain_seconds", "admit_seconds", "renew_seconds"),
)
"""Settings that are options of the same name."""
COLLECT_AFTER = 20_000
"""Allocated objects between garbage collections. Requests leave hardly any cycles behind."""


async def serve(settings: GatewaySettings) -> None:
    clock = SystemClock()
    settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    listener = listen(settings.host, settings.port, settings)
    tls_listeners = [listen(host, settings.tls_port, settings) for host in settings.tls_hosts]
    ledger = open_ledger(settings.folder / "ledger.db", clock)
    control_plane = GrpcControlPlane(settings.api, settings.key_file)
    gateway = Gateway(settings, control_plane, ledger, clock)
    try:
        async with gateway.running():
            # Objects that exist now stay: the garbage collector need not visit them again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(COLLECT_AFTER, 20, 50)
            host, port = listener.getsockname()[:2]
            logger.info("Serving on %s:%d, control plane at %s", host, port, settings.api)
            connections = gateway_connections(settings)
            servers = [server(gateway.app, settings, connections)]
            sockets = [[listener]]
            if tls_listeners:
                servers.append(server(gateway.app, settings, connections, tls=True))
                sockets.append(tls_listeners)
                where = ", ".join(settings.tls_hosts)
                logger.info("Serving over TLS on %s, port %d", where, settings.tls_port)
            stop_on_signals(servers)
            checking = asyncio.create_task(connections.check_periodically())
            await asyncio.gather(
                *(each.serve(sockets=own) for each, own in zip(servers, sockets, strict=True))
            )
            checking.cancel()
    finally:
        await control_plane.close()
        ledger.close()
        logger.info("Stopped")


def settings_of(arguments: list[str] | None = None) -> GatewaySettings:
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.gateway", description="Serve models over the OpenAI API."
    )
    parser.add_argument("--home", type=Path, required=True, help="state folder of the cloud")
    parser.add_argument(
        "--api",
        required=True,
        help="address of the gRPC API of the control plane, for example 127.0.0.1:7370",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0: any free port")
    parser.add_argument("--tls-host", dest="tls_hosts", action="append", default=[], help="may be repeated")
    parser.add_argument("--tls-port", type=int, default=0)
    parser.add_argument("--tls-certificate", type=Path, help="PEM file")
    parser.add_argument("--tls-key", type=Path, help="PEM file")
    parser.add_argument("--max-body-bytes", type=int, default=GatewaySettings.max_body_bytes)
    rate = GatewaySettings.requests_per_second
    parser.add_argument("--requests-per-second", type=float, default=rate, help="per subject; 0: no limit")
    for name in NUMBERS:
        default: int | float = getattr(GatewaySettings, name)
        number = int if isinstance(default, int) else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=number, default=default)
    parser.add_argument("--known-host", dest="hosts", action="append", default=[], help="may be repeated")
    parser.add_argument(
        "--media-domain", dest="media_domains", action="append", default=[], help="may be repeated"
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning"), default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    values: dict[str, Any] = vars(parser.parse_args(arguments))
    hosts, media_domains = tuple[str, ...](values.pop("hosts")), frozenset[str](values.pop("media_domains"))
    tls_hosts = tuple[str, ...](values.pop("tls_hosts"))
    if tls_hosts and not (values["tls_port"] and values["tls_certificate"] and values["tls_key"]):
        parser.error("--tls-host needs --tls-port, --tls-certificate and --tls-key")
    return GatewaySettings(**values, hosts=hosts, media_domains=media_domains, tls_hosts=tls_hosts)


def main() -> None:
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = settings_of()
    set_up_logging(settings.log_level, settings.log_format)
    try:
        uvloop.run(serve(settings))
    except (LedgerError, CertificateUnusable) as error:
        sys.exit(f"The gateway cannot start: {error}")
    except OSError as error:
        sys.exit(f"The gateway cannot serve on {settings.host}:{settings.port}: {error.strerror or error}")


if __name__ == "__main__":
    main()
