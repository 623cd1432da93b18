"""What an operator may choose about a running control plane. Built once in app.py and passed on."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOME = Path("/var/lib/neocloud")
DEFAULT_GRPC_PORT = 7370
DEFAULT_HTTP_PORT = 7371


@dataclass(frozen=True)
class Settings:
    home: Path = DEFAULT_HOME
    """All state lives here: database, keys, images, volumes, logs."""
    host: str = "127.0.0.1"
    grpc_port: int = DEFAULT_GRPC_PORT
    http_port: int = DEFAULT_HTTP_PORT
    database_url: str = ""
    """A postgresql:// URL; empty means SQLite in the home folder."""
    price_file: Path | None = None
    """Own price list; None means the one that ships."""
    tenant_name: str = "innovation-bank"
    region: str = "eu-north1"

    @property
    def database(self) -> str:
        return self.database_url or str(self.home / "state.db")

    @property
    def key_file(self) -> Path:
        return self.home / "store.key"

    @property
    def credentials_file(self) -> Path:
        """The first service account's key, for the CLI and SDKs."""
        return self.home / "credentials.json"

    @property
    def server_file(self) -> Path:
        """Written when the server is ready: its pid and addresses."""
        return self.home / "server.json"

    @property
    def lock_file(self) -> Path:
        return self.home / "server.lock"

    def slurm_image(self) -> str:
        """Name of the container image of Slurm's daemons that was built last."""
        record = self.home / "images" / "slurm" / "image.json"
        return json.loads(record.read_text())["name"]


def parse_arguments(arguments: list[str] | None = None) -> tuple[str, Settings]:
    """What to do ("serve", "stop" or "destroy") and with which settings."""
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.app", description="Run Neocloud's control plane in the foreground."
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--stop-workloads", action="store_const", const="stop", dest="action")
    action.add_argument("--destroy-workloads", action="store_const", const="destroy", dest="action")
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="state folder (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--grpc-port", type=int, default=DEFAULT_GRPC_PORT, help="0 means any free port")
    parser.add_argument("--http-port", type=int, default=DEFAULT_HTTP_PORT, help="0 means any free port")
    parser.add_argument("--database-url", default="", help="postgresql://... (default: SQLite in the home)")
    parser.add_argument("--price-file", type=Path, help="own price list (YAML)")
    parser.add_argument("--tenant-name", default="innovation-bank", help="name of the first tenant")
    parser.add_argument("--region", default="eu-north1", help="name of this region (default: %(default)s)")
    values = vars(parser.parse_args(arguments))
    chosen = values.pop("action") or "serve"
    return chosen, Settings(**{**values, "home": values["home"].expanduser().absolute()})
