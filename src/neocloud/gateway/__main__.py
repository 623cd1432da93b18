"""python -m neocloud.gateway: started by the control plane, and left alone by its restarts."""

import argparse
import gc
import logging
import os
import sys
from pathlib import Path

import uvloop

from neocloud.core.clock import SystemClock
from neocloud.gateway.accounts import LedgerError, open_ledger
from neocloud.gateway.control_plane import GrpcControlPlane
from neocloud.gateway.serving import listen, server
from neocloud.gateway.settings import DEFAULT_PORT, GatewaySettings
from neocloud.gateway.wiring import Gateway

logger = logging.getLogger("neocloud.gateway")

SWITCH_SECONDS = 0.0005
"""The ledger's thread gives way to the loop so soon; with Python's own 5 ms, requests would wait for it."""
NUMBERS = (
    *("max_subject_requests", "max_requests", "max_subject_bytes", "max_bytes"),
    *("max_connections", "max_address_connections"),
    *("head_seconds", "body_seconds", "body_quiet_seconds", "keep_alive_seconds"),
    *("silence_seconds", "write_seconds", "drain_seconds", "admit_seconds", "renew_seconds"),
)
"""Settings that are options of the same name."""
COLLECT_AFTER = 20_000
"""Objects. Answers leave hardly any cycles behind."""


async def serve(settings: GatewaySettings) -> None:
    clock = SystemClock()
    settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    listener = listen(settings)
    ledger = open_ledger(settings.folder / "ledger.db", clock)
    control_plane = GrpcControlPlane(settings.api, settings.key_file)
    gateway = Gateway(settings, control_plane, ledger, clock)
    try:
        async with gateway.running():
            # What is there now stays: the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(COLLECT_AFTER, 20, 50)
            host, port = listener.getsockname()[:2]
            logger.info("Serving on %s:%d", host, port)
            await server(gateway.app, settings).serve(sockets=[listener])
    finally:
        await control_plane.close()
        ledger.close()


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
    parser.add_argument("--max-body-bytes", type=int, default=GatewaySettings.max_body_bytes)
    rate = GatewaySettings.requests_per_second
    parser.add_argument("--requests-per-second", type=float, default=rate, help="per subject; 0: no limit")
    for name in NUMBERS:
        default = getattr(GatewaySettings, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--known-host", dest="hosts", action="append", default=[], help="may be repeated")
    parser.add_argument(
        "--media-domain", dest="media_domains", action="append", default=[], help="may be repeated"
    )
    values = vars(parser.parse_args(arguments))
    lists = {"hosts": tuple(values["hosts"]), "media_domains": frozenset(values["media_domains"])}
    return GatewaySettings(**{**values, **lists})


def main() -> None:
    os.umask(0o077)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = settings_of()
    try:
        uvloop.run(serve(settings))
    except LedgerError as error:
        sys.exit(f"The gateway cannot start: {error}")
    except OSError as error:
        sys.exit(f"The gateway cannot serve on {settings.host}:{settings.port}: {error.strerror or error}")


if __name__ == "__main__":
    main()
