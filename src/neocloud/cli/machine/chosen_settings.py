"""Settings that the operator chooses, by an option of `neo up` or by `neo config set`, and their
consequences.
"""

from argparse import ArgumentTypeError
from collections.abc import Collection, Mapping
from dataclasses import replace
from shlex import quote
from typing import Any

from neocloud.cli.machine.home import Home, RunningServer
from neocloud.client.errors import ClientError
from neocloud.control_plane.settings_file import database_url_in_file, shown_document, without_password
from neocloud.settings.settings import (
    DEFAULT_REDIRECTOR_PORT,
    DEFAULT_TLS_PORT,
    Settings,
    flag,
    is_list,
    options,
)


def with_implied(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given, and that no port is fixed where that of the API is not."""
    free = {"gateway_port": 0, "s3_port": 0} if given.get("grpc_port") == 0 else {}
    return {**free, **given}


def choose(kept: Settings, given: Mapping[str, Any], tls: bool | None = None) -> Settings:
    """Return what was chosen now over what was chosen before. Raises ClientError."""
    chosen = dict(given)
    if "database_url_file" in chosen:
        chosen["database_url"] = ""
    elif "database_url" in chosen:
        chosen["database_url_file"] = None
    if chosen.get("acme_directory", kept.acme_directory) != kept.acme_directory:
        # The agreement was to the terms of the earlier authority.
        chosen = {"acme_agree_tos": False} | chosen
    chosen["tls_port"] = port = _tls_port(replace(kept, **chosen), kept, tls, chosen.get("tls_port"))
    # Where the port is any that is free, the others must be, too.
    chosen["redirector_port"] = 0 if port == 0 else kept.redirector_port or DEFAULT_REDIRECTOR_PORT
    if port == 0 and kept.tls_port is None:
        chosen = {"https_port": 0, "gateway_tls_port": 0, "s3_tls_port": 0} | chosen
    return replace(kept, **chosen)


def parse_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options of `neo up`. Raises ClientError."""
    return {name: _parsed(name, value) for name, value in given.items()}


def _parsed(name: str, value: Any) -> Any:
    item, option = options()[name]
    if option.kind is bool:
        return value
    try:
        if is_list(item):
            return tuple(option.parse(str(each)) for each in value if not (option.clears and each == "none"))
        return option.parse(str(value))
    except ValueError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{flag(item)}: {error}", option.example or "See neo up --help"
        ) from error


def _tls_port(chosen: Settings, kept: Settings, tls: bool | None, port: int | None) -> int | None:
    """Return the port that was chosen now or before, or the usual one; None for no TLS."""
    is_host_new = chosen.host != kept.host
    if tls is False:
        if port is not None or is_host_new:
            raise ClientError(
                "INVALID_ARGUMENT", "--no-tls cannot be combined with --tls-port or --host", "Drop one"
            )
        if chosen.listen:
            raise ClientError(
                "INVALID_ARGUMENT",
                f"The cloud listens for other machines ({', '.join(chosen.listen)}), and plain text is"
                " served on loopback only",
                "Drop --no-tls, or add --listen none",
            )
        return None
    if port is not None:
        return port
    if kept.tls_port is None and (tls or is_host_new or chosen.listen or chosen.tls_certificate):
        return DEFAULT_TLS_PORT if chosen.grpc_port else 0
    return kept.tls_port


def check_database(given: Mapping[str, Any], *, is_argument: bool) -> None:
    """Refuse a password in an argument, and a file that others can read."""
    url, file = given.get("database_url"), given.get("database_url_file")
    try:
        if is_argument and url:
            without_password(url)
        if file:
            database_url_in_file(str(file))
    except ArgumentTypeError as error:
        what, _, next_step = str(error).partition("; ")
        option = "--database-url-file" if file else "--database-url"
        raise ClientError(
            "INVALID_ARGUMENT", f"{option}: {what}", next_step or "Name a file of yours with the URL"
        ) from error
    if file and is_argument and url is not None:
        raise ClientError(
            "INVALID_ARGUMENT", "--database-url cannot be combined with --database-url-file", "Drop one"
        )


def refuse_changes(place: Home, settings: Settings, given: Collection[str]) -> None:
    """Refuse given options that differ from those which the running server was started with."""
    kept = place.settings()
    names = {
        name: flag(item)
        for name, (item, _) in options().items()
        if name in given and getattr(settings, name) != getattr(kept, name)
    }
    if "tls_port" in names and None in (settings.tls_port, kept.tls_port):
        names["tls_port"] = "--no-tls" if settings.tls_port is None else "--tls"
    if not names:
        return
    raise ClientError(
        "FAILED_PRECONDITION",
        f"The cloud in {place.path} is running, and {', '.join(names.values())}"
        f" {'takes' if len(names) == 1 else 'take'} effect only when it starts. Nothing was changed",
        f"Stop it with `neo down --home {quote(str(place.path))}`, which interrupts what runs in it,"
        " then repeat this command",
    )


def not_in_effect(server: RunningServer | None, settings: Settings) -> set[str]:
    """Return the fields that the running server will have from its next start on."""
    if server is None or server.settings is None:
        return set()
    now, chosen = server.settings, shown_document(settings)
    return {name for name in options() if now.get(name) != chosen.get(name)}
