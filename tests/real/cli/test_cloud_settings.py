"""`neo config list|get|set|unset`, and the options that `neo up` has no more."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import neocloud
from neocloud.cli.commands import up
from neocloud.cli.machine.home import Home
from neocloud.control_plane import state_dir
from neocloud.control_plane.settings_file import (
    parse_arguments,
    read_settings,
    shown_document,
    unknown_keys,
    write_settings,
)
from neocloud.settings.catalogue import AT_FIRST_START, Setting, catalogue, text_of
from neocloud.settings.settings import Settings, flag, options
from tests.fast.cli.conftest import Neo
from tests.real.cli.test_machine import FREE_PORTS, machine

__all__ = ["machine"]
SOURCE = Path(neocloud.__file__).parent
SECRET = "postgresql://neo:hush@db.example.com/neo?sslmode=require"


def kept(home: Path) -> dict[str, object]:
    return json.loads((home / "config.json").read_text())


def listed(neo: Neo, home: Path) -> dict[str, dict[str, object]]:
    ran = neo("config", "list", "--home", str(home), "-o", "json")
    assert ran.code == 0, ran.err
    return {each["name"]: each for each in json.loads(ran.out)}


def test_neo_up_shows_at_most_25_options() -> None:
    command = typer.main.get_command(up.app)
    shown = [each.opts[0] for each in command.params if not getattr(each, "hidden", False)]
    assert len(shown) <= 25
    assert {"--home", "--listen", "--service", "--tls", "--acme-domain", "--database-url-file"} <= {*shown}


def test_no_message_names_an_option_that_neo_up_does_not_show() -> None:
    """Such a setting is changed by `neo config set`; options of programs are not messages."""
    shown = {
        *AT_FIRST_START,
        "host",
        "tls_port",
        "database_url",
    }  # options of other commands, or not in a file
    flags = {flag(item) for name, (item, _) in options().items() if name not in shown}
    hidden = re.compile(rf"({'|'.join(flags)})(?![\w-])")
    found = {
        (path.relative_to(SOURCE).as_posix(), match[0])
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (match := hidden.search(node.value)) and node.value.rstrip("=") != match[0]
    }
    assert found == {("object_gateway/backups/restore.py", "--object-metadata")}  # of `neo storage restore`


def test_every_setting_is_listed_with_its_type_default_and_meaning(neo: Neo, tmp_path: Path) -> None:
    ran = neo("config", "list", "--home", str(tmp_path / "none"))
    assert ran.code == 0 and "these are the defaults" in ran.err
    assert not (tmp_path / "none").exists(), "to read makes no folder"
    found = listed(neo, tmp_path / "none")
    assert found.keys() == catalogue().keys()
    assert found["audit-days"] == {
        "name": "audit-days",
        "value": 365,
        "default": 365,
        "is_default": True,
        "type": "whole number",
        "range": "1 or more",
        "unit": "days",
        "effect": "next start",
        "meaning": "Days to keep audit events. Default: 365.",
    }
    assert all(each["meaning"] and each["type"] for each in found.values())


def test_a_setting_is_set_read_and_set_to_its_default(neo: Neo, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "h"))
    assert neo("config", "set", "audit-days", "90", *home).out == "audit-days: 365 -> 90\n"
    assert kept(tmp_path / "h") == {"audit_days": 90}
    before = (tmp_path / "h" / "config.json").stat().st_mtime_ns
    again = neo("config", "set", "audit_days", "90", *home)
    assert (again.code, again.out) == (0, "audit-days is 90 already; nothing was changed.\n")
    assert (tmp_path / "h" / "config.json").stat().st_mtime_ns == before
    assert neo("config", "get", "audit-days", *home).out == "90\n"
    assert neo("config", "unset", "audit-days", *home).code == 0
    assert kept(tmp_path / "h") == {}


@pytest.mark.parametrize("setting", catalogue().values(), ids=lambda each: each.name)
def test_what_get_prints_of_a_default_can_be_set(setting: Setting) -> None:
    text = text_of(setting.default)
    assert not text or setting.read([text]) == setting.default


def test_a_list_has_several_values_and_none_clears_it(neo: Neo, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "h"))
    neo("config", "set", "media-domain", "a.example.com", "b.example.com", *home)
    assert read_settings(tmp_path / "h").media_domains == ("a.example.com", "b.example.com")
    assert json.loads(neo("config", "get", "media-domain", "-o", "json", *home).out)["value"] == [
        "a.example.com",
        "b.example.com",
    ]
    neo("config", "set", "media-domain", "none", *home)
    assert kept(tmp_path / "h") == {}


def test_what_follows_from_a_setting_is_set_as_by_neo_up(neo: Neo, tmp_path: Path) -> None:
    ran = neo("config", "set", "host", "0.0.0.0", "--home", str(tmp_path / "h"))
    assert "tls-port: unset -> 7372" in ran.out
    ran = neo("config", "set", "grpc-port", "0", "--home", str(tmp_path / "h"))
    assert "gateway-port: 8900 -> 0" in ran.out


WRONG = [
    ("audit-days 9o", "audit-days (whole number, 1 or more, in days) cannot be '9o'", "set audit-days 9`"),
    ("audit-days 0", "1 or more", "set audit-days 1`"),
    ("s3-port 70000", "0 to 65535", "set s3-port 65535`"),
    ("metrics ture", "true or false", "set metrics true`"),
    ("log-level inf", "debug|info|warning", "set log-level info`"),
    ("allow-egress 10.1.2.3/16", "list of", "set allow-egress 10.1.0.0/16`"),
    ("login-ports 1-2", "FIRST-LAST", "2222-2999"),
    ("calls-per-second nan", "number, 0 or more", "neo config list"),
    ("loglevel debug", "no setting 'loglevel'", "nearest is log-level"),
    ("registry_mirors x", "no setting", "nearest is registry-mirror"),
    ("audit-days 1 2", "one value", "Quote"),
    ("emulator true", "cannot be changed", "neo up --help"),
    ("region x", "no setting 'region'", "neo config list"),
]


@pytest.mark.parametrize(("words", "problem", "next_step"), WRONG, ids=[each[0] for each in WRONG])
def test_a_wrong_value_is_refused_and_nothing_is_written(
    neo: Neo, tmp_path: Path, words: str, problem: str, next_step: str
) -> None:
    ran = neo("config", "set", *words.split(), "--home", str(tmp_path / "h"))
    assert ran.code == 2 and problem in ran.err and next_step in ran.err, ran.err
    assert not (tmp_path / "h").exists()


def test_an_emulator_cannot_become_a_real_cloud(neo: Neo, tmp_path: Path) -> None:
    write_settings(Settings(home=tmp_path, emulator=True))
    assert neo("config", "unset", "emulator", "--home", str(tmp_path)).code == 2
    assert read_settings(tmp_path).emulator


def test_a_password_is_neither_taken_as_an_argument_nor_shown(neo: Neo, tmp_path: Path) -> None:
    home = tmp_path / "h"
    ran = neo("config", "set", "database-url", SECRET, "--home", str(home))
    assert ran.code == 2 and "hush" not in ran.err and "NEOCLOUD_DATABASE_URL" in ran.err
    home.mkdir(mode=0o700)
    write_settings(Settings(home=home, database_url=SECRET))
    for words in (("list",), ("list", "-o", "json"), ("get", "database-url"), ("unset", "database-url")):
        ran = neo("config", *words, "--home", str(home))
        assert ran.code == 0 and "hush" not in ran.out + ran.err and "neo:***@db.example.com" in ran.out
    assert read_settings(home).database_url == ""


def test_the_url_of_a_file_is_not_shown_by_the_server(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.touch(0o600)
    file.write_text(SECRET)
    _, settings = parse_arguments(["--home", str(tmp_path / "h"), "--database-url-file", str(file)])
    assert settings.database_url == SECRET
    assert shown_document(settings) == {"database_url_file": str(file)}


def test_a_changed_authority_is_agreed_to_again(neo: Neo, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "h"))
    neo("config", "set", "acme-agree-tos", "true", *home)
    neo("config", "set", "acme-directory", "https://ca.example.com/directory", *home)
    assert not read_settings(tmp_path / "h").acme_agree_tos


def test_many_changes_at_once_lose_nothing(tmp_path: Path) -> None:
    names = ["audit-days", "calls-per-second"]
    code = "import sys; from neocloud.cli.main import run; sys.exit(run(sys.argv[1:]))"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, "config", "set", name, "77", "--home", str(tmp_path / "h")]
        )
        for name in names
    ]
    assert [each.wait(60) for each in started] == [0, 0]
    assert kept(tmp_path / "h") == {name.replace("-", "_"): 77 for name in names}


def test_a_folder_that_another_command_makes_meanwhile_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no settings at the first look, and has them when its files are looked at."""
    place, looks = Home(tmp_path / "h"), [False]
    Home(place.path).create()
    real = Home.is_ours
    monkeypatch.setattr(Home, "is_ours", lambda self: looks.pop() if looks else real(self))
    place.create()
    assert kept(place.path) == {} and not looks


def test_a_change_waits_for_who_changes_the_folder(neo: Neo, tmp_path: Path) -> None:
    place = Home(tmp_path / "h")
    place.create()
    with place.locked(lambda: None):
        code = "import sys; from neocloud.cli.main import run; sys.exit(run(sys.argv[1:]))"
        other = subprocess.Popen(
            [sys.executable, "-c", code, "config", "set", "audit-days", "77", "--home", str(place.path)],
            stderr=subprocess.PIPE,
        )
        assert other.stderr is not None and b"waiting for it" in other.stderr.readline()
        assert kept(place.path) == {}
        place.keep_settings(Settings(home=place.path, history_days=99))
    other.communicate(timeout=60)
    assert other.returncode == 0
    assert kept(place.path) == {"history_days": 99, "audit_days": 77}


def test_a_key_of_another_release_is_named_and_kept(neo: Neo, machine: Path) -> None:
    machine.mkdir(mode=0o700)
    (machine / "config.json").write_text('{"audit_day": 3, "from_later": {"a": [1]}, "audit_days": 30}')
    assert unknown_keys(machine) == ["audit_day", "from_later"]
    ran = neo("up", *FREE_PORTS)
    assert ran.code == 0
    assert (
        "key 'audit_day', which this release does not know; it is kept. Did you mean audit-days?" in ran.err
    )
    assert "key 'from_later', which this release does not know; it is kept." in ran.err
    neo("config", "set", "audit-days", "31")
    assert kept(machine) | {"audit_day": 3, "from_later": {"a": [1]}, "audit_days": 31} == kept(machine)


def test_a_change_takes_effect_at_the_next_start(neo: Neo, machine: Path) -> None:
    neo("up", *FREE_PORTS)
    assert listed(neo, machine)["audit-days"]["effect"] == "now"
    changed = neo("config", "set", "audit-days", "90")
    assert changed.code == 0 and "takes effect when it starts next" in changed.err
    assert listed(neo, machine)["audit-days"]["effect"] == "next start"
    assert listed(neo, machine)["history-days"]["effect"] == "now"
    assert "In effect from the next start on (`neo down`, then `neo up`): audit-days." in neo("up").err
    neo("down")
    assert "In effect from" not in neo("up").err
    assert (
        listed(neo, machine)["audit-days"] | {"value": 90, "effect": "now"}
        == listed(neo, machine)["audit-days"]
    )


def test_the_server_says_which_settings_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_dir, "_announce_to_all", lambda announcement: None)
    settings = Settings(home=tmp_path, audit_days=9, database_url=SECRET)
    state_dir.announce(
        settings, grpc="127.0.0.1:1", http="127.0.0.1:2", credentials={}, tenant_id="t", project_id="p"
    )
    text = settings.server_file.read_text()
    assert "hush" not in text
    assert json.loads(text)["settings"]["audit_days"] == 9


def test_an_option_that_leaves_neo_up_is_stored_and_its_command_named(neo: Neo, machine: Path) -> None:
    ran = neo(
        "up", *FREE_PORTS, "--audit-days", "90", "--media-domain", "a.example.com", "--allow-private-issuers"
    )
    assert ran.code == 0
    assert read_settings(machine).audit_days == 90 and read_settings(machine).allow_private_issuers
    for words in ("audit-days 90", "media-domain a.example.com", "allow-private-issuers true"):
        assert f"use `neo config set {words}`" in ran.err
    assert "--grpc-port is" not in ran.err


def test_the_settings_of_a_cloud_elsewhere_are_not_read_here(signed_in: Neo) -> None:
    ran = signed_in("config", "list")
    assert ran.code == 2 and "neo config profiles" in ran.err
    assert "test" in signed_in("config", "profiles").out
