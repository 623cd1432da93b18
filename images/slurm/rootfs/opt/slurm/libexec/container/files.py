"""Folders and errors of containers: what is made for a job, and how it is removed again."""

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS_BETWEEN_SIGNS = 5.0
_signed = time.monotonic()


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
            show_life()
            child = os.path.join(folder, name)
            if not os.path.islink(child):
                with contextlib.suppress(OSError):
                    os.chmod(child, 0o700)
    for folder, names, files in os.walk(path, topdown=False):
        for name in files:
            show_life()
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
        for name in names:
            with contextlib.suppress(OSError):
                _remove_empty(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        path.rmdir()


def _remove_empty(folder: str) -> None:
    if os.path.islink(folder):
        os.unlink(folder)
    else:
        os.rmdir(folder)


def read_small(path: Path, most: int) -> bytes:
    """Return what a regular file holds. Raises ContainerError where it is none, or larger."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        content = file.read(most + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    if content is None or len(content) > most:
        raise ContainerError(f"{path} is not a file of at most {most >> 20} MiB")
    return content


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
                show_life()
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def show_life() -> None:
    """Tell the job plugin that it still works, since it ends a program of which it hears nothing."""
    global _signed
    if time.monotonic() > _signed + SECONDS_BETWEEN_SIGNS:
        _signed = time.monotonic()
        print(file=sys.stderr, flush=True)


def until_end(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Yield again and again until a process ends; show life meanwhile."""
    begin = time.monotonic()
    while process.poll() is None:
        show_life()
        yield
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1 if time.monotonic() < begin + 2 else 0.5)
