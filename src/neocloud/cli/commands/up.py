"""`neo up`: check the machine, build missing images, start the server, create a profile."""

import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import typer

from neocloud.cli.commands.up_options import (
    AllowEgress,
    AllowPrivateIssuers,
    AuditDays,
    CallsPerSecond,
    DatabaseUrl,
    DatabaseUrlFile,
    Domain,
    Emulator,
    EmulatorGpus,
    GatewayHost,
    GatewayPort,
    GrpcPort,
    HistoryDays,
    Host,
    HttpPort,
    IssuerHost,
    LoginPorts,
    MediaDomain,
    ModelFolder,
    PriceFile,
    PublicPool,
    QuotaFile,
    SignInsPerSecond,
    StateFolder,
    Tls,
    TlsPort,
)
from neocloud.cli.lazy import command_group
from neocloud.cli.machine import images
from neocloud.cli.machine.emulator import NOTHING_REAL, emulator_home
from neocloud.cli.machine.home import Home, Options, RunningServer
from neocloud.cli.machine.requirements import check_machine
from neocloud.cli.machine.server_process import start_server
from neocloud.cli.output import fields_table, print_view, say
from neocloud.cli.progress import stage
from neocloud.cli.target import home_of, profile_name_for, profile_of_home
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, config_file, read_profiles, write_profiles
from neocloud.database_url import in_file, without_password
from neocloud.settings import host_name
from neocloud.settings import media_domain as read_media_domain

app = command_group()

DEFAULT_TLS_PORT = 7372


@app.command()
def up(
    context: typer.Context,
    home: StateFolder = None,
    grpc_port: GrpcPort = None,
    http_port: HttpPort = None,
    gateway_port: GatewayPort = None,
    gateway_host: GatewayHost = None,
    media_domain: MediaDomain = None,
    tls: Tls = None,
    tls_port: TlsPort = None,
    host: Host = None,
    domain: Domain = None,
    database_url: DatabaseUrl = None,
    database_url_file: DatabaseUrlFile = None,
    price_file: PriceFile = None,
    quota_file: QuotaFile = None,
    audit_days: AuditDays = None,
    history_days: HistoryDays = None,
    calls_per_second: CallsPerSecond = None,
    sign_ins_per_second: SignInsPerSecond = None,
    model_folder: ModelFolder = None,
    public_pool: PublicPool = None,
    allow_egress: AllowEgress = None,
    allow_private_issuers: AllowPrivateIssuers = None,
    issuer_host: IssuerHost = None,
    login_ports: LoginPorts = None,
    emulator: Emulator = False,
    emulator_gpus: EmulatorGpus = None,
) -> None:
    """Start the cloud on this machine.

    Builds missing container images (some minutes, once), starts the server and creates a profile, so that
    other commands find it. Run again, it reuses the existing state. Options are kept for the next `neo up`.
    Images of virtual machines are built separately, by `neo image build machine`.

    Examples:

      neo up
      neo up --home /srv/cloud                 # keep the state elsewhere
      neo up --grpc-port 0 --http-port 0       # any free ports
      neo up --emulator                        # for tests: runs nothing real, free ports, temporary folder
    """
    os.umask(0o077)
    database = _database(context, database_url, database_url_file)
    emulator = emulator or emulator_gpus is not None
    place = emulator_home(home) if emulator else Home(home_of(context, home))
    is_first = not place.was_started()
    place.create()
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        options = _options(
            place.options(),
            grpc_port=0 if emulator and is_first and grpc_port is None else grpc_port,
            http_port=0 if emulator and is_first and http_port is None else http_port,
            gateway_port=0 if gateway_port is None and grpc_port == 0 else gateway_port,
            gateway_hosts=_names("--gateway-host", gateway_host, host_name),
            media_domains=_names("--media-domain", media_domain, read_media_domain),
            tls_port=_tls_port(place.options(), tls, tls_port, host),
            host=host,
            domain=domain,
            **database,
            price_file=str(price_file.absolute()) if price_file else None,
            quota_file=str(quota_file.absolute()) if quota_file else None,
            model_folders=tuple(str(folder.resolve()) for folder in model_folder) if model_folder else None,
            audit_days=audit_days,
            history_days=history_days,
            calls_per_second=calls_per_second,
            sign_ins_per_second=sign_ins_per_second,
            public_pool=public_pool,
            opened_ranges=_opened_ranges(allow_egress),
            allow_private_issuers=allow_private_issuers,
            issuer_hosts=tuple(issuer_host) if issuer_host else None,
            login_ports=login_ports,
            emulator=emulator or None,
            emulator_gpus=emulator_gpus,
        )
        server = place.server()
        is_new = server is None
        if server is None:
            server = _start(place, options)
    profile = _make_profile(place)
    _print_summary(place, server, profile, is_new=is_new)


def _tls_port(kept: Options, tls: bool | None, port: int | None, host: str | None) -> int | None:
    """Return the given port, the previous one, or the default; None without TLS."""
    if tls is False:
        if port is not None or host:
            raise ClientError(
                "INVALID_ARGUMENT", "--no-tls cannot be combined with --tls-port or --host", "Drop one"
            )
        return None
    if port is not None:
        return port
    return DEFAULT_TLS_PORT if kept.tls_port is None and (tls or host) else kept.tls_port


def _names(option: str, given: list[str] | None, read: Callable[[str], str]) -> tuple[str, ...] | None:
    """Return what was given for the option; None, which keeps what was given before, when nothing was."""
    if not given:
        return None
    try:
        return tuple(read(text) for text in given if text != "none")
    except ValueError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{option}: {error}", "Write a name as in models.example.com"
        ) from error


def _database(context: typer.Context, url: str | None, file: Path | None) -> dict[str, str]:
    """Return the option that was given, with the other cleared; nothing when neither was."""
    source = context.get_parameter_source("database_url")
    is_argument = source is not None and source.name == "COMMANDLINE"
    try:
        if is_argument and url:
            without_password(url)
        if file:
            in_file(str(file))
    except ArgumentTypeError as error:
        what, _, next_step = str(error).partition("; ")
        option = "--database-url-file" if file else "--database-url"
        raise ClientError(
            "INVALID_ARGUMENT", f"{option}: {what}", next_step or "Name a file of yours with the URL"
        ) from error
    if file and is_argument:
        raise ClientError(
            "INVALID_ARGUMENT", "--database-url cannot be combined with --database-url-file", "Drop one"
        )
    if file:
        return {"database_url": "", "database_url_file": str(file.absolute())}
    return {} if url is None else {"database_url": url, "database_url_file": ""}


def _opened_ranges(given: list[str] | None) -> tuple[str, ...] | None:
    """Return what was given for the option; None, which keeps what was given before, when nothing was."""
    if not given:
        return None
    try:
        return tuple(str(IPv4Network(text)) for text in given if text != "none")
    except ValueError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"--allow-egress: {error}", "Write a range of IPv4 addresses: 10.20.0.0/16"
        ) from error


def _options(kept: Options, *, tls_port: int | None, **given: Any) -> Options:
    """Return the previous options, overridden by those given now."""
    return replace(
        kept, tls_port=tls_port, **{name: value for name, value in given.items() if value is not None}
    )


def _start(place: Home, options: Options) -> RunningServer:
    if not options.emulator:
        check_machine()
        for name in images.image_names():
            with stage(f"Image {name}") as show:
                images.build_image(name, place.path, show)
    with stage("Start the server"):
        server = start_server(place, options)
    # Options are kept only after a successful start: the next `neo up` must not retry a port that is in use.
    place.keep_options(options)
    return server


def _make_profile(place: Home) -> Profile:
    profiles = read_profiles(config_file())
    profile = profile_of_home(place.path, profile_name_for(profiles, place.path))
    write_profiles(profiles.with_profile(profile), config_file())
    return profile


def _print_summary(place: Home, server: RunningServer, profile: Profile, *, is_new: bool) -> None:
    is_emulator = place.options().emulator
    echo("Neocloud is running." if is_new else "Neocloud is already running; nothing was changed.")
    if is_emulator:
        echo(NOTHING_REAL)
    print_view(
        fields_table(
            [
                ("  State", place.path),
                ("  API", f"{server.grpc} (gRPC), http://{server.http.removeprefix('http://')} (JSON)"),
                *(
                    [("  TLS", f"{server.tls} (gRPC), authority {place.authority_file}")]
                    if server.tls
                    else []
                ),
                *([("  OpenAI API", f"http://{server.gateway}/v1")] if server.gateway else []),
                ("  Credentials", place.credentials_file),
                ("  Profile", f"{profile.name} in {_short(config_file())}"),
            ]
        )
    )
    if is_emulator:
        echo(f"Programs that test against it need one variable: export NEOCLOUD_HOME={place.path}")
    elif is_new:
        echo("Next: neo slurm cluster create NAME --workers 2, or neo --help")


def _short(path: Path) -> str:
    """Return the path with ~ for the home directory."""
    user_home = os.path.expanduser("~")
    return str(path).replace(user_home, "~", 1) if str(path).startswith(user_home + "/") else str(path)
