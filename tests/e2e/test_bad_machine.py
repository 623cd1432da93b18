"""A machine that lacks something, or runs out of it: a clear error, and nothing lost."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.contract_cache import cache_with_contract
from tests.e2e.cloud import NEO, Cloud, run
from tests.e2e.conftest import ROOT


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what all these servers would compile."""
    return cache_with_contract(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def bare(tmp_path: Path, cache: Path) -> Iterator[Cloud]:
    """A cloud without images, for servers that get no cluster."""
    cloud = Cloud.prepare(tmp_path / "bare", None)
    cloud.variables = {"XDG_CACHE_HOME": str(cache)}
    yield cloud
    if any(cloud.home.iterdir()):
        run(command(cloud, "--destroy-workloads"), env=cloud.environment)


def command(cloud: Cloud, *arguments: str) -> list[str]:
    ports = ("--grpc-port", "0", "--http-port", "0", "--gateway-port", "0")
    return [sys.executable, "-m", "neocloud.control_plane", "--home", str(cloud.home), *ports, *arguments]


@contextmanager
def server(cloud: Cloud) -> Iterator[None]:
    """The server program as `neo up` starts it, less the images."""
    with subprocess.Popen(command(cloud), stderr=subprocess.DEVNULL, env=cloud.environment) as process:
        try:
            wait_until(lambda: is_ready(cloud, process.pid) or process.poll() is not None, "the server is up")
            assert process.poll() is None
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0


def is_ready(cloud: Cloud, pid: int) -> bool:
    """Return whether the file names this server: one that was killed leaves its own behind."""
    file = cloud.home / "server.json"
    return file.exists() and json.loads(file.read_text())["pid"] == pid


def refused(cloud: Cloud, *arguments: str) -> str:
    """Return the message of a server that does not start: one line."""
    done = subprocess.run(
        command(cloud, *arguments),
        capture_output=True,
        text=True,
        env=cloud.environment,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_state_folder_on_a_full_disk_does_not_start_and_says_why(bare: Cloud) -> None:
    run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", bare.home])
    try:
        fill(bare.home / "filler")
        said = refused(bare)
        assert "space" in said or "full" in said, said
    finally:
        run(["umount", bare.home])


def test_a_taken_port_is_named(bare: Cloud) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        for option in ("--grpc-port", "--http-port"):
            said = refused(bare, option, port)
            assert port in said and "taken" in said, said


def test_a_state_folder_of_a_newer_version_is_left_alone(bare: Cloud) -> None:
    with server(bare):
        before = bare.neo_json("iam", "project", "list")
    with sqlite3.connect(bare.home / "state.db") as database:
        (version,) = database.execute("select version_num from alembic_version").fetchone()
        database.execute("update alembic_version set version_num = '9999'")
    database.close()
    said = refused(bare)
    assert "newer" in said, said
    with sqlite3.connect(bare.home / "state.db") as database:
        database.execute("update alembic_version set version_num = ?", (version,))
    database.close()
    with server(bare):
        assert bare.neo_json("iam", "project", "list") == before


def test_who_is_not_root_is_told_so_before_anything_is_done(tmp_path: Path) -> None:
    """The user `nobody` runs it, who may read this checkout wherever it lies."""
    home = tmp_path / "home"
    tmp_path.chmod(0o777)
    said = subprocess.run(
        [
            *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
            *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
            *(str(NEO), "up", "--home", str(home)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "NO_COLOR": "1"},
        check=False,
    )
    assert said.returncode == 4, said.stderr
    assert "not root" in said.stderr and "sudo" in said.stderr
    assert not (home / "podman").exists()


@pytest.mark.parametrize(
    ("podman", "complaint", "remedy"),
    [
        ("", "podman is not installed", "apt-get install podman"),
        ("#!/bin/sh\necho podman version 3.4.4\n", "Podman 3.4 is too old", "Upgrade it"),
        ("#!/bin/sh\necho broken >&2; exit 1\n", "does not say its version", "apt-get install podman"),
    ],
)
def test_podman_that_is_missing_old_or_broken_is_named_with_what_to_do(
    tmp_path: Path, podman: str, complaint: str, remedy: str
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in ("/usr/sbin", "/usr/bin"):
        for program in Path(folder).iterdir():
            if program.name != "podman" and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    if podman:
        (programs / "podman").write_text(podman)
        (programs / "podman").chmod(0o755)
    cloud = Cloud(tmp_path, {"PATH": str(programs)})
    (tmp_path / "user").mkdir()
    said = cloud.neo("up", code=None)
    assert said.returncode == 1 and complaint in said.stderr and remedy in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_image_build_does_not_count_as_an_image(
    tmp_path: Path, number: signal.Signals
) -> None:
    build = [sys.executable, str(ROOT / "images" / "slurm" / "build"), "--output", str(tmp_path)]
    with subprocess.Popen(build, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        building = tmp_path / "slurm" / ".building"
        wait_until(lambda: (building / "root").is_dir() or process.poll() is not None, "the build began")
        process.send_signal(number)
        assert process.wait(240) != 0
    assert subprocess.run([*build, "--check"], check=False).returncode == 1
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    wait_until(lambda: not [line for line in commands() if str(tmp_path) in line], "no process is left")


def commands() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def test_a_full_disk_is_said_so_and_nothing_that_was_written_is_lost(bare: Cloud) -> None:
    """The state folder lies on a file system that really has no byte left."""
    run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "tmpfs", bare.home])
    (bare.home / "neo.json").write_text("{}")
    filler = bare.home / "filler"
    make = ("compute", "filesystem", "create", "--size-gibibytes", "1", "--type", "NETWORK_SSD", "--name")
    try:
        with server(bare):
            bare.neo(*make, "before")
            fill(filler)
            made: set[str] = set()
            # The database may have some room left in the files it has.
            while (last := bare.neo(*make, f"full-{len(made)}", code=None)).returncode == 0:
                made.add(f"full-{len(made)}")
                assert len(made) < 200, "the disk was not full"
            assert "full" in last.stderr or "space" in last.stderr, last.stderr
            assert "Traceback" not in last.stderr and "defect" not in last.stderr
            assert names(bare) == {"before"} | made
            filler.unlink()
            bare.neo(*make, "after")
            assert names(bare) == {"before", "after"} | made
        with server(bare):
            assert names(bare) == {"before", "after"} | made
    finally:
        bare.neo("destroy", "--yes")
        assert list(bare.home.iterdir()) == []
        run(["umount", bare.home])


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def names(cloud: Cloud) -> set[str]:
    return {item["metadata"]["name"] for item in cloud.neo_json("compute", "filesystem", "list")}
