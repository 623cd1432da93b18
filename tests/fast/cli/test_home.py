"""A state folder: which process is its server, and settings that cannot be read."""

import errno
from pathlib import Path

import pytest

from neocloud.cli.machine.home import Home, emulator_home, is_server_command
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, Profiles, config_file, write_profiles
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


def test_settings_that_cannot_be_read_are_not_taken_for_the_defaults(tmp_path: Path) -> None:
    home = Home(tmp_path / "cloud")
    home.create()
    config = home.path / "config.json"
    for damage in (lambda: config.write_text("{"), lambda: (config.unlink(), config.mkdir())):
        damage()
        with pytest.raises(ClientError, match=r"config\.json cannot be read") as caught:
            home.settings()
        assert caught.value.code == "FAILED_PRECONDITION"
        assert caught.value.next_step.endswith("restore it; `neo destroy` works without it") or (
            "restore it from a copy; `neo destroy`" in caught.value.next_step
        )
    config.rmdir()
    assert home.settings().grpc_port == 7370, "the defaults where nothing was chosen"


def test_settings_of_another_user_are_named(
    tmp_path: Path, user_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "cloud")
    home.create()
    read = Path.read_text

    def refuse(path: Path, *arguments: object, **options: object) -> str:
        if path.name == "config.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(ClientError, match=r"config\.json cannot be read by this user") as caught:
        home.settings()
    assert caught.value.code == "PERMISSION_DENIED"
    write_profiles(
        Profiles().with_profile(Profile("c", "127.0.0.1:1", "c.json", home=str(home.path))), config_file()
    )
    assert emulator_home(None).path != home.path, "an emulator can be started beside it"
