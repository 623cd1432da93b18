"""`config.json` in the state folder: the settings that the operator chose, and reading them with arguments.

`neo up` writes the file and the server reads it. It holds only what differs from the defaults. A database's
URL with a password lies apart, in `database-url`, since people show their settings to each other. Homes of
earlier versions have `neo.json` instead, which is read until the next `neo up` replaces it.
"""

import argparse
import json
import logging
import operator
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from neocloud.core.osfiles import read_private, write_file
from neocloud.settings.settings import DEFAULT_HOME, Option, Settings, flag, is_list, options

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
EARLIER_FILE = "neo.json"
"""The file that `neo up` of earlier versions wrote."""
URL_FILE = "database-url"
LOCK_FILE = "neo.lock"
"""Held by the command that changes the state folder; the server has a lock of its own."""
WORLD_FILE = "emulated-world"
"""The file that an emulator leaves in its state folder."""
_UNSET_BEFORE: tuple[object, ...] = ("", 0, [], None)
"""In `neo.json`: the default, except for ports and rates."""
_ZERO_COUNTS = (
    "grpc_port",
    "http_port",
    "gateway_port",
    "tls_port",
    "calls_per_second",
    "sign_ins_per_second",
)
MOST_URL_BYTES = 8192
DATABASE_URL_VARIABLE = "NEOCLOUD_DATABASE_URL"


class BadSettings(OSError):
    """The settings of a home cannot be used."""


def read_settings(home: Path) -> Settings:
    """Return what was chosen for this home. Raises BadSettings when the file is damaged; OSError."""
    try:
        chosen = _chosen(home)
        settings = replace(Settings(home=home), **chosen)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadSettings(
            f"{home / CONFIG_FILE} cannot be read: {error}. Fix the file, or restore it."
        ) from error
    if settings.database_url or settings.database_url_file:
        return settings
    try:
        return replace(settings, database_url=(home / URL_FILE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return settings
    except UnicodeDecodeError as error:
        raise BadSettings(
            f"{home / URL_FILE} cannot be read: {error}. Fix the file, or restore it."
        ) from error


def write_settings(settings: Settings) -> None:
    """Write what was chosen, readable by its owner alone, beside keys of other releases. Raises OSError."""
    home, url = settings.home, settings.database_url
    has_secret = has_password(url)
    if has_secret:
        write_file(home / URL_FILE, url, durable=True)
    kept = replace(settings, database_url="") if has_secret else settings
    document = _unknown(home) | _chosen_document(kept)
    write_file(home / CONFIG_FILE, json.dumps(document, indent=2) + "\n", durable=True)
    (home / EARLIER_FILE).unlink(missing_ok=True)
    if not has_secret:
        (home / URL_FILE).unlink(missing_ok=True)


def shown_document(settings: Settings) -> dict[str, Any]:
    """Return what was chosen, as in `config.json`, for others to see: a password is left out."""
    url = "" if settings.database_url_file else url_without_password(settings.database_url)
    return _chosen_document(replace(settings, database_url=url))


def unknown_keys(home: Path) -> list[str]:
    """Return the keys of `config.json` that this release does not know; they are kept and have no effect."""
    return sorted(_unknown(home))


def _unknown(home: Path) -> dict[str, Any]:
    try:
        document = _object(json.loads((home / CONFIG_FILE).read_text()))
    except (OSError, ValueError, RecursionError):
        return {}
    return {name: value for name, value in document.items() if name not in options()}


def _chosen_document(settings: Settings) -> dict[str, Any]:
    return {
        name: _to_json(name, getattr(settings, name))
        for name, (item, _) in options().items()
        if getattr(settings, name) != item.default
    }


def settings_or_defaults(home: Path) -> tuple[Settings, str]:
    """Return the settings of a home and "", or the defaults and why its own cannot be read.

    The defaults are enough to stop a cloud. They have the database's URL where that can be read.
    """
    try:
        return read_settings(home), ""
    except OSError as error:
        defaults, problem = Settings(home=home, emulator=(home / WORLD_FILE).exists()), str(error)
    with suppress(OSError, UnicodeDecodeError):
        defaults = replace(defaults, database_url=(home / URL_FILE).read_text())
    return defaults, problem


def problem_at_stop(home: Path) -> str:
    """Return what keeps the settings of a home, or its database's URL, from being read; "" for nothing."""
    settings, problem = settings_or_defaults(home)
    if not problem and settings.database_url_file is not None:
        try:
            database_url_in_file(str(settings.database_url_file))
        except argparse.ArgumentTypeError as error:
            return f"{error}. Fix the file, or restore it."
    return problem


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[str, Settings]:
    """Return what to do ("serve", "stop" or "destroy"), and the home's settings with the arguments over them.

    The database's URL in the environment comes before the one in the home. Raises OSError.
    """
    parser = _parser()
    values = vars(parser.parse_args(arguments))
    action = values.pop("action", None) or "serve"
    home = values.pop("home", DEFAULT_HOME).expanduser().absolute()
    settings = _settings_for(action, home)
    from_environment = take_database_url()
    if not {"database_url", "database_url_file"} & values.keys() and from_environment:
        values["database_url"] = from_environment
    if "database_url" in values:
        values["database_url_file"] = None
    values = {
        name: tuple(cast(list[object], value)) if isinstance(value, list) else value
        for name, value in values.items()
    }
    settings = replace(settings, **values)
    if settings.database_url_file is not None:
        try:
            settings = replace(settings, database_url=database_url_in_file(str(settings.database_url_file)))
        except argparse.ArgumentTypeError as error:
            if action == "serve":
                parser.error(f"argument --database-url-file: {error}")
            logger.warning("%s. Without it, what stops is not noted in the database.", error)
    return action, settings


def _settings_for(action: str, home: Path) -> Settings:
    """Return the settings of a home. One that is to be stopped or destroyed needs none that can be read."""
    if action == "serve":
        return read_settings(home)
    settings, problem = settings_or_defaults(home)
    if problem:
        logger.warning("%s The defaults are used to %s the workloads.", problem, action)
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.control_plane",
        description="Run Neocloud's control plane in the foreground, as config.json in the state folder says."
        " Options come before what it says.",
        argument_default=argparse.SUPPRESS,
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--stop-workloads", action="store_const", const="stop", dest="action")
    action.add_argument("--destroy-workloads", action="store_const", const="destroy", dest="action")
    parser.add_argument("--home", type=Path, help=f"State folder. Default: {DEFAULT_HOME}.")
    urls = parser.add_mutually_exclusive_group()
    for name, (item, option) in options().items():
        group = urls if name.startswith("database_url") else parser
        text = option.help.replace("%", "%%")
        if option.kind is bool:
            group.add_argument(flag(item), dest=name, action=argparse.BooleanOptionalAction, help=text)
        else:
            parse = without_password if name == "database_url" else option.parse
            action_name = "append" if is_list(item) else "store"
            group.add_argument(
                flag(item), dest=name, action=action_name, type=parse, metavar=option.metavar, help=text
            )
    return parser


def _chosen(home: Path) -> dict[str, Any]:
    known = options()
    with suppress(FileNotFoundError, NotADirectoryError):
        document = _object(json.loads((home / CONFIG_FILE).read_text()))
        return {name: _from_json(*known[name], value) for name, value in document.items() if name in known}
    with suppress(FileNotFoundError, NotADirectoryError):
        document = _of_earlier_version(_object(json.loads((home / EARLIER_FILE).read_text())))
        return {name: _from_json(*known[name], value) for name, value in document.items() if name in known}
    return {}


def _object(document: object) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise ValueError("it holds no JSON object")
    return cast(dict[str, Any], document)


def _of_earlier_version(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was chosen; in `neo.json`, nothing chosen was an empty value."""
    chosen = {
        name: value
        for name, value in document.items()
        if value not in _UNSET_BEFORE or (name in _ZERO_COUNTS and value == 0)
    }
    if document.get("tls_port") == 0:
        chosen["redirector_port"] = 0
    return chosen


def _from_json(item: Field[Any], option: Option, value: Any) -> Any:
    if is_list(item):
        if not isinstance(value, list):
            raise ValueError(f"{item.name} is not a list")
        return tuple(_from_text(item, option, each) for each in cast(list[object], value))
    return _from_text(item, option, value)


def _from_text(item: Field[Any], option: Option, value: Any) -> Any:
    if value is None and item.default is None:
        return None
    is_bool = isinstance(value, bool)
    if is_bool and option.kind is bool:
        return value
    is_number = isinstance(value, (int, float)) and not is_bool and option.kind in (int, float)
    text = json.dumps(value) if is_number else value
    if option.kind is bool or not isinstance(text, str):
        raise ValueError(f"{item.name} cannot be {json.dumps(value)}")
    found = option.parse(text)
    for bound, is_within in ((option.minimum, operator.ge), (option.maximum, operator.le)):
        if bound is not None and not is_within(found, bound):
            raise ValueError(f"{item.name} cannot be {found}")
    return found


def _to_json(name: str, value: Any) -> Any:
    if name == "login_ports":
        return f"{value[0]}-{value[1]}"
    if isinstance(value, tuple):
        return [_to_json("", each) for each in cast(tuple[object, ...], value)]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def take_database_url() -> str:
    """Return the URL of the environment and remove it there: programs that are started later do not inherit
    it."""
    return os.environ.pop(DATABASE_URL_VARIABLE, "")


def without_password(text: str) -> str:
    """Return a database URL of the command line. Every user of the machine can read arguments of
    processes."""
    if text and has_password(text):
        raise argparse.ArgumentTypeError(
            "a password in an argument is shown to all users of this machine; "
            f"put the URL into the variable {DATABASE_URL_VARIABLE} or into a file for --database-url-file"
        )
    return text


def database_url_in_file(text: str) -> str:
    """Return the URL in a file that only its owner can read. Raises ArgumentTypeError."""
    try:
        return read_private(Path(text), MOST_URL_BYTES).strip()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error.strerror or error}") from None


def url_without_password(url: str) -> str:
    """Return a database URL that may be shown, with *** in place of its password."""
    if not url or not has_password(url):
        return url
    try:
        parts = urlsplit(url)
        user, host = parts.username or "", parts.netloc.rpartition("@")[2]
    except ValueError:
        return "***"
    return f"{parts.scheme}://{user}:***@{host}{parts.path}"


def has_password(url: str) -> bool:
    """Return whether the URL holds a password, before the host or as a parameter."""
    try:
        parts = urlsplit(url)
        return parts.password is not None or "password" in parse_qs(parts.query)
    except ValueError:
        return True
