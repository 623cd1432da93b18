"""Options of `neo up`: the settings of a cloud."""

from pathlib import Path
from typing import Annotated

import typer

StateFolder = Annotated[
    Path | None,
    typer.Option(envvar="NEOCLOUD_HOME", help="State folder. Default: /var/lib/neocloud."),
]
GrpcPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of the gRPC API; 0: any free port. Default: 7370.")
]
HttpPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of the JSON API; 0: any free port. Default: 7371.")
]
GatewayPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Port of the OpenAI-compatible API; 0: any free port. Default: 8900, or 0 if --grpc-port is.",
    ),
]
GatewayHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Host name of the OpenAI-compatible API, e.g. behind a proxy; repeatable."
        ' Replaces the previous names; "none" removes all. Default: names of loopback.',
    ),
]
MediaDomain = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Host from which model servers may fetch images, audio and video named in requests by https URL;"
        ' repeatable. Replaces the previous hosts; "none" removes all. Default: none.',
    ),
]
Tls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls",
        help="Also serve the API over TLS, with the cloud's own certificate authority.",
        show_default=False,
    ),
]
TlsPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Port of the TLS API; 0: any free port. Default: 7372. Implies --tls."
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        help="Address on which the TLS API listens; 0.0.0.0: all. Plain text is served on loopback only."
        " Default: 127.0.0.1."
    ),
]
Domain = Annotated[
    str | None,
    typer.Option(
        help="Domain of the API, whose services are names such as compute.DOMAIN. Default: api.localhost."
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        envvar="NEOCLOUD_DATABASE_URL",
        help="PostgreSQL URL to use instead of SQLite. A URL with a password belongs in the variable.",
    ),
]
DatabaseUrlFile = Annotated[
    Path | None, typer.Option(help="File of mode 0600 with that URL, which may contain a password.")
]
PriceFile = Annotated[Path | None, typer.Option(help="Price list to use instead of the built-in one.")]
QuotaFile = Annotated[
    Path | None, typer.Option(help="Quotas and initial limits to use instead of the built-in ones.")
]
AuditDays = Annotated[int | None, typer.Option(min=1, help="Days to keep audit events. Default: 365.")]
HistoryDays = Annotated[
    int | None,
    typer.Option(min=62, help="Days to keep the history that bills are computed from. Default: 400."),
]
CallsPerSecond = Annotated[
    float | None,
    typer.Option(min=0, help="Rate limit of an account; bursts may be ten times as large. Default: 200."),
]
SignInsPerSecond = Annotated[
    float | None,
    typer.Option(
        min=0, help="Rate limit of calls without a token from one address. Default: 50; 0: no limit."
    ),
]
ModelFolder = Annotated[
    list[Path] | None,
    typer.Option(
        help="Folder from which every project may serve models in place; repeatable."
        " Replaces the previous folders."
    ),
]
LoginPorts = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST-LAST", help="Loopback ports for the login nodes of Slurm clusters. Default: 2222-2999."
    ),
]
PublicPool = Annotated[
    str | None,
    typer.Option(help="Range of public addresses of new projects. Default: 198.18.0.0/16."),
]
AllowEgress = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RANGE",
        help="Private range that machines and containers may reach, such as 10.20.0.0/16; repeatable."
        ' Replaces the previous ranges; "none" closes all. Default: public addresses only.',
    ),
]
AllowPrivateIssuers = Annotated[
    bool | None,
    typer.Option(
        "--allow-private-issuers/--no-allow-private-issuers",
        help="Allow federation issuers with private addresses or on this machine. Default: no.",
    ),
]
IssuerHost = Annotated[
    list[str] | None,
    typer.Option(
        help="Additional host that may serve endpoints of issuers; repeatable. Replaces the previous hosts."
    ),
]
Emulator = Annotated[
    bool,
    typer.Option(
        "--emulator",
        help="Run the whole API on a simulated machine, for clients' tests; needs no root.",
    ),
]
EmulatorGpus = Annotated[
    str | None,
    typer.Option(
        help='GPUs of the simulated machine, as "8xH100,2xL40S" or "none". Default: plenty of each type.'
        " Implies --emulator."
    ),
]
