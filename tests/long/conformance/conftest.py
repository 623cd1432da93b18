"""A cloud with real machines and TLS for clients that are run as their users run them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.clients import CLIENTS
from tests.e2e.cloud import Cloud, run


@pytest.fixture(scope="package")
def machine_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Running, with machine images and TLS."""
    images = Path(os.environ.get("NEOCLOUD_TEST_IMAGES", ROOT / ".cache" / "images")).absolute()
    cloud = Cloud.prepare(tmp_path_factory.mktemp("clients"), images)
    try:
        cloud.up("--tls-port", "0")
        cloud.neo("image", "build", "machine", seconds=900)
        yield cloud
    finally:
        cloud.neo("destroy", "--yes")


@pytest.fixture(scope="session")
def client_program() -> "ClientPrograms":
    return ClientPrograms()


class ClientPrograms:
    """Programs of clients that `make clients` installed."""

    def __call__(self, client: str, program: str) -> Path:
        path = CLIENTS / client / "bin" / program
        if not path.exists():
            run([ROOT / "scripts" / "install-client", client], env={**os.environ, "PYTHON": sys.executable})
        return path


@pytest.fixture(scope="package")
def ssh_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private key; its public part lies beside it."""
    key = tmp_path_factory.mktemp("key") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key
