"""Folders and errors of containers: what is made for a job, and how it is removed again."""

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS_BETWEEN_LOOKS = 5.0
ENDED = {"CANCELLED", "COMPLETING", "TIMEOUT", "PREEMPTED", "DEADLINE", "NODE_FAIL", "FAILED"}
_looked = time.monotonic()


class ContainerError(Exception):
    """One line that says what is wrong and what to do next."""


def say(text: str) -> None:
    """Print a message for the user of the job. Control characters of others' texts are left out."""
    print("".join(letter for letter in text if letter.isprintable()), file=sys.stderr, flush=True)


def private_folder(path: Path) -> Path:
    """Return a folder that is this user's alone, made where it is missing: /tmp belongs to everybody."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise ContainerError(f"{path} is not a folder of yours alone; remove it or ask its owner to")
    return path


def remove(path: Path) -> None:
    """Remove a folder with all it holds; images have folders that not even their owner may list."""
    if path.is_symlink() or not path.is_dir():
        return
    for folder, names, _ in os.walk(path):
        for name in names:
            child = Path(folder, name)
            if not child.is_symlink():
                with contextlib.suppress(OSError):
                    child.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock; say so where another step holds it for longer."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        has_said, begin = False, time.monotonic()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not has_said and time.monotonic() > begin + 2:
                    say(f"waiting for another step that {what}")
                    has_said = True
                stop_if_cancelled()
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def stop_if_cancelled() -> None:
    """Raise ContainerError if the job has been cancelled. Slurm signals a step only once its tasks run."""
    global _looked
    job = os.environ.get("SLURM_JOB_ID", "")
    if time.monotonic() < _looked + SECONDS_BETWEEN_LOOKS or not job.isdecimal():
        return
    command = ["/opt/slurm/bin/squeue", "--noheader", "--states=all", "--format=%A %T", f"--jobs={job}"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        # Of an array, whose first number this may be, squeue lists each job.
        states = {words[1] for line in said.stdout.splitlines() if (words := line.split())[:1] == [job]}
        if states & ENDED:
            raise ContainerError("the job was cancelled before its container was ready")
    _looked = time.monotonic()
