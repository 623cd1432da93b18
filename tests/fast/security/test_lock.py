"""The installed packages are those that requirements.lock names, file by file."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import locked
from tests import ROOT

CLIENTS = ROOT / "tests" / "client_pins"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NO_PROGRAMS = (".md", ".conf")
EXTRAS = {
    "server": (),
    "test": ("train", "test"),
    "jail": ("train", "serve"),
    "jail-gpu": ("train", "serve-gpu"),
}


@pytest.mark.parametrize("group", EXTRAS)
def test_a_group_has_all_that_its_extras_ask_for_at_a_version_they_allow(group: str) -> None:
    pinned = {canonicalize_name(entry.name): entry.version for entry in locked.of_groups(group)}
    base = PROJECT["dependencies"] if group in ("server", "test") else []
    asked = [*base, *(one for extra in EXTRAS[group] for one in PROJECT["optional-dependencies"][extra])]
    wanted = [Requirement(text) for text in asked]
    wrong = [str(one) for one in wanted if pinned.get(canonicalize_name(one.name), "") not in one.specifier]
    assert not wrong


def test_every_package_of_the_lock_has_hashes() -> None:
    entries = [entry for group in locked.GROUPS for entry in locked.of_groups(group)]
    assert len(entries) > 300
    assert not [
        entry.name for entry in entries for one in entry.hashes if not re.fullmatch("[0-9a-f]{64}", one)
    ]


def test_no_two_groups_of_one_environment_disagree() -> None:
    for groups in (("build", "server"), ("build", "test", "cuda"), ("jail", "cuda")):
        found = locked.of_groups(*groups)
        assert len({entry.name for entry in found}) == len(found), groups


def test_this_environment_is_the_lock() -> None:
    """Packages of an earlier lock may be left over."""
    pinned = {
        canonicalize_name(entry.name): entry.version for entry in locked.of_groups("build", "test", "cuda")
    }
    here = {canonicalize_name(one.metadata["Name"]): one.version for one in distributions()}
    others = {
        name: here[name] for name in pinned if here.get(name, "").partition("+")[0] not in ("", pinned[name])
    }
    assert not others
    assert {entry.name for entry in locked.of_groups("test")} <= here.keys()


def test_the_lock_was_made_from_this_pyproject() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "lock", "--check"], check=True)


def test_a_lock_without_hashes_is_none() -> None:
    with pytest.raises(ValueError, match="left-pad"):
        list(locked.entries("# server\nleft-pad==1.0\n"))


def test_a_file_that_is_not_in_the_lock_is_not_installed(tmp_path: Path) -> None:
    """The package has the right name and version, and another content."""
    folder = tmp_path / "index"
    folder.mkdir()
    entry = next(each for each in locked.of_groups("server") if each.name == "pyotp")
    (folder / f"{entry.name}-{entry.version}-py3-none-any.whl").write_bytes(b"PK\5\6" + bytes(18))
    wanted = tmp_path / "wanted.txt"
    wanted.write_text(f"{entry.requirement}\n")
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--no-index", "--find-links", folder]
    command += ["--target", tmp_path / "there", "--no-deps", "--require-hashes", "--requirement", wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize("file", sorted(CLIENTS.glob("*.txt")), ids=lambda file: file.stem)
def test_clients_are_pinned_with_hashes(file: Path) -> None:
    assert list(locked.entries(file.read_text()))


def test_every_install_of_ours_asks_for_hashes() -> None:
    """pip with a requirement, in whatever script, only takes what is hashed; npm only what its lock names."""
    installs = re.compile(r"pip\b[^\n]*\b(install|wheel)\b|npm (install|i)\b")
    files = [*(ROOT / "scripts").iterdir(), *(ROOT / "images").rglob("*")]
    texts = {
        file: file.read_text(errors="ignore")
        for file in files
        if file.is_file() and file.suffix not in NO_PROGRAMS
    }
    with_pip = {file.relative_to(ROOT).as_posix() for file, text in texts.items() if installs.search(text)}
    careless = {name for name in with_pip if "--require-hashes" not in (ROOT / name).read_text()}
    # `finish` has no network, and takes the wheels that `build` fetched by their hashes.
    assert careless == {"images/jail/finish"}
