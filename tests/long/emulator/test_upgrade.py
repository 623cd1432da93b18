"""`neo up` of another release on a running cloud: it is replaced, or runs again (issue 10).

Releases are copies of the code with another number; all run the emulator, in processes of their own.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import neocloud
from neocloud.core.child_process import deaths_in
from neocloud.core.contract.cache import proto_root
from neocloud.testing.waiting import wait_until
from tests.contract_cache import cache_with_contract

CODE = Path(neocloud.__file__).parent
OTHERS = [path for path in sys.path if path and Path(path) != CODE.parent]
VERSIONS = CODE / "core" / "store" / "migrations" / "versions"
HEAD = max(each.name.partition("_")[0] for each in VERSIONS.glob("[0-9]*.py"))
"""The newest version of the database."""
MIGRATION = f"""
from alembic import op
revision, down_revision = "9999", "{HEAD}"
def upgrade():
    op.execute("CREATE TABLE things_of_the_new_release (name TEXT)")
"""


class Releases:
    """A cloud, and releases that are installed beside each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "cloud"

    def install(self, version: str, *, name: str = "", fails: bool = False, migrates: bool = False) -> str:
        """Return what a program's import path begins with; what has the name already is replaced."""
        place = self.folder / (name or version)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(CODE, place / "neocloud", ignore=shutil.ignore_patterns("__pycache__"))
        code = place / "neocloud"
        if not (code / "proto").exists():
            shutil.copytree(proto_root(), code / "proto")
        _replace(code / "__init__.py", neocloud.__version__, version)
        if fails:
            opened = "        stack.push_async_callback(store.close)\n"
            broken = f'{opened}        raise SystemExit("This release needs a disk that is not there.")\n'
            _replace(code / "control_plane" / "lifecycle.py", opened, broken)
        if migrates:
            (code / "core" / "store" / "migrations" / "versions" / "9999_things.py").write_text(MIGRATION)
        return str(place)

    def neo(self, release: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "NEOCLOUD_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join([release, *OTHERS]),
        }
        return subprocess.run(
            [sys.executable, "-m", "neocloud.cli.main", *arguments],
            env=environment,
            cwd="/",
            text=True,
            capture_output=True,
            timeout=300,
        )

    def start(self, release: str) -> None:
        """Start the cloud, with one resource in it."""
        started = self.neo(release, "up", "--emulator")
        assert started.returncode == 0, started.stderr
        spec = ("--name", "data", "--type", "NETWORK_SSD", "--size-gibibytes", "1")
        assert self.neo(release, "compute", "filesystem", "create", *spec).returncode == 0

    def server(self) -> dict[str, Any]:
        return json.loads((self.home / "server.json").read_text())

    def supervisor(self) -> int:
        """Return its process id."""
        return int(json.loads((self.home / "supervisor.json").read_text())["pid"])

    def deaths(self) -> int:
        """Return how often the server died since the last `neo up`."""
        return deaths_in(json.loads((self.home / "server-process.json").read_text())).restarts

    def runs(self, release: str) -> bool:
        """Return whether its server answers with the resource, under a supervisor, and no copy is left."""
        found = json.loads(self.neo(release, "compute", "filesystem", "list", "--output", "json").stdout)
        status = json.loads(self.neo(release, "status", "--output", "json").stdout)
        names = [each["metadata"]["name"] for each in found]
        is_tidy = not (self.home / "upgrade").exists()
        return is_tidy and names == ["data"] and status["is_supervised"]

    def revision(self) -> str:
        with closing(sqlite3.connect(self.home / "state.db")) as database:
            return str(database.execute("SELECT version_num FROM alembic_version").fetchone()[0])


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[Releases]:
    cache_with_contract(tmp_path / "cache")
    found = Releases(tmp_path)
    yield found
    ended = found.neo(str(CODE.parent), "destroy", "--yes")
    assert ended.returncode == 0, ended.stderr


def test_a_running_cloud_is_upgraded_or_goes_on_as_it_was(releases: Releases) -> None:
    first, second = releases.install("0.0.8"), releases.install("0.0.9")
    releases.start(first)
    upgraded = releases.neo(second, "up")
    assert upgraded.returncode == 0, upgraded.stderr
    assert "release 0.0.8 was replaced by 0.0.9" in upgraded.stdout
    server = releases.server()
    assert server["version"] == "0.0.9"
    assert releases.runs(second)
    copies = releases.home / "upgrade"
    copies.mkdir(mode=0o700)
    (copies / "0.0.8.db").write_bytes(b"of an upgrade whose `neo up` was killed when the server was ready")
    again = releases.neo(second, "up")
    assert "already running" in again.stdout
    assert releases.server()["pid"] == server["pid"], "the same release changes nothing"
    assert not copies.exists()

    broken = releases.install("9.9.9", fails=True, migrates=True)
    refused = releases.neo(broken, "up")
    assert refused.returncode != 0
    assert "This release needs a disk that is not there" in refused.stderr
    assert "release 0.0.9, as it was, and its server runs again" in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr
    assert (releases.server()["version"], releases.revision()) == ("0.0.9", HEAD)
    assert releases.runs(second)


def test_a_release_comes_back_without_its_supervisor_and_is_replaced_when_it_cannot_start(
    releases: Releases,
) -> None:
    first, broken = releases.install("0.0.9"), releases.install("9.9.9", fails=True)
    releases.start(first)
    os.kill(releases.supervisor(), signal.SIGKILL)
    refused = releases.neo(broken, "up")
    assert refused.returncode == 5
    assert "and its server runs again" in " ".join(refused.stderr.split())
    assert releases.runs(first)

    releases.install("0.0.9", fails=True)
    os.kill(releases.server()["pid"], signal.SIGKILL)
    wait_until(lambda: releases.deaths() > 1, "it dies as it starts", seconds=120)
    newer = releases.install("1.0.0")
    started = releases.neo(newer, "up")
    assert started.returncode == 0, started.stderr
    assert releases.server()["version"] == "1.0.0"
    assert releases.runs(newer)


def test_a_release_that_was_installed_over_another_cannot_bring_it_back(releases: Releases) -> None:
    place = releases.install("0.0.9", name="installed")
    releases.start(place)
    releases.install("9.9.9", name="installed", fails=True, migrates=True)
    refused = releases.neo(place, "up")
    assert refused.returncode != 0
    assert "release 0.0.9 is not installed any more where it ran" in " ".join(refused.stderr.split())
    assert releases.revision() == HEAD
    assert releases.neo(place, "compute", "filesystem", "list").returncode == 5, "no server runs"
    releases.install("0.0.9", name="installed")
    assert releases.neo(place, "up").returncode == 0
    assert releases.runs(place)


def test_an_upgrade_that_a_power_cut_ended_is_undone_by_the_release_before(releases: Releases) -> None:
    """The copy is there, the database is the newer release's already, and no process runs."""
    first, newer = releases.install("0.0.9"), releases.install("9.9.9", migrates=True)
    releases.start(first)
    assert releases.neo(first, "down").returncode == 0
    copies = releases.home / "upgrade"
    copies.mkdir(mode=0o700)
    shutil.copy(releases.home / "state.db", copies / "0.0.9.db")
    with closing(sqlite3.connect(releases.home / "state.db")) as database, database:
        database.execute("CREATE TABLE things_of_the_new_release (name TEXT)")
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    started = releases.neo(first, "up")
    assert started.returncode == 0, started.stderr
    assert "An upgrade was cut off" in started.stderr
    assert releases.revision() == HEAD
    assert releases.runs(first)
    assert releases.neo(first, "down").returncode == 0
    copies.mkdir(mode=0o700)
    shutil.copy(releases.home / "state.db", copies / "0.0.9.db")
    upgraded = releases.neo(newer, "up")
    assert upgraded.returncode == 0, upgraded.stderr
    assert releases.revision() == "9999"
    assert releases.runs(newer)


def _replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, f"{file} has changed"
    file.write_text(text.replace(before, after))
