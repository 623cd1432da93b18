"""`neo up`: check the machine, build missing images, start the server, create a profile."""

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from neocloud import __version__
from neocloud.cli.lazy import command_group, take
from neocloud.cli.machine import images
from neocloud.cli.machine.chosen_settings import (
    check_database,
    choose,
    not_in_effect,
    parse_given,
    refuse_changes,
    with_implied,
)
from neocloud.cli.machine.entrance import entrance_rows, has_own_authority
from neocloud.cli.machine.home import NOTHING_REAL, Home, RunningServer, emulator_home
from neocloud.cli.machine.public_addresses import check_public_interface
from neocloud.cli.machine.public_certificate import check_public_certificate, wait_for_certificate
from neocloud.cli.machine.server_process import check_machine, keep_supervised, start_server, stop_server
from neocloud.cli.machine.systemd_unit import check_systemd, install_unit, remove_unit, unit_file, update_unit
from neocloud.cli.machine.upgrade import prepare_start, remove_copies, upgrade
from neocloud.cli.output import fields_table, print_view, say
from neocloud.cli.progress import stage
from neocloud.cli.target import home_of, profile_name_for, profile_of_home
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, config_file, read_profiles, write_profiles
from neocloud.control_plane.settings_file import (
    CONFIG_FILE,
    DATABASE_URL_VARIABLE,
    unknown_keys,
    url_without_password,
)
from neocloud.core.json_values import as_list
from neocloud.settings.catalogue import AT_FIRST_START, catalogue, nearest_name, text_of
from neocloud.settings.settings import Settings, flag, is_list, options

app = command_group()


def up(
    context: typer.Context, home: Path | None, service: bool | None, tls: bool | None, **given: Any
) -> None:
    """Start the cloud on this machine.

    Builds missing container images (some minutes, once), starts the server and creates a profile, so that
    other commands find it. Run again, it reuses the existing state. Options are kept for the next `neo up`;
    a running cloud refuses other ones than it was started with.
    A running server of another release is replaced by this one, and runs again if this one does not start;
    workloads of the cloud keep running meanwhile.
    Images of virtual machines are built separately, by `neo image build machine`.

    Less frequent settings have no option here: `neo config list` shows them, `neo config set` changes them.

    Examples:

      neo up
      neo up --home /srv/cloud                 # keep the state elsewhere
      neo up --grpc-port 0 --http-port 0       # any free ports
      neo up --listen 192.0.2.7                # for other machines too, over TLS
      neo up --listen all --acme-domain cloud.example.com --acme-agree-tos   # Let's Encrypt's certificate
      neo up --service                         # again whenever this machine boots, by systemd
      neo up --emulator                        # for tests: runs nothing real, free ports, temporary folder
    """
    os.umask(0o077)
    given = {name: value for name, value in given.items() if value is not None and value != []}
    if not given["emulator"]:
        del given["emulator"]
    _check_database(context, given)
    _name_moved_options(context, home, given)
    is_emulator = bool(given.get("emulator")) or "emulator_gpus" in given
    place = emulator_home(home) if is_emulator else Home(home_of(context, home))
    if service:
        _check_service(is_emulator or place.settings().emulator)
    is_first = not place.was_started()
    place.create()
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        given = _with_implied(given, is_emulator=is_emulator, is_first=is_first)
        settings = choose(place.settings(), parse_given(given), tls)
        _name_unknown_keys(place)
        check_public_certificate(settings, place.settings(), given)
        server, is_new, replaced = _run(place, settings, given, tls)
    _keep_service(place, service)
    profile = _make_profile(place)
    if is_new and settings.acme_domains:
        wait_for_certificate(settings, server, profile)
    _print_summary(place, server, profile, is_new=is_new, replaced=replaced)
    waiting = not_in_effect(place.server(), place.settings())
    if names := [each.name for each in catalogue().values() if each.field in waiting]:
        say(f"In effect from the next start on (`neo down`, then `neo up`): {', '.join(names)}.")
    if is_new and not is_first and not settings.emulator:
        echo("What ran here before comes back by itself, which takes minutes for a model: neo ps shows it.")


def _run(
    place: Home, settings: Settings, given: Mapping[str, Any], tls: bool | None
) -> tuple[RunningServer, bool, str]:
    """Return the server, which runs then; whether it was started, and the release that it replaced, or ""."""
    server = place.server()
    if server is None:
        if "acme_domains" in given:  # somebody has looked at why the last order failed
            settings.acme_failures_file.unlink(missing_ok=True)
        check_public_interface(settings, given)
        return _start(place, settings), True, ""
    refuse_changes(place, settings, given if tls is None else {*given, "tls_port"})
    if server.version != __version__:
        _prepare_machine(place, settings)
        return upgrade(place, server), False, server.version
    _keep_running(place)
    return server, False, ""


def _with_implied(given: dict[str, Any], *, is_emulator: bool, is_first: bool) -> dict[str, Any]:
    """Return what was given, with what follows from it: a new emulator has free ports, and no port is fixed
    where that of the API is not."""
    if is_emulator:
        given = {**given, "emulator": True}
    if is_emulator and is_first:
        given = {"grpc_port": 0, "http_port": 0} | given
    return with_implied(given)


def _check_database(context: typer.Context, given: Mapping[str, Any]) -> None:
    check_database(given, is_argument=_is_on_command_line(context, "database_url"))


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _name_moved_options(context: typer.Context, home: Path | None, given: Mapping[str, Any]) -> None:
    """Name the command that replaces each option that `neo up` has in this release for the last time."""
    where = f" --home {quote(str(home))}" if home and _is_on_command_line(context, "home") else ""
    for setting in catalogue().values():
        if setting.field in AT_FIRST_START or not _is_on_command_line(context, setting.field):
            continue
        value = given.get(setting.field, "")
        words = [text_of(each) for each in as_list(value) or [value]]
        shown = " ".join(quote(url_without_password(each)) for each in words)
        say(
            f"--{setting.name} is an option of `neo up` in this release for the last time:"
            f" use `neo config set{where} {setting.name} {shown}`."
        )


def _name_unknown_keys(place: Home) -> None:
    for key in unknown_keys(place.path):
        near = nearest_name(key)
        meant = f" Did you mean {near}?" if near else ""
        say(f"{CONFIG_FILE} has the key {key!r}, which this release does not know; it is kept.{meant}")


def _keep_running(place: Home) -> None:
    remove_copies(place)  # of an upgrade that ended without its `neo up`
    if keep_supervised(place):
        say("The server's supervisor had died; another one watches the server now.")


def _parameters() -> dict[str, tuple[Any, Any]]:
    """Return the parameters of `neo up`, most of them from the fields of Settings."""
    state_folder = typer.Option(envvar="NEOCLOUD_HOME", help="State folder. Default: /var/lib/neocloud.")
    tls = typer.Option(
        "--tls/--no-tls",
        help="Also serve the API over TLS, with the cloud's own certificate authority.",
        show_default=False,
    )
    service = typer.Option(
        "--service/--no-service",
        help="Also start the cloud when this machine boots, and stop it in order when it shuts down: installs"
        " a unit of systemd, or removes it.",
        show_default=False,
    )
    found: dict[str, tuple[Any, Any]] = {
        "context": (typer.Context, inspect.Parameter.empty),
        "home": (Annotated[Path | None, state_folder], None),
        "service": (Annotated[bool | None, service], None),
    }
    for name, (item, option) in options().items():
        if not option.by_neo:
            continue
        if name == "tls_port":
            found["tls"] = Annotated[bool | None, tls], None
        names = [flag(item)]
        if option.kind is bool and name != "emulator":
            names = [f"{flag(item)}/--no-{flag(item).removeprefix('--')}"]
        info = typer.Option(
            *names,
            help=option.help,
            metavar=option.metavar,
            min=option.minimum,
            max=option.maximum,
            hidden=name not in AT_FIRST_START,
            envvar=DATABASE_URL_VARIABLE if name == "database_url" else None,
        )
        kind: Any = list[option.kind] | None if is_list(item) else option.kind | None
        found[name] = (Annotated[bool, info], False) if name == "emulator" else (Annotated[kind, info], None)
    return found


take(up, _parameters())
app.command()(up)


def _check_service(is_emulator: bool) -> None:
    if is_emulator:
        raise ClientError(
            "INVALID_ARGUMENT", "--service is for a real cloud; an emulator is started by hand", "Drop it"
        )
    check_systemd()


def _keep_service(place: Home, service: bool | None) -> None:
    """Install or remove the unit of systemd, or let one that is there start this release."""
    if service:
        with stage("Install the unit of systemd"):
            install_unit(place)
        say(f"systemd starts this cloud when the machine boots: {unit_file(place)}")
    elif service is False and remove_unit(place):
        say("systemd does not start this cloud any more; it keeps running.")
    elif update_unit(place):
        say(f"The unit of systemd starts release {__version__} from now on: {unit_file(place)}")


def _prepare_machine(place: Home, settings: Settings) -> None:
    if settings.emulator:
        return
    check_machine()
    names = images.image_names()
    with stage(f"Images {' and '.join(names)}") as show:
        images.build_images(names, place.path, show)


def _start(place: Home, settings: Settings) -> RunningServer:
    _prepare_machine(place, settings)
    # An emulator that did not start must not become a real cloud with the next `neo up`.
    kept = replace(place.settings(), emulator=settings.emulator)
    if settings != place.settings():
        stop_server(place)  # it may be about to be started again, with the options of before
    place.keep_settings(settings)
    try:
        if prepare_start(place):
            say(f"An upgrade was cut off; the database is again that of release {__version__}.")
        with stage("Start the server"):
            started = start_server(place)
        remove_copies(place)
        return started
    except BaseException:
        # A port that was taken must not be tried again by the next `neo up`.
        place.keep_settings(kept)
        raise


def _make_profile(place: Home) -> Profile:
    profiles = read_profiles(config_file())
    profile = profile_of_home(place.path, profile_name_for(profiles, place.path))
    write_profiles(profiles.with_profile(profile), config_file())
    return profile


def _print_summary(
    place: Home, server: RunningServer, profile: Profile, *, is_new: bool, replaced: str
) -> None:
    """`replaced`: the release that ran before; empty when there was no upgrade."""
    is_emulator = place.settings().emulator
    if replaced:
        echo(f"Neocloud is running: release {replaced} was replaced by {__version__}.")
    else:
        echo("Neocloud is running." if is_new else "Neocloud is already running; nothing was changed.")
    if is_emulator:
        echo(NOTHING_REAL)
    print_view(
        fields_table(
            [
                ("  State", place.path),
                ("  API", f"{server.grpc} (gRPC), http://{server.http.removeprefix('http://')} (JSON)"),
                *([("  TLS", f"{server.tls} (gRPC){_authority(place)}")] if server.tls else []),
                *([("  OpenAI API", f"http://{server.gateway}/v1")] if server.gateway else []),
                *([("  Object storage", f"http://{server.s3}")] if server.s3 else []),
                *((f"  {name}", value) for name, value in entrance_rows(place, server)),
                ("  Credentials", place.credentials_file),
                ("  Profile", f"{profile.name} in {_short(config_file())}"),
            ]
        )
    )
    if is_emulator:
        echo(f"Programs that test against it need one variable: export NEOCLOUD_HOME={place.path}")
    elif is_new:
        echo("Next: neo slurm cluster create NAME --workers 2, or neo --help")


def _authority(place: Home) -> str:
    """Return which file clients have to trust; nothing where another authority signed the certificate."""
    return f", authority {place.authority_file}" if has_own_authority(place) else ""


def _short(path: Path) -> str:
    """Return the path with ~ for the home directory."""
    user_home = os.path.expanduser("~")
    return str(path).replace(user_home, "~", 1) if str(path).startswith(user_home + "/") else str(path)
