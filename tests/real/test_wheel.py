"""`pip install neocloud` alone: a wheel of this tree, installed by itself, has all that `neo up` takes.

Its dependencies come from this environment. Every process of it records which files it opens.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.contract_cache import cache_with_contract

LIBRARIES = sysconfig.get_path("purelib")
RECORDER = """
import os, sys
def record(event, arguments, root={root!r}, libraries={libraries!r}, log={log!r}):
    if event == "open" and isinstance(arguments[0], str):
        path = os.path.realpath(arguments[0])
        if path.startswith(root) and not path.startswith(libraries):
            with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
                file.write(path + "\\n")
sys.addaudithook(record)
"""
NEEDED = """
import json
from neocloud.cli.machine import images
from neocloud.core.contract.cache import proto_root
print(json.dumps([str(path) for path in (images._recipes(), proto_root())]))
"""

ON_A_BARE_MACHINE = """
import sys
from neocloud.cli.machine import server_process
from neocloud.cli.main import run
server_process._TOOL_FOLDERS = "/nowhere"
sys.exit(run(sys.argv[1:]))
"""


class Installed:
    """A virtual environment with Neocloud's wheel, and a home of its user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        (self.packages,) = (folder / "venv").glob("lib/python3*/site-packages")
        self.opened = folder / "opened"
        self.environment = {
            "HOME": str(folder),
            "PATH": f"{self.python.parent}:/usr/bin:/bin",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def run(self, *command: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(word) for word in command],
            cwd="/",
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def neo(self, *arguments: str | Path, **variables: str) -> str:
        ran = self.run(self.python.with_name("neo"), *arguments, **variables)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    installed = Installed(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(installed.python), "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--no-compile", str(wheel)], check=True, cwd="/")
    recorder = RECORDER.format(
        root=f"{ROOT}/", libraries=f"{os.path.realpath(LIBRARIES)}/", log=str(installed.opened)
    )
    (installed.packages / "record_opened_files.py").write_text(recorder)
    (installed.packages / "of_the_test.pth").write_text(f"import record_opened_files\n{LIBRARIES}\n")
    cache_with_contract(folder / "cache")
    yield installed
    assert not installed.opened.exists(), f"opened in the source tree: {installed.opened.read_text()}"


def test_the_recorder_records(installed: Installed) -> None:
    done = installed.run(installed.python, "-c", f"open({str(ROOT / 'README.md')!r})")
    assert done.returncode == 0, done.stderr
    assert installed.opened.read_text() == f"{ROOT / 'README.md'}\n"
    installed.opened.unlink()


def test_an_emulator_starts_answers_and_is_destroyed(installed: Installed) -> None:
    assert "Usage" in installed.neo("--help")
    home = installed.folder / "cloud"
    installed.neo("up", "--emulator", "--home", home)
    try:
        projects = json.loads(installed.neo("iam", "project", "list", "--output", "json"))
        assert [project["metadata"]["name"] for project in projects]
    finally:
        installed.neo("destroy", "--yes", "--home", home)
    assert not home.exists()


def test_what_a_real_cloud_takes_is_in_the_package(installed: Installed) -> None:
    ran = installed.run(installed.python, "-c", NEEDED)
    package = installed.packages / "neocloud"
    assert json.loads(ran.stdout) == [str(package / name) for name in ("images", "proto")]
    assert (package / "recipes" / "tuning_job.py").is_file()
    builds = {build.parent.name: build for build in package.glob("images/*/build")}
    assert builds.keys() == {"all-minilm-l6-v2", "jail", "launcher", "machine", "metrics", "slurm", "smollm2"}
    for build in builds.values():
        checked = installed.run(installed.python, build, "--check", "--output", installed.folder / "none")
        assert (checked.returncode, checked.stderr) == (1, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, `neo up` says that first")
def test_on_a_bare_machine_up_names_the_command_that_installs_all(installed: Installed) -> None:
    home = installed.folder / "refused"
    ran = installed.run(installed.python, "-c", ON_A_BARE_MACHINE, "up", "--home", home, PATH="/nowhere")
    assert ran.returncode == 1
    named = re.search(r"`bash (\S+) run`", " ".join(ran.stderr.split()))
    assert named and Path(named[1]).is_relative_to(installed.packages), ran.stderr
    listed = installed.run("bash", named[1], "list")
    assert listed.returncode == 0 and "podman" in listed.stdout
