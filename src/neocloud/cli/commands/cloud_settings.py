"""`neo config list|get|set|unset`: the settings of a cloud on this machine, kept in its `config.json`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from neocloud.cli.machine.chosen_settings import check_database, choose, not_in_effect, with_implied
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.machine.public_addresses import check_public_interface
from neocloud.cli.output import Format, JsonObject, OutputOption, say, show, table
from neocloud.cli.target import HomeOption, current_is_remote, home_of
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.control_plane.settings_file import shown_document, url_without_password
from neocloud.core.json_values import is_list
from neocloud.settings.catalogue import BY_NEO_UP, BadValue, Setting, catalogue, changed, find, text_of
from neocloud.settings.settings import Settings

NameArgument = Annotated[str, typer.Argument(help="Name of the setting; `neo config list` shows them.")]
NEXT_START = "next start"


def list_settings(
    context: typer.Context, output: OutputOption = Format.TABLE, home: HomeOption = None
) -> None:
    """List the settings of the cloud on this machine.

    Each has its value, default, type and unit. EFFECT is `now` where the running server uses the value, and
    `next start` where it will, after `neo down` and `neo up`.

    Examples:

      neo config list
      neo config list --output json
    """
    place = _place(context, home)
    if not place.is_ours():
        say(f"There is no cloud in {place.path} yet; these are the defaults.")
    settings, server = place.settings(), place.server()
    found = [_document(each, settings, server) for each in catalogue().values()]
    view = table(
        ["NAME", "VALUE", "DEFAULT", "TYPE", "UNIT", "EFFECT", "MEANING"],
        ([row[name] for name in _COLUMNS] for row in map(_in_words, found)),
        minor=["UNIT", "MEANING"],
    )
    show(output, found, view)


def get(
    context: typer.Context,
    name: NameArgument,
    output: OutputOption = Format.TABLE,
    home: HomeOption = None,
) -> None:
    """Print the value of a setting; json and yaml also say its type, default and meaning.

    Examples:

      neo config get audit-days
      neo config get listen --output json
    """
    place, setting = _place(context, home), _named(name)
    document = _document(setting, place.settings(), place.server())
    if output is Format.TABLE:
        echo(_in_words(document)["value"])
    else:
        show(output, document, table([], []))


def set_setting(
    context: typer.Context,
    name: NameArgument,
    value: Annotated[list[str], typer.Argument(help="Value; a list has several. See `neo config list`.")],
    home: HomeOption = None,
) -> None:
    """Change a setting. It takes effect when the cloud starts next.

    Examples:

      neo config set audit-days 90
      neo config set registry-mirror docker.io=https://registry-1.docker.io
      neo config set log-format json --home /srv/cloud
    """
    setting = _changeable(name)
    try:
        given = {setting.field: setting.read(value)}
    except BadValue as error:
        raise ClientError("INVALID_ARGUMENT", error.problem, error.next_step) from error
    check_database(given, is_argument=True)
    _change(_place(context, home), setting, given)


def unset(context: typer.Context, name: NameArgument, home: HomeOption = None) -> None:
    """Set a setting to its default. It takes effect when the cloud starts next.

    Example:

      neo config unset audit-days
    """
    _change(_place(context, home), _changeable(name), None)


def _place(context: typer.Context, home: Path | None) -> Home:
    if home is None and current_is_remote(context):
        raise ClientError(
            "INVALID_ARGUMENT",
            "The cloud of the current profile runs on another machine, which has its settings",
            "Run this command there. `neo config profiles` lists the profiles of this machine",
        )
    return Home(home_of(context, home))


def _named(name: str) -> Setting:
    try:
        return find(name)
    except BadValue as error:
        raise ClientError("INVALID_ARGUMENT", error.problem, error.next_step) from error


def _changeable(name: str) -> Setting:
    setting = _named(name)
    if setting.field in BY_NEO_UP:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{setting.name} is chosen when a cloud is started first, and cannot be changed",
            "See `neo up --help`",
        )
    return setting


def _change(place: Home, setting: Setting, given: Mapping[str, Any] | None) -> None:
    """Write the value that was given, or the default, under the lock of the folder."""
    place.create()
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        kept = place.settings()
        if given is None:
            after = choose(replace(kept, **{setting.field: setting.default}), {})
        elif given[setting.field] == getattr(kept, setting.field):
            after = kept
        else:
            after = choose(kept, with_implied(given))
            check_public_interface(after, given)
        different = changed(kept, after)
        if different:
            place.keep_settings(after)
        server = place.server()
    if not different:
        echo(f"{setting.name} is {_text(setting, kept) or 'unset'} already; nothing was changed.")
    for each in different:
        echo(f"{each.name}: {_text(each, kept) or 'unset'} -> {_text(each, after) or 'unset'}")
    if different and server is not None:
        say("The cloud is running. This takes effect when it starts next: `neo down`, then `neo up`.")


def _text(setting: Setting, settings: Settings) -> str:
    return url_without_password(text_of(getattr(settings, setting.field)))


def _document(setting: Setting, settings: Settings, server: RunningServer | None) -> JsonObject:
    """Return a setting for programs; a list is a list, and a number a number."""
    chosen = shown_document(settings)
    waits = server is None or server.settings is None or setting.field in not_in_effect(server, settings)
    return {
        "name": setting.name,
        "value": chosen.get(setting.field, _plain(setting.default)),
        "default": _plain(setting.default),
        "is_default": setting.field not in chosen,
        "type": setting.type,
        "range": setting.range,
        "unit": setting.unit,
        "effect": NEXT_START if waits else "now",
        "meaning": setting.option.help,
    }


def _plain(value: object) -> object:
    if value == ():
        return []
    return value if value is None or isinstance(value, (bool, int, float)) else text_of(value)


_COLUMNS = ("name", "value", "default", "type", "unit", "effect", "meaning")


def _in_words(document: JsonObject) -> JsonObject:
    kind = f"{document['type']}, {document['range']}" if document["range"] else document["type"]
    shown = {name: _words(document[name]) for name in ("value", "default")}
    return {**document, **shown, "type": kind}


def _words(value: object) -> str:
    items = value if is_list(value) else [value]
    return " ".join(text_of(each) for each in items)
