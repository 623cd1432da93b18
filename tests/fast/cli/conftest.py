import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from neocloud.cli.lazy import LazyGroup
from neocloud.cli.main import app as neo_app
from neocloud.cli.main import run
from neocloud.client.profiles import Profile, Profiles, config_file, write_profiles
from neocloud.core import contract
from tests.fast.cli.fake_control_plane import PROJECT, TENANT, FakeServer, running_server


@dataclass(frozen=True)
class Ran:
    """The result of a command line."""

    code: int
    out: str
    err: str


Neo = Callable[..., Ran]


@pytest.fixture(scope="session")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@pytest.fixture
def user_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without any configuration: no profile, no keys, no environment."""
    for variable in ("NEOCLOUD_HOME", "NEOCLOUD_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    # The contract need not be built again by each process; `neo destroy` removes this folder.
    cache = tmp_path / "cache" / "neocloud"
    cache.mkdir(parents=True)
    (cache / contract.cache_path().name).symlink_to(contract.cache_path())
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("neocloud.client.connection.token_folder", lambda: tmp_path / "tokens")
    monkeypatch.setattr("neocloud.cli.target.DEFAULT_HOME", tmp_path / "state")
    return tmp_path


@pytest.fixture
def closed_home(user_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a cloud that another user started; root, who runs tests, is refused nothing."""
    home = user_folders / "state"
    home.mkdir(mode=0o700)
    stat = os.stat

    def refuse(path: int | str | Path, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, (str, Path)) and home in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    return home


@pytest.fixture
def credentials_file(tmp_path: Path, private_key: str) -> Path:
    file = tmp_path / "credentials.json"
    subject = {
        "alg": "RS256",
        "private-key": private_key,
        "kid": "publickey-e00k",
        "iss": "s",
        "sub": "serviceaccount-e00s",
    }
    file.write_text(json.dumps({"subject-credentials": subject}))
    return file


@pytest.fixture
def cloud() -> Iterator[FakeServer]:
    with running_server() as started:
        yield started


_built: dict[object, Any] = {}


def build_once(app: typer.Typer, build: Callable[[typer.Typer], Any] = typer.main.get_command) -> Any:
    """Build the tree of `neo` once in this process, and not for each of thousands of command lines."""
    if app is not neo_app:
        return build(app)
    if app not in _built:
        _built[app] = build(app)
    return _built[app]


def load_once(group: LazyGroup, name: str, load: Callable[[LazyGroup, str], None] = LazyGroup.load) -> None:
    if (group, name) not in _built:
        load(group, name)
        _built[group, name] = group.commands[name]


@pytest.fixture
def neo(
    user_folders: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Neo]:
    """Run a command line in this process, whose umask `neo up` changes."""
    monkeypatch.setattr(LazyGroup, "load", load_once)
    monkeypatch.setattr("typer.main.get_command", build_once)

    def call(*arguments: str) -> Ran:
        capfdbinary.readouterr()
        code = run(arguments)
        captured = capfdbinary.readouterr()
        return Ran(code, captured.out.decode(errors="replace"), captured.err.decode())

    mask = os.umask(0o022)
    yield call
    os.umask(mask)


@pytest.fixture
def signed_in(neo: Neo, cloud: FakeServer, credentials_file: Path) -> Neo:
    """Somebody with a profile for the cloud."""
    profile = Profile("test", cloud.endpoint, str(credentials_file), tenant_id=TENANT, project_id=PROJECT)
    write_profiles(Profiles().with_profile(profile), config_file())
    return neo


NEO = (sys.executable, "-m", "neocloud.cli.main")


def in_own_process(*words: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own, as the output of the agent's program is not this one's."""
    return subprocess.run([*NEO, *words], capture_output=True, text=True, check=False, timeout=120)
