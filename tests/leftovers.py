"""Remove the remains of test runs that were cut off when the next run starts.

A test process holds a lock on one file per home while it lives. A file without a lock names a home whose
process died, and whose containers, networks and server may still be there. A variable of the environment,
which processes inherit, names the run that started them: those of a run that has died are killed. A test
process records the folder of its temporary files in the same way: what is mounted below it is unmounted,
which detaches loop devices. Network namespaces have the id of the process that made them in their names.
"""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Set
from pathlib import Path

from neocloud.core.process import Process, began
from neocloud.engines.podman.storage.mounts import mounts_below, unmount

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
FOLDER = ".folder"
"""Suffix of the records of folders that are not homes of clouds or engines."""
RUN = "NEOCLOUD_TEST_RUN"
"""The variable that names the run: id and start of the process of pytest."""
_held: dict[Path, tuple[Path, int]] = {}
"""By home: the file, and the descriptor that holds its lock until this process ends."""


def record(home: Path, *, suffix: str = "") -> None:
    """Note that this process is using `home`. Call it before anything starts there."""
    home = home.resolve()
    RECORDS.mkdir(mode=0o700, exist_ok=True)
    path = RECORDS / f"{hashlib.sha256(str(home).encode()).hexdigest()[:12]}{suffix}"
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


def record_folder(folder: Path) -> None:
    """Note that this process keeps temporary files in `folder`, where tests may mount."""
    record(folder, suffix=FOLDER)


def mark_run() -> None:
    """Name this run to the processes that it starts; a worker has the name already."""
    if not _is_alive(os.environ.get(RUN, "")):
        os.environ[RUN] = f"{os.getpid()}-{began(os.getpid())}"


def end_processes() -> Set[int]:
    """Kill the processes of runs that have died, and return their ids."""
    ended = set()
    for folder in Path("/proc").glob("[1-9]*"):
        process = Process.of(int(folder.name)) if _is_of_dead_run(folder) else None
        # Again, now that its id cannot become that of another process.
        if process is not None and _is_of_dead_run(folder) and process.pid not in _ancestors():
            process.send(signal.SIGKILL)
            ended.add(process.pid)
    return ended


def _is_of_dead_run(folder: Path) -> bool:
    """Return whether the run of a process in /proc is known to have died.

    In another PID namespace, as that of a container or of `make try-debian`, the run has another id there
    than here, and may continue.
    """
    try:
        if (folder / "ns" / "pid").readlink() != Path("/proc/self/ns/pid").readlink():
            return False
        variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    named = (os.fsdecode(each).partition("=") for each in variables)
    mark = next((value for name, _, value in named if name == RUN), "")
    return bool(mark) and not _is_alive(mark)


def _is_alive(mark: str) -> bool:
    process_id, _, at = mark.partition("-")
    return process_id.isdigit() and at.isdigit() and Process.find(int(process_id), int(at)) is not None


def _ancestors() -> Set[int]:
    """Return this process and those above it: a shell may have the variable of a run that has died."""
    found, process_id = set(), os.getpid()
    while process_id > 1:
        found.add(process_id)
        process_id = int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def remove_leftovers() -> list[Path]:
    """Remove what dead processes recorded, and return their homes and folders."""
    removed, folders = [], []
    for path in sorted(RECORDS.iterdir()) if RECORDS.is_dir() else ():
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(path.open())
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, FileNotFoundError):  # it is in use, or was removed meanwhile
                continue
            home = Path(file.read())
            if home.is_absolute() and path.suffix == FOLDER:
                folders.append(home)
            elif home.is_absolute():
                _remove(home)
                removed.append(home)
            path.unlink(missing_ok=True)
    end_processes()  # before what they have mounted
    for folder in folders:
        _unmount_below(folder)
    _remove_namespaces()
    return removed + folders


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
    _unmount_below(home)  # of containers whose monitors were killed


def _unmount_below(folder: Path) -> None:
    for path in mounts_below(folder):
        unmount(path, lazily=True)


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
