"""The settings of a control plane: the fields of `Settings`.

Each field says how its option is named, read and described. The options of `neo up`, those of the server's
program and `config.json` in the state folder all follow from that.
"""

import json
from dataclasses import Field, dataclass, fields
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from neocloud.settings.object_settings import ObjectSettings
from neocloud.settings.option_values import (
    EVERY_ADDRESS,
    Option,
    absolute_path,
    certificate_file,
    email_address,
    host_name,
    https_url,
    interface_name,
    ipv4_range,
    listen_address,
    media_domain,
    model_folder,
    one_of,
    option,
    port,
    port_range,
    public_name,
    rate,
)

DEFAULT_HOME = Path("/var/lib/neocloud")
DEFAULT_GRPC_PORT = 7370
DEFAULT_HTTP_PORT = 7371
DEFAULT_TLS_PORT = 7372
DEFAULT_REDIRECTOR_PORT = 7373
DEFAULT_HTTPS_PORT = 7374
DEFAULT_GATEWAY_PORT = 8900
DEFAULT_GATEWAY_TLS_PORT = 8901
DEFAULT_S3_PORT = 8902
DEFAULT_S3_TLS_PORT = 8903
EVERY_IPV4_ADDRESS = "0.0.0.0"  # asked for by the operator  # nosec B104
LOOPBACK = "127.0.0.1"
DEFAULT_DOMAIN = "api.localhost"
"""gRPC's own resolver leads every name under `localhost` to this machine."""
LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"
PUBLISHED_DOMAIN = "api.nebius.cloud"
"""The domain that clients without a domain setting call; served through the redirector only."""


@dataclass(frozen=True)
class Settings(ObjectSettings):
    home: Path = DEFAULT_HOME
    """All state lives here: database, keys, images, volumes, logs."""
    grpc_port: int = port(DEFAULT_GRPC_PORT, "Port of the gRPC API; 0: any free port. Default: 7370.")
    http_port: int = port(DEFAULT_HTTP_PORT, "Port of the JSON API; 0: any free port. Default: 7371.")
    gateway_port: int = port(
        DEFAULT_GATEWAY_PORT,
        "Port of the OpenAI-compatible API; 0: any free port. Default: 8900, or 0 if --grpc-port is.",
    )
    """Where the OpenAI-compatible gateway listens, on loopback. The emulator has none."""
    s3_port: int = port(
        DEFAULT_S3_PORT,
        "Port of object storage (S3); 0: any free port. Default: 8902, or 0 if --grpc-port is.",
    )
    """The port of the object gateway on loopback."""
    gateway_hosts: tuple[str, ...] = option(
        (),
        "Host name of the OpenAI-compatible API, e.g. behind a proxy; repeatable. Replaces the"
        ' previous names; "none" removes all. Default: names of loopback.',
        flag="gateway-host",
        parse=host_name,
        metavar="NAME",
        clears=True,
        example="Write a name as in models.example.com",
    )
    media_domains: tuple[str, ...] = option(
        (),
        "Host from which model servers may fetch images, audio and video named in requests by"
        ' https URL; repeatable. Replaces the previous hosts; "none" removes all. Default: none.',
        flag="media-domain",
        parse=media_domain,
        metavar="NAME",
        clears=True,
        example="Write a name as in models.example.com",
    )
    metrics: bool = option(
        False,
        "Keep metrics for 90 days in a store of this host; needs `neo image build metrics`. Default: no.",
        kind=bool,
    )
    metrics_port: int = port(0, "Port of the store of metrics, on loopback; 0: any free port. Default: 0.")
    tls_port: int | None = port(None, "Port of the TLS API; 0: any free port. Default: 7372. Implies --tls.")
    """gRPC over TLS, with the cloud's own certificate authority; None: off."""
    redirector_port: int = port(
        DEFAULT_REDIRECTOR_PORT, "Port of the TLS redirector; 0: any free port. Default: 7373.", by_neo=False
    )
    host: str = option(
        "127.0.0.1",
        "Address on which the gRPC API alone listens over TLS; 0.0.0.0: all. See --listen."
        " Default: 127.0.0.1.",
    )
    listen: tuple[str, ...] = option(
        (),
        "Address of this host on which other machines reach the cloud, over TLS only; repeatable. 'all':"
        ' every address, IPv4 and IPv6. Replaces the previous addresses; "none" removes all. Default:'
        " none, loopback only.",
        parse=listen_address,
        metavar="ADDRESS",
        clears=True,
        example="Write an address of this host, such as 192.0.2.7, or 'all'",
    )
    """gRPC, JSON API, gateway and ssh to login nodes are served there. Plain text stays on loopback."""
    https_port: int = port(
        DEFAULT_HTTPS_PORT, "Port of the JSON API over TLS, with --listen; 0: any free port. Default: 7374."
    )
    gateway_tls_port: int = port(
        DEFAULT_GATEWAY_TLS_PORT,
        "Port of the OpenAI-compatible API over TLS, with --listen; 0: any free port. Default: 8901.",
    )
    s3_tls_port: int = port(
        DEFAULT_S3_TLS_PORT,
        "Port of object storage (S3) over TLS, with --listen; 0: any free port. Default: 8903.",
    )
    tls_certificate: Path | None = option(
        None,
        "PEM file with a certificate to use instead of one of the cloud's own authority, and those that lead"
        ' to its authority. "none": the cloud\'s own. Needs --tls-key.',
        parse=certificate_file,
        kind=Path,
    )
    tls_key: Path | None = option(
        None, "PEM file with the key of --tls-certificate.", parse=certificate_file, kind=Path
    )
    acme_domains: tuple[str, ...] = option(
        (),
        "Public host name of this cloud, for which a certificate is ordered by ACME (RFC 8555) and renewed,"
        ' with --listen; repeatable. Replaces the previous names; "none" removes all. Default: none, a'
        " certificate of the cloud's own authority.",
        flag="acme-domain",
        parse=public_name,
        metavar="NAME",
        clears=True,
        example="Write a name as in cloud.example.com",
    )
    acme_email: str = option(
        "",
        'E-mail address for the certificate authority, or "none". Default: none.',
        parse=email_address,
        metavar="ADDRESS",
        example="Write an address as in you@example.com",
    )
    acme_directory: str = option(
        LETS_ENCRYPT,
        "Directory URL of the certificate authority. Default: Let's Encrypt's.",
        parse=https_url,
        metavar="URL",
        example=f"Write a URL such as {LETS_ENCRYPT}",
    )
    acme_agree_tos: bool = option(
        False,
        "Agree to the terms of service of that authority, without which it signs nothing. Default: no.",
        kind=bool,
    )
    acme_http_port: int = port(
        80,
        "Port on which the cloud answers the authority's check of --acme-domain, which goes to port 80;"
        " another one if something forwards it there. Default: 80.",
    )
    domain: str = option(
        DEFAULT_DOMAIN,
        "Domain of the API, whose services are names such as compute.DOMAIN. Default: api.localhost.",
    )
    database_url: str = option(
        "",
        "PostgreSQL URL to use instead of SQLite. A URL with a password belongs in the variable.",
        is_secret=True,
    )
    """A postgresql:// URL, maybe with a password; empty means SQLite in the home folder."""
    database_url_file: Path | None = option(
        None,
        "File of mode 0600 with the URL of a PostgreSQL database, to use instead of SQLite; it may contain a"
        " password. Or put the URL into the variable NEOCLOUD_DATABASE_URL.",
        parse=absolute_path,
        kind=Path,
    )
    """The operator's own, read at each start, in place of the URL."""
    price_file: Path | None = option(
        None, "Price list to use instead of the built-in one.", parse=absolute_path, kind=Path
    )
    quota_file: Path | None = option(
        None, "Quotas and initial limits to use instead of the built-in ones.", parse=absolute_path, kind=Path
    )
    audit_days: int = option(365, "Days to keep audit events. Default: 365.", parse=int, kind=int, minimum=1)
    history_days: int = option(
        400,
        "Days to keep the history that bills are computed from. Default: 400.",
        parse=int,
        kind=int,
        minimum=62,
    )
    """How long versions of resources that bills are computed from are kept once they are replaced. Longer
    than a year, so that a month can be compared with the same month of the year before."""
    calls_per_second: float = option(
        200.0,
        "Rate limit of an account; bursts may be ten times as large. Default: 200.",
        parse=rate,
        kind=float,
        minimum=0,
    )
    """Sustained calls of one account, with a burst of ten seconds' worth; 0: no limit. Terraform keeps ten
    calls in flight, and listing everything in a project takes about a hundred."""
    sign_ins_per_second: float = option(
        50.0,
        "Rate limit of calls without a token from one address. Default: 50; 0: no limit.",
        parse=rate,
        kind=float,
        minimum=0,
    )
    """Sustained calls without a sign-in from one address, with a burst of ten seconds' worth; 0: no limit."""
    model_folders: tuple[Path, ...] = option(
        (),
        "Folder from which every project may serve models in place; repeatable. Replaces the"
        " previous folders.",
        flag="model-folder",
        parse=model_folder,
        kind=Path,
    )
    """Folders that are opened for models beside `<home>/models`: every project may serve what is in them."""
    public_pool: str = option(
        "",
        "Range of public addresses of new projects. Default: 198.18.0.0/16, or a free range if another cloud"
        " on this host has that.",
        parse=ipv4_range,
        example="Write a range of IPv4 addresses: 198.18.0.0/16",
    )
    public_interface: str = option(
        "",
        "Network interface on which this host answers ARP requests for the public addresses in use, so that"
        " machines on that network reach them without a route. Needs --public-pool with an unused range of"
        ' that network. "none": no interface in particular.',
        parse=interface_name,
        metavar="NAME",
        example="Write the name of an interface, such as eth0, or 'none'",
    )
    private_range: str = ""
    """Where the pools of new networks come from first. The home records it; operators do not choose it."""
    cloud_number: int = 0
    """Tells the clouds on one host apart, from 0; the private range says it."""
    opened_ranges: tuple[IPv4Network, ...] = option(
        (),
        "Private range that machines and containers may reach, such as 10.20.0.0/16; repeatable."
        ' Replaces the previous ranges; "none" closes all. Default: public addresses only.',
        flag="allow-egress",
        parse=IPv4Network,
        metavar="RANGE",
        clears=True,
        example="Write a range of IPv4 addresses: 10.20.0.0/16",
    )
    allow_private_issuers: bool = option(
        False,
        "Allow federation issuers with private addresses or on this machine. Default: no.",
        kind=bool,
    )
    issuer_hosts: tuple[str, ...] = option(
        (),
        "Additional host that may serve endpoints of issuers; repeatable. Replaces the previous hosts.",
        flag="issuer-host",
    )
    login_ports: tuple[int, int] = option(
        (2222, 2999),
        "Ports for ssh to the login nodes of Slurm clusters, on loopback and with --listen on its IPv4"
        " addresses. Default: 2222-2999.",
        parse=port_range,
        metavar="FIRST-LAST",
        example="Write a range of ports: 2222-2999",
    )
    log_level: str = option(
        "info",
        "How much the server and the gateway write to their logs. Default: info.",
        parse=one_of("debug", "info", "warning"),
        metavar="debug|info|warning",
        example="Write debug, info or warning",
    )
    log_format: str = option(
        "text",
        "Form of the lines in these logs. Default: text.",
        parse=one_of("text", "json"),
        metavar="text|json",
        example="Write text or json",
    )
    tenant_name: str = option("default", "Name of the first tenant.", by_neo=False)
    region: str = option("eu-north1", "Name of this region. Default: eu-north1.", by_neo=False)
    starting_seconds: float | None = option(
        None,
        "How long a machine is shown as STARTING at least. Default: 6.",
        parse=float,
        kind=float,
        by_neo=False,
    )
    """Clients that look every few seconds wait to see it. None means 6, and none in the emulator."""
    emulator: bool = option(
        False,
        "Run an emulator: the API on a simulated machine, for tests of clients; needs no root.",
        kind=bool,
    )
    emulator_gpus: str = option(
        "",
        'GPUs of the simulated machine, as "8xH100,2xL40S" or "none". Default: plenty of each'
        " type. Implies --emulator.",
    )

    @property
    def shortest_start_seconds(self) -> float:
        if self.starting_seconds is not None:
            return self.starting_seconds
        return 0.0 if self.emulator else 6.0

    @property
    def login_addresses(self) -> tuple[str, ...]:
        """Return the addresses of this host with ssh ports of login nodes. Pods have no IPv6 addresses."""
        if EVERY_ADDRESS in self.listen:
            return (EVERY_IPV4_ADDRESS,)
        return tuple(dict.fromkeys((LOOPBACK, *(each for each in self.listen if ":" not in each))))

    @property
    def s3_ports(self) -> tuple[int, int]:
        """Return the ports of object storage, on loopback and over TLS.

        0 is any free port, also where the ports of the API are any and no others were chosen."""
        port, tls_port = self.s3_port, self.s3_tls_port
        return (
            0 if self.grpc_port == 0 and port == DEFAULT_S3_PORT else port,
            0 if self.https_port == 0 and tls_port == DEFAULT_S3_TLS_PORT else tls_port,
        )

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
    def addresses_file(self) -> Path:
        """Return the file of the addresses where the server listened last; kept while it is stopped."""
        return self.home / "addresses.json"

    @property
    def certificate_folder(self) -> Path:
        """The cloud's own certificate authority; `ca.pem` in it is what clients trust."""
        return self.home / "tls"

    @property
    def acme_failures_file(self) -> Path:
        """Orders of a certificate that failed; they put off the next one, also after a restart."""
        return self.certificate_folder / "acme-failures.json"

    @property
    def lock_file(self) -> Path:
        return self.home / "server.lock"

    def image(self, folder: str) -> str:
        """Name of the container image that was last built from this folder of `images`."""
        if self.emulator:
            return f"emulated/{folder}"
        record = self.home / "images" / folder / "image.json"
        return json.loads(record.read_text())["name"]


def options() -> dict[str, tuple[Field[Any], Option]]:
    """Return the fields that can be chosen, with their options, by name."""
    return {each.name: (each, each.metadata["option"]) for each in fields(Settings) if each.metadata}


def is_list(item: Field[Any]) -> bool:
    """Return whether the option may be repeated."""
    return item.default == ()


def flag(item: Field[Any]) -> str:
    """Return the option's name on a command line."""
    option: Option = item.metadata["option"]
    return f"--{option.flag or item.name.replace('_', '-')}"
