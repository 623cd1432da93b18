"""scripts/install-debian-packages: what it installs, and what it says where something is missing."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "install-debian-packages"
LISTED = re.compile(r"^  (\S+) ", re.MULTILINE)


@dataclass
class Machine:
    """A machine on which no package is installed. `release` has the versions that its lists offer."""

    folder: Path
    release: Mapping[str, str]

    def run(self, group: str, *, user: int = 0) -> "subprocess.CompletedProcess[str]":
        programs = {
            "dpkg-query": "exit 1",
            "apt-get": f'echo "$*" >>{self.folder}/calls',
            "apt-cache": f'cat "{self.folder}/release/$2" 2>/dev/null || true',
            "id": f"echo {user}",
        }
        (self.folder / "release").mkdir()
        for name, version in self.release.items():
            policy = f"{name}:\n  Installed: (none)\n  Candidate: {version}\n"
            (self.folder / "release" / name).write_text(policy)
        for name, text in programs.items():
            (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.folder / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{self.folder}:/usr/bin:/bin"}
        return subprocess.run(
            ["bash", SCRIPT, group], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


@cache
def names() -> frozenset[str]:
    done = subprocess.run(["bash", SCRIPT, "list"], capture_output=True, text=True, check=True, timeout=60)
    return frozenset(name.partition(">=")[0] for name in LISTED.findall(done.stdout))


def test_all_that_is_missing_is_installed_without_what_is_merely_recommended(tmp_path: Path) -> None:
    machine = Machine(tmp_path, dict.fromkeys(names(), "9:9"))
    done = machine.run("run")
    assert done.returncode == 0, done.stderr
    update, install = machine.calls
    assert update.split()[-1] == "update"
    _, _, packages = install.partition(" install --no-install-recommends ")
    assert {"podman", "mmdebstrap", "python3-venv"} < {*packages.split()} < names()


@pytest.mark.parametrize(
    ("podman", "code"), [("3.4.4+ds1-1ubuntu1", 1), ("(none)", 1), ("4.3.1+ds1-8", 0), ("5.4.2+ds1-2", 0)]
)
def test_a_release_without_a_new_enough_podman_is_refused_before_anything_is_installed(
    tmp_path: Path, podman: str, code: int
) -> None:
    machine = Machine(tmp_path, {**dict.fromkeys(names(), "1.0"), "podman": podman})
    done = machine.run("run")
    assert done.returncode == code
    assert len(machine.calls) == (1 if code else 2)
    if code:
        assert "do not have: podman>=4.3." in done.stderr and "universe" in done.stderr


def test_without_root_the_command_is_named_and_nothing_is_done(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {})
    done = machine.run("run", user=1000)
    assert done.returncode == 1 and f"sudo bash {SCRIPT} run" in done.stderr
    assert machine.calls == []
