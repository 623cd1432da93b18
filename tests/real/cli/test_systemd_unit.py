"""`neo up --service`: the unit of systemd, with a `systemctl` that only notes how it is called (issue 10)."""

import configparser
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from neocloud.cli.machine import systemd_unit
from neocloud.cli.machine.home import Home
from tests.fast.cli.conftest import Neo
from tests.real.cli.test_machine import FREE_PORTS, machine  # noqa: F401  a fixture

SYSTEMCTL = """#!/bin/sh
echo "$*" >> "{folder}/calls"
test ! -e "{folder}/fails" || {{ echo "Unit is masked." >&2; exit 1; }}
"""


class Systemd:
    """The folders of a systemd, and what `systemctl` was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.units = folder / "units"

    def calls(self) -> list[str]:
        """Return the calls since the last time."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def unit(self) -> configparser.SectionProxy:
        (file,) = self.units.iterdir()
        parser = configparser.RawConfigParser()
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(file.read_text())
        return parser["Service"]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    found = Systemd(tmp_path / "systemd")
    found.units.mkdir(parents=True)
    program = found.folder / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL.format(folder=found.folder))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(systemd_unit, "UNITS", found.units)
    monkeypatch.setattr(systemd_unit, "BOOTED", found.folder)
    return found


def test_the_unit_starts_and_stops_the_cloud_until_it_is_destroyed(
    neo: Neo,
    machine: Path,  # noqa: F811
    systemd: Systemd,
) -> None:
    ran = neo("up", *FREE_PORTS, "--service")
    assert ran.code == 0, ran.err
    (file,) = systemd.units.iterdir()
    assert f"systemd starts this cloud when the machine boots: {file}" in ran.err
    assert systemd.calls() == ["daemon-reload", f"enable --now {file.name}"]
    assert file.stat().st_mode & 0o777 == 0o644
    for key, verb in (("ExecStart", "up"), ("ExecStop", "down")):
        command = shlex.split(systemd.unit()[key])
        assert command == [sys.executable, "-m", "neocloud.cli.main", verb, "--home", str(machine)]
    assert json.loads(neo("status", "--output", "json").out)["service"] == file.name
    assert f"started by systemd ({file.name})" in neo("status").out
    assert neo("up").code == 0
    assert systemd.calls() == [], "the unit is as it should be"
    assert neo("destroy", "--yes").code == 0
    assert systemd.calls() == [f"disable --now {file.name}", "daemon-reload"]
    assert not file.exists()


def test_the_unit_follows_the_release_and_is_removed_without_stopping_the_cloud(
    neo: Neo,
    machine: Path,  # noqa: F811
    systemd: Systemd,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert neo("up", *FREE_PORTS, "--service").code == 0
    systemd.calls()
    (file,) = systemd.units.iterdir()
    file.write_text(file.read_text().replace(sys.executable, "/opt/the-release-before/bin/python"))
    ran = neo("up")
    assert ran.code == 0, ran.err
    assert systemd.calls() == ["daemon-reload"]
    assert shlex.split(systemd.unit()["ExecStart"])[0] == sys.executable
    before = Home(machine).server()
    ran = neo("up", "--no-service")
    assert ran.code == 0 and "it keeps running" in ran.err
    assert systemd.calls() == [f"disable {file.name}", "daemon-reload"]
    assert not file.exists()
    assert before is not None and Home(machine).server() == before


def test_without_systemd_nothing_is_started(
    neo: Neo,
    machine: Path,  # noqa: F811
    systemd: Systemd,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(systemd_unit, "BOOTED", systemd.folder / "not-there")
    ran = neo("up", *FREE_PORTS, "--service")
    assert ran.code == 1 and "systemd is not process 1 of this machine" in ran.err
    assert Home(machine).server() is None
    assert systemd.calls() == []
    ran = neo("up", "--emulator", "--service")
    assert ran.code != 0 and "an emulator is started by hand" in ran.err


def test_what_systemd_refuses_is_said_and_the_cloud_runs(
    neo: Neo,
    machine: Path,  # noqa: F811
    systemd: Systemd,
) -> None:
    (systemd.folder / "fails").touch()
    ran = neo("up", *FREE_PORTS, "--service")
    assert ran.code == 5
    assert "`systemctl daemon-reload` failed: Unit is masked." in ran.err
    assert Home(machine).server() is not None
    (systemd.folder / "fails").unlink()
    assert neo("up", "--service").code == 0, "a second run completes it"
    assert [call.split()[0] for call in systemd.calls()[1:]] == ["daemon-reload", "enable"]


def test_a_folder_cannot_add_lines_or_words_to_the_unit(tmp_path: Path, systemd: Systemd) -> None:
    place = Home(tmp_path / 'a "b" %h $HOME \\ c\nExecStartPre=/bin/false')
    systemd_unit.install_unit(place)
    (file,) = systemd.units.iterdir()
    text = file.read_text()
    assert not [line for line in text.splitlines() if line.startswith("ExecStartPre")]
    escaped = r"""a \"b\" %%h $$HOME \\ c\nExecStartPre=/bin/false"""
    assert f'up --home "{tmp_path}/{escaped}"' in text
    assert f'RequiresMountsFor="{tmp_path}/{escaped.replace("$$", "$")}"' in text
