"""`neo` as another Unix account of this machine: not root, with a home and no program of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.contract_cache import cache_with_contract

NOBODY = 65534
Neo = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """All that the person may write to; the contract is in their cache already."""
    made = Path(tempfile.mkdtemp(prefix="neocloud-test-"))
    cache_with_contract(made / "cache")
    if os.geteuid() == 0:
        for path in (made, *made.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def second_account(folder: Path) -> Neo:
    """Return a function that runs `neo`; `given` is its standard input, other options its environment."""
    environment = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PATH": "",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    as_nobody = _as_nobody()
    interpreter = _interpreter_for(as_nobody, environment)

    def call(*arguments: str, given: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*as_nobody, interpreter, "-m", "neocloud.cli.main", *arguments],
            env={**environment, **more},
            cwd="/",
            input=given,
            text=True,
            capture_output=True,
            timeout=300,
            check=False,
        )

    return call


def _as_nobody() -> list[str]:
    """The words before a command that take root's rights away (not `user=`: see test_child_processes.py).

    setpriv still has root's capabilities when it executes the next program, so it reaches closed folders; env
    has none left.
    """
    if os.geteuid() != 0:
        return []
    setpriv, env = shutil.which("setpriv"), shutil.which("env")
    assert setpriv and env, "Install util-linux and coreutils."
    return [setpriv, "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", env]


def _interpreter_for(as_user: list[str], environment: dict[str, str]) -> str:
    """Return this interpreter, or the system's of the same version where this one lies in a folder closed to
    others. Skips the test where that user cannot read Neocloud's code."""
    major, minor = sys.version_info[:2]
    said = ""
    for candidate in (sys.executable, f"/usr/bin/python{major}.{minor}"):
        command = [*as_user, candidate, "-c", "import neocloud"]
        try:
            subprocess.run(command, env=environment, cwd="/", check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().rpartition("\n")[2]
            continue
        return candidate
    clone = ROOT
    pytest.skip(f"a user who is not root cannot read {clone}, or run a Python {major}.{minor}: {said}")
