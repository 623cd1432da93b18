"""What an operator may choose about a running control plane. Built once in app.py and passed on."""

import argparse
import json
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from neocloud import database_url

DEFAULT_HOME = Path("/var/lib/neocloud")
DEFAULT_GRPC_PORT = 7370
DEFAULT_HTTP_PORT = 7371
DEFAULT_TLS_PORT = 7372
DEFAULT_REDIRECTOR_PORT = 7373
DEFAULT_GATEWAY_PORT = 8900
DEFAULT_DOMAIN = "api.localhost"
"""gRPC's own resolver leads every name under `localhost` to this machine."""
PUBLISHED_DOMAIN = "api.nebius.cloud"
"""What clients without a domain setting call; served through the redirector only."""


@dataclass(frozen=True)
class Settings:
    home: Path = DEFAULT_HOME
    """All state lives here: database, keys, images, volumes, logs."""
    host: str = "127.0.0.1"
    """Where the TLS API listens. Plain text is served on loopback only, whatever this says."""
    grpc_port: int = DEFAULT_GRPC_PORT
    http_port: int = DEFAULT_HTTP_PORT
    tls_port: int | None = None
    """gRPC over TLS, with the cloud's own certificate authority; None: off."""
    redirector_port: int = DEFAULT_REDIRECTOR_PORT
    gateway_port: int = DEFAULT_GATEWAY_PORT
    """Where the OpenAI-compatible gateway listens, on loopback; 0: any free port. The emulator has none."""
    gateway_hosts: tuple[str, ...] = ()
    """Names by which clients call the gateway, beside localhost and loopback addresses."""
    media_domains: tuple[str, ...] = ()
    """Hosts that requests to models may name, for the engines to fetch images, sounds and videos from."""
    domain: str = DEFAULT_DOMAIN
    """Clients look for the API at names under it, such as `compute.<domain>`."""
    database_url: str = field(default="", repr=False)
    """A postgresql:// URL, maybe with a password; empty means SQLite in the home folder."""
    price_file: Path | None = None
    """Own price list; None means the one that ships."""
    quota_file: Path | None = None
    """Own quotas and first limits; None means those that ship."""
    public_pool: str = ""
    """Range of "public" addresses of new projects; empty means the vpc brick's default, 198.18.0.0/16."""
    opened_ranges: tuple[IPv4Network, ...] = ()
    """Private ranges that workloads of tenants may reach; without, they reach public addresses only."""
    login_ports: tuple[int, int] = (2222, 2999)
    """First and last port of loopback that login nodes of Slurm clusters may have."""
    audit_days: int = 365
    """How long audit events are kept."""
    history_days: int = 400
    """How long versions of resources that bills are computed from are kept once they are replaced. Longer
    than a year, so that a month can be compared with the same month of the year before."""
    calls_per_second: float = 200.0
    """Sustained calls of one account, with a burst of ten seconds' worth; 0: no limit. Terraform keeps ten
    calls in flight, and listing everything in a project takes about a hundred."""
    sign_ins_per_second: float = 50.0
    """Sustained calls without a sign-in from one address, with a burst of ten seconds' worth; 0: no limit."""
    tenant_name: str = "innovation-bank"
    region: str = "eu-north1"
    starting_seconds: float | None = None
    """How long a machine is shown as STARTING at least: clients that look every few seconds wait to see it.
    None means 6, and none in the emulator."""
    model_folders: tuple[Path, ...] = ()
    """Folders that are opened for models beside `<home>/models`: every project may serve what is in them."""
    allow_private_issuers: bool = False
    """Whether the issuers of federations may have private addresses, or be on this machine."""
    issuer_hosts: tuple[str, ...] = ()
    """Hosts that may serve endpoints of issuers, beside each issuer's own origin."""
    emulator: bool = False
    """Nothing real runs: the API on a fake engine, for clients' tests."""
    emulator_gpus: str = ""
    """What the emulated machine has, such as "8xH100,2xL40S"; empty means plenty of every published type."""

    @property
    def shortest_start_seconds(self) -> float:
        if self.starting_seconds is not None:
            return self.starting_seconds
        return 0.0 if self.emulator else 6.0

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
    def certificate_folder(self) -> Path:
        """The cloud's own certificate authority; `ca.pem` in it is what clients trust."""
        return self.home / "tls"

    @property
    def lock_file(self) -> Path:
        return self.home / "server.lock"

    def image(self, folder: str) -> str:
        """Name of the container image that was last built from this folder of `images`."""
        if self.emulator:
            return f"emulated/{folder}"
        record = self.home / "images" / folder / "image.json"
        return json.loads(record.read_text())["name"]

    def slurm_image(self) -> str:
        """Name of the container image of Slurm's daemons that was built last."""
        return self.image("slurm")


def parse_arguments(arguments: list[str] | None = None) -> tuple[str, Settings]:
    """What to do ("serve", "stop" or "destroy") and with which settings."""
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.app", description="Run Neocloud's control plane in the foreground."
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--stop-workloads", action="store_const", const="stop", dest="action")
    action.add_argument("--destroy-workloads", action="store_const", const="destroy", dest="action")
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="state folder (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address of the TLS API (default: %(default)s)")
    parser.add_argument("--grpc-port", type=int, default=DEFAULT_GRPC_PORT, help="0 means any free port")
    parser.add_argument("--http-port", type=int, default=DEFAULT_HTTP_PORT, help="0 means any free port")
    parser.add_argument("--tls-port", type=int, help=f"serve TLS too, by custom on {DEFAULT_TLS_PORT}")
    parser.add_argument(
        "--redirector-port", type=int, default=DEFAULT_REDIRECTOR_PORT, help="0 means any free port"
    )
    parser.add_argument(
        "--gateway-port", type=int, default=DEFAULT_GATEWAY_PORT, help="0 means any free port"
    )
    parser.add_argument(
        "--gateway-host",
        dest="gateway_hosts",
        action="append",
        type=host_name,
        default=[],
        help="a name by which clients call the gateway (may be repeated)",
    )
    parser.add_argument(
        "--media-domain",
        dest="media_domains",
        action="append",
        type=media_domain,
        default=[],
        help="a host that engines may fetch media from (may be repeated)",
    )
    parser.add_argument("--domain", default=DEFAULT_DOMAIN, help="of the API (default: %(default)s)")
    database_url.add_options(parser)
    parser.add_argument("--price-file", type=Path, help="own price list (YAML)")
    parser.add_argument("--quota-file", type=Path, help="own quotas and first limits (YAML)")
    parser.add_argument(
        "--public-pool", type=ipv4_range, default="", help="public addresses (default: 198.18.0.0/16)"
    )
    parser.add_argument(
        "--allow-egress",
        dest="opened_ranges",
        metavar="RANGE",
        action="append",
        type=IPv4Network,
        default=[],
        help="private range that workloads may reach (may be repeated)",
    )
    parser.add_argument(
        "--login-ports",
        type=port_range,
        default=(2222, 2999),
        help="of Slurm login nodes (default: 2222-2999)",
    )
    parser.add_argument("--audit-days", type=int, default=365, help="keep audit events for so many days")
    parser.add_argument("--history-days", type=int, default=400, help="keep what bills need so many days")
    parser.add_argument("--calls-per-second", type=rate, default=200.0, help="of one account; 0: no limit")
    parser.add_argument(
        "--sign-ins-per-second", type=rate, default=50.0, help="of callers without a token, from one address"
    )
    parser.add_argument("--tenant-name", default="innovation-bank", help="name of the first tenant")
    parser.add_argument("--region", default="eu-north1", help="name of this region (default: %(default)s)")
    parser.add_argument(
        "--starting-seconds", type=float, help="how long a machine is shown as STARTING at least (default: 6)"
    )
    parser.add_argument(
        "--model-folder",
        dest="model_folders",
        action="append",
        type=model_folder,
        default=[],
        help="open this folder for models, for every project (may be repeated)",
    )
    parser.add_argument(
        "--allow-private-issuers",
        action="store_true",
        help="let the issuers of federations have private addresses, or be on this machine",
    )
    parser.add_argument(
        "--issuer-host",
        dest="issuer_hosts",
        action="append",
        default=[],
        help="a host beside an issuer's own that may serve its endpoints (may be repeated)",
    )
    parser.add_argument("--emulator", action="store_true", help="run nothing real, for clients' tests")
    parser.add_argument("--emulator-gpus", default="", help='what the emulated machine has: "8xH100,2xL40S"')
    values = vars(parser.parse_args(arguments))
    chosen = values.pop("action") or "serve"
    values["database_url"] = database_url.take(values["database_url"], values.pop("database_url_file"))
    repeated = ("model_folders", "opened_ranges", "issuer_hosts", "gateway_hosts", "media_domains")
    values |= {name: tuple(values[name]) for name in repeated}
    return chosen, Settings(**{**values, "home": values["home"].expanduser().absolute()})


def model_folder(text: str) -> Path:
    """With all links followed, as folders of models are compared."""
    folder = Path(text).expanduser().resolve()
    if folder == Path("/"):
        raise ValueError("the whole machine cannot be opened for models")
    return folder


def host_name(text: str) -> str:
    """As argparse reads it: a ValueError is told to the operator."""
    if not text or not all(part.replace("-", "").replace(":", "").isalnum() for part in text.split(".")):
        raise ValueError("a host name or an address, without scheme and port")
    return text.lower()


def media_domain(text: str) -> str:
    """As argparse reads it; the gateway and vLLM compare names. A ValueError is told to the operator."""
    name = host_name(text)
    if ":" in name or name.rpartition(".")[2].isdigit():
        raise ValueError("a host name, not an address")
    return name


def rate(text: str) -> float:
    """As argparse reads it: a ValueError is told to the operator."""
    found = float(text)
    if not 0 <= found < float("inf"):
        raise ValueError("must be 0 or more")
    return found


def port_range(text: str) -> tuple[int, int]:
    """As argparse reads it: a ValueError is told to the operator."""
    first, _, last = text.partition("-")
    found = int(first), int(last or first)
    if not 1024 <= found[0] <= found[1] <= 65535:
        raise ValueError("a range of ports is FIRST-LAST, from 1024 to 65535")
    return found


def ipv4_range(text: str) -> str:
    """As argparse reads it: a ValueError is told to the operator."""
    return str(IPv4Network(text)) if text else ""
