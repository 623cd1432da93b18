"""Messages about a machine that cannot run the engine."""

import os
from pathlib import Path

import pytest

from neocloud.engines.base import EngineUnavailable
from neocloud.engines.podman.host import find_host

PROGRAMS = ("nft", "mount", "umount", "setsid", "runc", "crun", "catatonit")


def machine(folder: Path, version: str = "4.3.1", without: str = "") -> str:
    """A search path with programs that only answer for their version."""
    for name in (*PROGRAMS, "podman"):
        if name != without:
            program = folder / name
            program.write_text(f"#!/bin/sh\necho {name} version {version}\n")
            program.chmod(0o755)
    return str(folder)


def test_machine_with_everything_is_found(tmp_path: Path) -> None:
    host = find_host(machine(tmp_path))
    assert host.podman_version == "4.3.1"
    assert {name for name, _, _ in host.limits} == {"nofile", "nproc", "memlock"}


@pytest.mark.parametrize("missing", ["podman", "nft", "catatonit"])
def test_missing_program_is_named_with_the_command_that_installs_it(tmp_path: Path, missing: str) -> None:
    with pytest.raises(EngineUnavailable, match=rf"{missing}.*apt-get install"):
        find_host(machine(tmp_path, without=missing))


@pytest.mark.parametrize("version", ["3.4.4", "4.2.0"])
def test_old_podman_is_named_with_the_version_that_is_needed(tmp_path: Path, version: str) -> None:
    with pytest.raises(EngineUnavailable, match=rf"{version} is too old, 4\.3"):
        find_host(machine(tmp_path, version))


def test_broken_podman_is_reported(tmp_path: Path) -> None:
    path = machine(tmp_path)
    (tmp_path / "podman").write_text("#!/bin/sh\necho cannot start >&2; exit 1\n")
    with pytest.raises(EngineUnavailable, match="cannot start"):
        find_host(path)


def test_without_root_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EngineUnavailable, match="must run as root"):
        find_host(machine(tmp_path))
