"""`neo registry login`: the token goes to the program's standard input, and to nothing else."""

import stat
from pathlib import Path

import pytest

from neocloud.cli.storage import service
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer

PROGRAM = """#!/bin/sh
cat > {folder}/password
echo "$0 $*" > {folder}/command
exit {code}
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH except for what a test writes into it; the registry is at 127.0.0.1:8900."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: str(folder / name) if (folder / name).exists() else None)
    monkeypatch.setattr(service, "issue_key", lambda *_: None)
    monkeypatch.setattr(service, "endpoint_of", lambda *_: "http://127.0.0.1:8900")
    return folder


def write(folder: Path, name: str, code: int = 0) -> None:
    (folder / name).write_text(PROGRAM.format(folder=folder, code=code))
    (folder / name).chmod(stat.S_IRWXU)


def test_one_command_signs_in(signed_in: Neo, cloud: FakeServer, programs: Path) -> None:
    """FI-37: the guide had six."""
    write(programs, "podman")
    ran = signed_in("registry", "login")
    assert ran.code == 0 and "podman is signed in to 127.0.0.1:8900" in ran.err
    command = (programs / "command").read_text().strip()
    assert command.endswith("login --username iam --password-stdin --tls-verify=false 127.0.0.1:8900")
    token = (programs / "password").read_text()
    assert token.startswith("token-") and token not in command + ran.out + ran.err


def test_docker_is_used_where_it_is_named(signed_in: Neo, cloud: FakeServer, programs: Path) -> None:
    write(programs, "podman")
    write(programs, "docker")
    assert signed_in("registry", "login", "--client", "docker").code == 0
    assert "docker login" in (programs / "command").read_text()
    assert "tls-verify" not in (programs / "command").read_text()


@pytest.mark.parametrize(("option", "code"), [((), 3), (("--client", "docker"), 3), (("--client", "rm"), 2)])
def test_no_program_is_said(
    signed_in: Neo, cloud: FakeServer, programs: Path, option: tuple[str, ...], code: int
) -> None:
    ran = signed_in("registry", "login", *option)
    assert ran.code == code and (code == 2 or "neo session token" in ran.err)


def test_a_refused_login_says_how_by_hand(signed_in: Neo, cloud: FakeServer, programs: Path) -> None:
    write(programs, "podman", code=1)
    ran = signed_in("registry", "login")
    assert ran.code == 1 and "neo session token | podman login" in ran.err and "token-" not in ran.err
