# pyright: strict
"""Run the object gateway: `python -m neocloud.objects`. The control plane starts it; it outlives restarts of
the control plane."""

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
from neocloud.core.client_protocol import ClientProtocol
from neocloud.core.clock import SystemClock
from neocloud.core.logs import set_up_logging
from neocloud.core.web_server import WebServer
from neocloud.objects.composition import load_or_make_store_key, running_objects
from neocloud.objects.control_plane import GrpcControlPlane
from neocloud.objects.errors import ObjectStoreError
from neocloud.objects.gateway import Gateway
from neocloud.objects.s3.protocol import s3_connections
from neocloud.objects.scan.advisories import provided_file
from neocloud.objects.settings import ObjectsSettings
from neocloud.objects.transfers.runner import TransferNetwork

BACKLOG = 2048
COLLECT_AFTER = 20_000
"""Allocated objects between garbage collections. Requests leave hardly any cycles behind."""
NUMBERS = (
    *("max_connections", "max_address_connections", "head_seconds", "body_seconds", "body_quiet_seconds"),
    *("keep_alive_seconds", "write_seconds", "drain_seconds", "requests_per_second"),
    *("stale_seconds", "down_seconds", "scrub_bytes_per_second"),
)
"""Settings that are options of the same name."""
logger = logging.getLogger("neocloud.objects")


def listen(host: str, port: int, write_seconds: float) -> socket.socket:
    """Bind a port. The kernel ends connections whose client accepts no data for `write_seconds`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(write_seconds * 1000))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def server(
    app: Gateway, settings: ObjectsSettings, connections: ClientConnections, *, tls: bool = False
) -> WebServer:
    config = uvicorn.Config(
        app,
        http=partial(ClientProtocol, connections),  # type: ignore[arg-type]
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


def stop_on_signals(servers: Sequence[WebServer]) -> None:
    def stop(number: signal.Signals) -> None:
        for each in servers:
            each.handle_exit(number, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


async def serve(settings: ObjectsSettings) -> None:
    clock = SystemClock()
    listener = listen(settings.host, settings.port, settings.write_seconds)
    tls_listeners = [listen(host, settings.tls_port, settings.write_seconds) for host in settings.tls_hosts]
    host, port = listener.getsockname()[:2]
    key = load_or_make_store_key(settings.store_key_file)
    control_plane = GrpcControlPlane(settings.api, settings.key_file)
    endpoint = f"{host}:{port}"
    tls_port = settings.tls_port if tls_listeners else 0
    try:
        async with running_objects(
            *(settings.folder, key, control_plane, clock, settings.s3, endpoint),
            tls_port=tls_port,
            scrub_bytes_per_second=settings.scrub_bytes_per_second,
            advisory_file=provided_file(settings.home),
            transfers=TransferNetwork(endpoint, settings.region, settings.allow_private_transfers),
        ) as app:
            gc.collect()
            gc.freeze()
            gc.set_threshold(COLLECT_AFTER, 20, 50)
            logger.info("Serving S3 and images on %s, control plane at %s", endpoint, settings.api)
            connections = s3_connections(settings)
            servers, sockets = [server(app, settings, connections)], [[listener]]
            if tls_listeners:
                servers.append(server(app, settings, connections, tls=True))
                sockets.append(tls_listeners)
                where = ", ".join(settings.tls_hosts)
                logger.info("Serving S3 and images over TLS on %s, port %d", where, settings.tls_port)
            stop_on_signals(servers)
            checking = asyncio.create_task(connections.check_periodically())
            await asyncio.gather(
                *(each.serve(sockets=own) for each, own in zip(servers, sockets, strict=True))
            )
            checking.cancel()
    finally:
        await control_plane.close()
        logger.info("Stopped")


def settings_of(arguments: list[str] | None = None) -> ObjectsSettings:
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.objects", description="Serve S3 and container images."
    )
    parser.add_argument("--home", type=Path, required=True, help="state folder of the cloud")
    parser.add_argument("--api", required=True, help="address of the gRPC API, for example 127.0.0.1:7370")
    parser.add_argument("--host", default=ObjectsSettings.host)
    parser.add_argument("--port", type=int, default=ObjectsSettings.port, help="0: any free port")
    parser.add_argument("--tls-host", dest="tls_hosts", action="append", default=[], help="may be repeated")
    parser.add_argument("--tls-port", type=int, default=0)
    parser.add_argument("--tls-certificate", type=Path, help="PEM file")
    parser.add_argument("--tls-key", type=Path, help="PEM file")
    parser.add_argument("--region", default=ObjectsSettings.region)
    parser.add_argument(
        "--domain",
        dest="domains",
        action="append",
        default=[],
        help="name below which buckets are named by the host, beside localhost; may be repeated",
    )
    parser.add_argument("--allow-private-transfers", action="store_true")
    for name in NUMBERS:
        default: int | float = getattr(ObjectsSettings, name)
        number = int if isinstance(default, int) else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=number, default=default)
    parser.add_argument("--log-level", choices=("debug", "info", "warning"), default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    values: dict[str, Any] = vars(parser.parse_args(arguments))
    tls_hosts = tuple[str, ...](values.pop("tls_hosts"))
    domains = (*ObjectsSettings.domains, *(each.lower() for each in values.pop("domains")))
    if tls_hosts and not (values["tls_port"] and values["tls_certificate"] and values["tls_key"]):
        parser.error("--tls-host needs --tls-port, --tls-certificate and --tls-key")
    return ObjectsSettings(**values, tls_hosts=tls_hosts, domains=domains)


def main() -> None:
    os.umask(0o077)
    settings = settings_of()
    set_up_logging(settings.log_level, settings.log_format)
    try:
        uvloop.run(serve(settings))
    except (ObjectStoreError, CertificateUnusable) as error:
        sys.exit(f"The object gateway cannot start: {error}")
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        sys.exit(f"The object gateway cannot serve on {where}: {error.strerror or error}")


if __name__ == "__main__":
    main()
