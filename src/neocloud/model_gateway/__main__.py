# pyright: strict
"""Run the gateway: `python -m neocloud.model_gateway`. The control plane starts it; it outlives restarts of
the control plane."""

import argparse
import logging
import os
import sys

import uvloop

from neocloud.core.certificate_files import CertificateUnusable
from neocloud.core.clock import SystemClock
from neocloud.core.gateway_process import (
    add_options,
    listen,
    listen_over_tls,
    read_options,
    serve_until_signalled,
)
from neocloud.core.logs import set_up_logging
from neocloud.model_gateway.api.client_protocol import GatewayProtocol, gateway_connections
from neocloud.model_gateway.composition import Gateway
from neocloud.model_gateway.control_plane import GrpcControlPlane
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import LedgerError
from neocloud.model_gateway.settings import DEFAULT_PORT, GatewaySettings

SWITCH_SECONDS = 0.0005
"""Switch interval of Python threads. With the default of 5 ms, requests would wait for the thread of the
ledger."""
NUMBERS = (
    *("max_subject_requests", "max_requests", "max_subject_bytes", "max_bytes", "max_body_bytes"),
    *("max_connections", "max_address_connections"),
    *("head_seconds", "body_seconds", "body_quiet_seconds", "keep_alive_seconds"),
    *("silence_seconds", "write_seconds", "drain_seconds", "admit_seconds", "renew_seconds"),
)
"""Settings that are options of the same name."""
logger = logging.getLogger("neocloud.model_gateway")


async def serve(settings: GatewaySettings) -> None:
    clock = SystemClock()
    settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Bound before anything else is done, so that two gateways cannot compete for the port.
    listener = listen(settings.host, settings.port, settings.write_seconds)
    tls_listeners = listen_over_tls(settings)
    ledger = open_ledger(settings.folder / "ledger.db", clock)
    control_plane = GrpcControlPlane(settings.api, settings.key_file)
    gateway = Gateway(settings, control_plane, ledger, clock)
    try:
        async with gateway.running():
            host, port = listener.getsockname()[:2]
            logger.info("Serving on %s:%d, control plane at %s", host, port, settings.api)
            if tls_listeners:
                where = ", ".join(settings.tls_hosts)
                logger.info("Serving over TLS on %s, port %d", where, settings.tls_port)
            connections = gateway_connections(settings)
            await serve_until_signalled(
                gateway.app, GatewayProtocol, settings, connections, listener, tls_listeners
            )
    finally:
        await control_plane.close()
        ledger.close()
        logger.info("Stopped")


def settings_of(arguments: list[str] | None = None) -> GatewaySettings:
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.model_gateway", description="Serve models over the OpenAI API."
    )
    add_options(parser, GatewaySettings, NUMBERS, DEFAULT_PORT)
    rate = GatewaySettings.requests_per_second
    parser.add_argument("--requests-per-second", type=float, default=rate, help="per subject; 0: no limit")
    parser.add_argument("--known-host", dest="hosts", action="append", default=[], help="may be repeated")
    parser.add_argument(
        "--media-domain", dest="media_domains", action="append", default=[], help="may be repeated"
    )
    values = read_options(parser, arguments)
    hosts, media_domains = tuple[str, ...](values.pop("hosts")), frozenset[str](values.pop("media_domains"))
    return GatewaySettings(**values, hosts=hosts, media_domains=media_domains)


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
