"""A gateway with a mock engine that also listens over TLS: a program for a network namespace.

    python -m tests.real.model_gateway.gateway_over_tls FOLDER PORT ADDRESS...

Prints a line when it serves, and ends when its standard input does.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from neocloud.server import CertificateFolder, ensure_certificate
from neocloud.testing.gateway import engine_process, gateway_process, route

PUBLIC_NAME = "cloud.bank.example"


def main(folder: Path, port: str, *addresses: str) -> None:
    ensure_certificate(folder / "tls", (PUBLIC_NAME, *addresses), datetime.now(UTC))
    files = CertificateFolder(folder / "tls")
    options = [f"--tls-host={address}" for address in addresses]
    options += [
        "--tls-port",
        port,
        "--tls-certificate",
        str(files.server),
        "--tls-key",
        str(files.server_key),
    ]
    options += [f"--known-host={name}" for name in (PUBLIC_NAME, *addresses)]
    with gateway_process(folder, *options) as gateway, engine_process() as engine:
        gateway.set_routes(route("bank", replicas=[engine.address], engine_name="mock"))
        sys.stdout.write(f"{gateway.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
