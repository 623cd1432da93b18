"""The state folder is its owner's alone, and no secret is in arguments or in files for others. H9, M7."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from neocloud.cli.machine import server_process
from neocloud.cli.machine.home import Home
from neocloud.cli.main import run
from neocloud.client.errors import ClientError
from neocloud.control_plane.settings_file import DATABASE_URL_VARIABLE, parse_arguments, read_settings
from neocloud.core.osfiles import OpenFolder, ensure_private
from neocloud.core.store.vault import Vault
from neocloud.emulator.machine import EmulatedWorld
from neocloud.emulator.world_file import WorldFile
from neocloud.engines.manifest import Secret
from neocloud.settings.settings import Settings
from neocloud.testing.emulator import connected, emulator_process
from tests.real.security.test_secrets import MARKER, make_secrets

URL = "postgresql://neocloud:hunter2@db.example/neocloud"


@pytest.fixture
def loose_home(tmp_path: Path) -> Path:
    """Return a folder as earlier releases left one on a disk of its own."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "neo.json").write_text("{}")
    return home


def run_server(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    ports = ["--grpc-port", "0", "--http-port", "0"]
    command = [
        sys.executable,
        "-m",
        "neocloud.control_plane",
        "--emulator",
        "--home",
        str(home),
        *ports,
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_server_refuses_a_home_that_others_may_enter(loose_home: Path) -> None:
    ran = run_server(loose_home)
    assert ran.returncode == 1
    assert ran.stderr.strip().endswith(f"Run: chmod 700 {loose_home}")
    assert [file.name for file in loose_home.iterdir()] == ["neo.json"]


def test_neo_refuses_a_home_that_others_may_enter(loose_home: Path) -> None:
    with pytest.raises(ClientError) as caught:
        Home(loose_home).create()
    assert caught.value.next_step == f"Run: chmod 700 {loose_home}"


def test_the_named_command_fixes_it(loose_home: Path) -> None:
    with pytest.raises(OpenFolder) as caught:
        ensure_private(loose_home)
    subprocess.run(caught.value.next_step.removeprefix("Run: ").split(), check=True)
    Home(loose_home).create()


@pytest.mark.parametrize("mode", [0o710, 0o701, 0o740, 0o770, 0o1777])
def test_any_right_of_others_is_refused(loose_home: Path, mode: int) -> None:
    loose_home.chmod(mode)
    with pytest.raises(OpenFolder, match="is open to other users"):
        ensure_private(loose_home)


def test_an_empty_folder_of_ours_is_closed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    ensure_private(home)
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    try:
        with pytest.raises(OpenFolder, match=f"belongs to user 12345.*chown 0 {tmp_path}"):
            ensure_private(tmp_path)
    finally:
        os.chown(tmp_path, 0, -1)


def test_all_files_of_a_cloud_are_their_owners_alone(tmp_path: Path) -> None:
    """Whatever the mask of who starts it."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    mask = os.umask(0)
    try:
        with emulator_process(home), connected(home) as cloud:
            make_secrets(cloud)
            files = [file for file in home.rglob("*") if file.name != "server.log"]
            open_files = [f"{file.name} {mode:o}" for file in files if (mode := mode_of(file)) & 0o077]
    finally:
        os.umask(mask)
    assert {"state.db", "state.db-wal", "server.json", "credentials.json"} <= {file.name for file in files}
    assert open_files == []


def mode_of(file: Path) -> int:
    """Return 0 for a temporary file that the running server has renamed since."""
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_mode & 0o777
    return 0


def test_no_argument_of_a_pod_holds_a_secret(tmp_path: Path) -> None:
    """The secrets come from tenants, and from the cloud for its own programs."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with emulator_process(home), connected(home) as cloud:
        make_secrets(cloud)
        cluster = {"metadata": {"parent_id": cloud.project_id, "name": "bank"}, "spec": {"node_sets": []}}
        spec = {"node_sets": [{"name": "main", "platform": "cpu-e2", "preset": "2vcpu-8gb", "count": 1}]}
        cloud.client.call("neocloud.slurm.v1.ClusterService/Create", cluster | {"spec": spec})
    world = EmulatedWorld()
    WorldFile(home, Vault((home / "store.key").read_bytes())).read(world)
    secrets = [each for each in world.objects.values() if isinstance(each, Secret)]
    contents = [value for secret in secrets for value in secret.contents.values()]
    words_of_secrets = {word.decode(errors="replace") for content in contents for word in content.split()}
    known = {MARKER, *(word for word in words_of_secrets if len(word) >= 20)}
    containers = [each for pod in world.pods.values() for each in pod.manifest.containers]
    words = [word for each in containers for word in [*each.command, *each.args]]
    assert len(known) > 2 and len(words) > 2
    assert [word for word in words if any(secret in word for secret in known)] == []


# The database's URL


def test_a_password_in_an_argument_is_refused(tmp_path: Path) -> None:
    ran = run_server(tmp_path, "--database-url", URL)
    assert ran.returncode == 2
    assert "put the URL into the variable NEOCLOUD_DATABASE_URL" in ran.stderr
    assert "hunter2" not in ran.stderr
    ran = run_server(tmp_path, "--database-url", "postgresql://db.example/x?user=u&password=hunter2")
    assert ran.returncode == 2


def test_the_url_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_URL_VARIABLE, URL)
    _, settings = parse_arguments([])
    assert settings.database == URL
    assert DATABASE_URL_VARIABLE not in os.environ
    assert "hunter2" not in repr(settings)


def test_the_url_is_read_from_a_file_that_is_its_owners_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "url"
    file.write_text(URL + "\n")
    file.chmod(0o640)
    with pytest.raises(SystemExit):
        parse_arguments(["--database-url-file", str(file)])
    assert f"chmod 600 {file}" in capsys.readouterr().err
    file.chmod(0o600)
    assert parse_arguments(["--database-url-file", str(file)])[1].database == URL


def test_a_url_without_a_password_may_be_an_argument() -> None:
    given = "postgresql://neocloud@db.example/neocloud"
    assert parse_arguments(["--database-url", given])[1] == Settings(database_url=given)


def test_neo_hands_the_url_over_where_others_cannot_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    home.keep_settings(Settings(home=tmp_path, database_url=URL))
    monkeypatch.setenv(DATABASE_URL_VARIABLE, "postgresql://another/one")
    assert "hunter2" not in " ".join(server_process._command(home))
    assert DATABASE_URL_VARIABLE not in server_process._environment()
    assert read_settings(tmp_path).database == URL


def test_what_neo_keeps_is_its_owners_alone(tmp_path: Path) -> None:
    """Also where an earlier release left the file open."""
    home = Home(tmp_path)
    (tmp_path / "neo.json").write_text(json.dumps({"database_url": URL}))
    (tmp_path / "neo.json").chmod(0o644)
    home.keep_settings(home.settings())
    assert not (tmp_path / "neo.json").exists()
    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in (tmp_path / "config.json").read_text()
    assert (tmp_path / "database-url").stat().st_mode & 0o777 == 0o600
    assert home.settings().database_url == URL
    home.keep_settings(replace(home.settings(), database_url="postgresql://neocloud@db.example/neocloud"))
    assert not (tmp_path / "database-url").exists()
    assert home.settings().database_url == "postgresql://neocloud@db.example/neocloud"


def neo_up(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "neocloud.cli.main", "up", "--emulator", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("url", [URL, "postgresql://db.example/x?user=u&password=hunter2"])
def test_neo_up_refuses_a_password_in_an_argument(tmp_path: Path, url: str) -> None:
    """Before it makes anything, and without saying it again."""
    ran = neo_up("--home", str(tmp_path / "home"), "--database-url", url)
    assert ran.returncode and "NEOCLOUD_DATABASE_URL" in ran.stderr and "--database-url-file" in ran.stderr
    assert "hunter2" not in ran.stdout + ran.stderr
    assert not (tmp_path / "home").exists()


def test_neo_up_refuses_a_file_that_others_can_read(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(URL)
    file.chmod(0o644)
    ran = neo_up("--home", str(tmp_path / "home"), "--database-url-file", str(file))
    assert ran.returncode and f"chmod 600 {file}" in ran.stderr
    ran = neo_up("--home", str(tmp_path / "home"), "--database-url-file", str(tmp_path / "none"))
    assert ran.returncode and "cannot read" in ran.stderr and "Traceback" not in ran.stderr


def test_the_last_database_that_was_named_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`neo up` with a file, then with the variable, then without either."""
    file = tmp_path / "url"
    file.write_text(URL)
    file.chmod(0o600)
    kept = []
    monkeypatch.setattr(Home, "locked", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("neocloud.cli.commands.up._make_profile", lambda _: None)
    monkeypatch.setattr("neocloud.cli.commands.up._print_summary", lambda *_, **__: None)

    def start(place: Home, settings: Settings) -> None:
        kept.append(settings)
        place.keep_settings(settings)

    monkeypatch.setattr("neocloud.cli.commands.up._start", start)
    home = ["up", "--home", str(tmp_path / "home")]
    monkeypatch.delenv(DATABASE_URL_VARIABLE, raising=False)
    mask = os.umask(0o077)
    try:
        assert run([*home, "--database-url-file", str(file)]) == 0
        monkeypatch.setenv(DATABASE_URL_VARIABLE, URL)
        assert run(home) == 0
        monkeypatch.delenv(DATABASE_URL_VARIABLE)
        assert run(home) == 0
    finally:
        os.umask(mask)
    assert [(each.database_url, each.database_url_file) for each in kept] == [
        ("", file),
        (URL, None),
        (URL, None),
    ]
