"""Clouds and engines of test runs that were cut off: they are removed when the next run starts.

A test process holds a lock on one file per home while it lives. A file without a lock names a home whose
process died, and whose containers, networks and server may still be there.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RECORDS = Path(tempfile.gettempdir()) / f"neocloud-tests-{os.getuid()}"
REMOVE_ENGINE = """
import asyncio, pathlib, sys
from neocloud.engines.podman import PodmanEngine

async def remove():
    engine = PodmanEngine(pathlib.Path(sys.argv[1]))
    await engine.destroy()
    await engine.close()

asyncio.run(remove())
"""
NAMESPACES = "neotest-"
"""What names of network namespaces begin with; then comes the id of the process that made them."""
_held: dict[Path, tuple[Path, int]] = {}
"""By home: the file, and the descriptor that holds its lock until this process ends."""


def record(home: Path) -> None:
    """Note that this process is using `home`. Call it before anything starts there."""
    home = home.resolve()
    RECORDS.mkdir(mode=0o700, exist_ok=True)
    path = RECORDS / hashlib.sha256(str(home).encode()).hexdigest()[:12]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, os.fsencode(home))
    _held[home] = path, descriptor


def forget(home: Path) -> None:
    """Nothing of `home` is left."""
    held = _held.pop(home.resolve(), None)
    if held is not None:
        path, descriptor = held
        path.unlink(missing_ok=True)
        os.close(descriptor)


def remove_leftovers() -> list[Path]:
    """Remove what dead processes recorded, and return their homes."""
    removed = []
    for path in sorted(RECORDS.iterdir()) if RECORDS.is_dir() else ():
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            home = Path(file.read())
            if home.is_absolute():
                _remove(home)
                removed.append(home)
            path.unlink(missing_ok=True)
    _remove_namespaces()
    return removed


def _remove_namespaces() -> None:
    for path in Path("/run/netns").glob(f"{NAMESPACES}*"):
        process_id = path.name.removeprefix(NAMESPACES).partition("-")[0]
        if process_id.isdigit() and not Path("/proc", process_id).exists():
            _run(["ip", "netns", "delete", path.name], {})


def _remove(home: Path) -> None:
    if (home / "config.json").exists() or (home / "neo.json").exists():
        neo = str(Path(sys.executable).with_name("neo"))
        _run([neo, "destroy", "--yes"], {"NEOCLOUD_HOME": str(home)})
    elif home.is_dir():
        _run([sys.executable, "-c", REMOVE_ENGINE, str(home)], {})


def _run(command: list[str], variables: dict[str, str]) -> None:
    """Its failure is not one of the run that is starting."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
