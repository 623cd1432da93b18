"""A command line of `neo` in a forked process does what it would do alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.contract_cache import cache_with_contract
from tests.neo_server import program, start

pytestmark = pytest.mark.slow

ALONE = Path(sys.executable).with_name("neo")


def ran(
    neo: Path, home: Path, *arguments: str, text: str = "", folder: Path = Path("/")
) -> tuple[int, str, str]:
    done = subprocess.run(
        [neo, *arguments],
        input=text,
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_CACHE_HOME": str(cache_with_contract(home / "cache")),
            "NEOCLOUD_HOME": str(home / "cloud"),
            "COLUMNS": "90",
        },
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "slurm cluster list",
        "compute instance create --help",
        "slrum",
        "status -o json",
        "config list",
    ],
)
def test_output_and_exit_code_are_those_of_the_program(tmp_path: Path, words: str) -> None:
    assert ran(program(), tmp_path, *words.split()) == ran(ALONE, tmp_path, *words.split())


def test_a_command_line_has_the_folder_environment_and_input_of_its_caller(tmp_path: Path) -> None:
    signing = ("login", "a@bank.example", "--password-stdin", "--endpoint", "127.0.0.1:1")
    for folder in (tmp_path, Path("/")):
        expected = ran(ALONE, tmp_path, *signing, folder=folder, text="secret\n")
        assert ran(program(), tmp_path, *signing, folder=folder, text="secret\n") == expected
        assert expected[0] != 0


def test_a_reader_that_goes_away_is_no_error() -> None:
    shell = f"{program()} --help | head -1; echo ${{PIPESTATUS[0]}}"
    assert subprocess.check_output(["bash", "-c", shell], text=True).endswith("\n0\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_command_line(tmp_path: Path, number: int) -> None:
    """Nothing of a caller that is killed runs on."""
    server = start(tmp_path)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    waiting = ["login", "a@bank.example", "--password-stdin", "--endpoint", "127.0.0.1:1"]
    with subprocess.Popen([tmp_path / "neo", *waiting], stdin=subprocess.PIPE) as client:
        wait_until(children.read_text)
        client.send_signal(number)
        assert client.wait(30) == -number
        wait_until(lambda: not children.read_text())
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(30) == 0, "it ends with its standard input"
