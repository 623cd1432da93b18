"""The options of `neo up`: what of a cloud can be set when it is started."""

from pathlib import Path
from typing import Annotated

import typer

StateFolder = Annotated[
    Path | None,
    typer.Option(envvar="NEOCLOUD_HOME", help="State folder. Default: /var/lib/neocloud."),
]
GrpcPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of the gRPC API; 0: any free. Default: 7370.")
]
HttpPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of the JSON API; 0: any free. Default: 7371.")
]
GatewayPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Port of the OpenAI-compatible API; 0: any free. Default: 8900, or 0 if --grpc-port is.",
    ),
]
GatewayHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Name by which clients call the OpenAI-compatible API, e.g. behind a proxy; may be repeated."
        ' Those given replace those of before; "none" removes all. Default: names of loopback.',
    ),
]
MediaDomain = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Host from which engines may fetch images, sounds and videos that requests name by https URLs;"
        ' may be repeated. Those given replace those of before; "none" removes all. Default: none.',
    ),
]
Tls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls",
        help="Serve the API over TLS too, with the cloud's own certificate authority.",
        show_default=False,
    ),
]
TlsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port of the TLS API; 0: any free. Default: 7372. Implies --tls."),
]
Host = Annotated[
    str | None,
    typer.Option(
        help="Address on which the TLS API listens, 0.0.0.0 for all. Plain text stays on loopback."
        " Default: 127.0.0.1."
    ),
]
Domain = Annotated[
    str | None,
    typer.Option(help="Clients call names under it, as compute.DOMAIN. Default: api.localhost."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        envvar="NEOCLOUD_DATABASE_URL",
        help="postgresql://... instead of SQLite in the state folder. One with a password: by the variable.",
    ),
]
DatabaseUrlFile = Annotated[
    Path | None, typer.Option(help="File of mode 0600 with that URL, which may hold a password.")
]
PriceFile = Annotated[Path | None, typer.Option(help="Own price list instead of the one that comes along.")]
QuotaFile = Annotated[
    Path | None, typer.Option(help="Own quotas and first limits instead of those that come along.")
]
AuditDays = Annotated[
    int | None, typer.Option(min=1, help="Keep audit events for so many days. Default: 365.")
]
HistoryDays = Annotated[
    int | None,
    typer.Option(min=62, help="Keep what bills are computed from for so many days. Default: 400."),
]
CallsPerSecond = Annotated[
    float | None,
    typer.Option(min=0, help="Calls that one account may make, ten times as many at once. Default: 200."),
]
SignInsPerSecond = Annotated[
    float | None,
    typer.Option(min=0, help="Calls without a token from one address, likewise. Default: 50. 0: no limit."),
]
ModelFolder = Annotated[
    list[Path] | None,
    typer.Option(
        help="Folder that models may be served from in place, by every project; may be repeated."
        " Those given replace those of before."
    ),
]
LoginPorts = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST-LAST", help="Ports of loopback for login nodes of Slurm clusters. Default: 2222-2999."
    ),
]
PublicPool = Annotated[
    str | None,
    typer.Option(help="Range of the public addresses of new projects. Default: 198.18.0.0/16."),
]
AllowEgress = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RANGE",
        help="Private range that machines and containers may reach, such as 10.20.0.0/16; may be repeated."
        ' Those given replace those of before; "none" closes all. Default: public addresses only.',
    ),
]
AllowPrivateIssuers = Annotated[
    bool | None,
    typer.Option(
        "--allow-private-issuers/--no-allow-private-issuers",
        help="Whether issuers of federations may have private addresses, or be on this machine. Default: no.",
    ),
]
IssuerHost = Annotated[
    list[str] | None,
    typer.Option(
        help="Host that may serve endpoints of issuers, beside an issuer's own; may be repeated."
        " Those given replace those of before."
    ),
]
Emulator = Annotated[
    bool,
    typer.Option(
        "--emulator",
        help="Run nothing real: the whole API on a pretended machine, for clients' tests. Takes no root.",
    ),
]
EmulatorGpus = Annotated[
    str | None,
    typer.Option(
        help='GPUs of the pretended machine, as "8xH100,2xL40S" or "none". Default: plenty of each type.'
        " Implies --emulator."
    ),
]
