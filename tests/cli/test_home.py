"""Which process is the server of a state folder."""

from pathlib import Path

import pytest

from neocloud.cli.machine.home import is_server_command
from neocloud.control_plane.server_supervisor import supervisor_command

SERVER = ["python", "-m", "neocloud.control_plane"]


def test_a_server_of_this_folder_is_recognised(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    assert is_server_command([*SERVER, "--home", str(home), ""], home, Path("/"))
    assert is_server_command([*SERVER, "--emulator", f"--home={home}", ""], home, Path("/"))
    assert is_server_command([*SERVER, "--home", "home"], home, tmp_path)
    assert is_server_command([*SERVER, "--home", str(tmp_path / "link")], home, Path("/"))
    assert is_server_command([*SERVER, ""], home, Path("/"))
    assert is_server_command(["python", "-m", "neocloud.app", "--home", str(home)], home, Path("/"))


@pytest.mark.parametrize(
    "arguments",
    [
        [*SERVER, "--home", "/somewhere/else"],
        [*SERVER, "--home=/somewhere/else"],
        supervisor_command(Path("/home"), [*SERVER, "--home", "/home"]),
        ["less", "neocloud.control_plane"],
        ["python", "-m"],
        [""],
    ],
)
def test_another_process_is_not_taken_for_the_server(arguments: list[str], tmp_path: Path) -> None:
    assert not is_server_command(arguments, tmp_path, Path("/"))
