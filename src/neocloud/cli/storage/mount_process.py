"""Runs `neo storage mount --foreground` in the background: it holds a mount and hands out its keys.

It inherits the environment and nothing else of the terminal. Its output and rclone's are in a file of the
user.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import typer

from neocloud.cli.storage.mount_table import mounted_at, real_path, state_of
from neocloud.cli.terminal import write
from neocloud.core.osfiles import make_private_parents

POLL_SECONDS = 0.1
STOP_SECONDS = 90.0
MOST_READ = 64 * 1024
KEEP = "dd bs=4096 count=4096 status=none; exec cat >/dev/null"
"""Writes up to 16 MiB of what comes, each read at once, and reads on: who writes to nobody ends."""


def log_of(folder: Path) -> Path:
    """Return the file with what the mount at a folder says."""
    name = hashlib.sha256(os.fsencode(real_path(folder))).hexdigest()[:16]
    return platformdirs.user_state_path("neocloud") / "mounts" / f"{name}.log"


def mount_in_background(options: Sequence[str], folder: Path) -> None:
    """Return once the folder is mounted. Where it was not, print what was said and raise typer.Exit."""
    log = log_of(folder)
    with _kept(log) as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "neocloud.cli.main", *options],
            cwd="/",  # so that it keeps no other file system busy
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
    try:
        code = _wait_until_mounted(process, folder)
    except BaseException:
        _end(process)
        raise
    if code is not None:
        with log.open("rb") as file:
            write(file.read(MOST_READ).decode(errors="replace"), sys.stderr)
        raise typer.Exit(code or 1)


def _environment() -> dict[str, str]:
    home = os.environ.get("NEOCLOUD_HOME", "")
    return {**os.environ, **({"NEOCLOUD_HOME": os.path.abspath(home)} if home else {})}


@contextmanager
def _kept(log: Path) -> Generator[int]:
    """Yield a descriptor for what is said. The program that writes it to the file ends with the last one who
    has it."""
    make_private_parents(log)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(log, flags, 0o600)
    said, saying = os.pipe()
    try:
        subprocess.Popen(
            ["sh", "-c", KEEP], stdin=said, stdout=file, stderr=subprocess.DEVNULL, start_new_session=True
        )
        yield saying
    finally:
        for each in (file, said, saying):
            os.close(each)


def _wait_until_mounted(process: "subprocess.Popen[bytes]", folder: Path) -> int | None:
    """Return None once it is mounted; the exit code of the process where that has ended."""
    while True:
        code = process.poll()
        if code is not None:
            return code
        there = mounted_at(folder)
        if there is not None and there.is_bucket and state_of(folder) == "mounted":
            return None
        time.sleep(POLL_SECONDS)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End it as Ctrl-C would, so that it unmounts."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
