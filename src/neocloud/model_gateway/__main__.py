"""Run the gateway: `python -m neocloud.model_gateway`. The control plane starts it; it outlives restarts of
the control plane."""

import argparse
import sys

from neocloud.core.clock import SystemClock
from neocloud.data_plane.process import (
    add_options,
    listen,
    listen_over_tls,
    log_addresses,
    read_options,
    run_gateway,
    serve_until_signalled,
)
from neocloud.model_gateway.api.client_protocol import GatewayProtocol, gateway_connections
from neocloud.model_gateway.composition import Gateway
from neocloud.model_gateway.control_plane import GrpcControlPlane
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import LedgerError
from neocloud.model_gateway.settings import GatewaySettings

SWITCH_SECONDS = 0.0005
"""Switch interval of Python threads. With the default of 5 ms, requests would wait for the thread of the
ledger."""
NUMBERS = (
    *("max_subject_requests", "max_requests", "max_subject_bytes", "max_bytes", "max_body_bytes"),
    *("silence_seconds", "admit_seconds", "renew_seconds"),
)
"""More settings that are options of the same name."""


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
            log_addresses("models", settings, listener, tls_listeners)
            connections = gateway_connections(settings)
            await serve_until_signalled(
                gateway.app, GatewayProtocol, settings, connections, listener, tls_listeners
            )
    finally:
        await control_plane.close()
        ledger.close()


def settings_of(arguments: list[str] | None = None) -> GatewaySettings:
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.model_gateway", description="Serve models over the OpenAI API."
    )
    add_options(parser, GatewaySettings, NUMBERS)
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
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = settings_of()
    run_gateway("gateway", settings, serve(settings), (LedgerError,))


if __name__ == "__main__":
    main()
