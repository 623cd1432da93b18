"""Runs `rclone mount`: a bucket as a folder, until the caller ends it.

rclone, not s3fs: it asks for its key again before that ends. Nothing that was written is cached: a file that
was closed is in the bucket, or closing it said that it is not. So programs write a file from its start to its
end; what else they try is refused.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from neocloud.cli.storage.mount_cache import MountCache
from neocloud.cli.storage.mount_table import REMOTE, UNMOUNT, mounted_at, state_of
from neocloud.cli.storage.places import BucketPlace
from neocloud.client.errors import ClientError

PROGRAM = "rclone"
FUSE = Path("/dev/fuse")
START_SECONDS = 60.0
STOP_SECONDS = 60.0
"""Until what is being uploaded is given up."""
POLL_SECONDS = 0.05
PART_MIB = 32
"""A file that is written has 10,000 parts at most, and four of them in memory."""
LISTING_SECONDS = 10
"""How long a folder is shown as it was read last."""


@dataclass(frozen=True)
class Storage:
    """The endpoint of object storage."""

    url: str
    region: str
    ca_file: str


def require_programs() -> None:
    """Raise ClientError where this machine cannot mount."""
    missing = [name for name in (PROGRAM, UNMOUNT) if shutil.which(name) is None]
    if missing:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            "Install what mounts need: `sudo apt install rclone fuse3`",
        )
    if not FUSE.exists():
        raise ClientError(
            "FAILED_PRECONDITION",
            f"There is no {FUSE}, so this machine cannot mount buckets",
            "Load the module (`sudo modprobe fuse`), or give the container the device",
        )


def require_folder(folder: Path) -> None:
    """Raise ClientError unless it is an empty folder, where nothing is mounted yet."""
    there = mounted_at(folder)
    if there is not None and there.is_bucket:
        what = "a bucket whose rclone is gone" if state_of(folder) == "stale" else there.bucket
        ends = f"`neo storage unmount {quote(str(folder))}` ends it"
        raise ClientError("ALREADY_EXISTS", f"{what} is mounted at {folder}", ends)
    try:
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{folder}: {error.strerror}", "Name an empty folder"
        ) from error
    if not is_empty or there is not None:
        raise ClientError("INVALID_ARGUMENT", f"{folder} is not empty", "Name an empty folder")


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Keep other commands from mounting at the same folder: FUSE would hide one mount behind the other."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        require_folder(folder)
        yield
    except BlockingIOError:
        raise ClientError(
            "ALREADY_EXISTS", f"Another command is mounting at {folder}", "`neo storage mounts` lists mounts"
        ) from None
    finally:
        os.close(descriptor)


@contextmanager
def mounted(
    place: BucketPlace,
    folder: Path,
    storage: Storage,
    keys: Mapping[str, str],
    *,
    is_writable: bool,
    cache: MountCache | None = None,
) -> Generator["subprocess.Popen[bytes]"]:
    """Mount while the body lasts, and yield the program."""
    with _alone(folder), _visible_errors() as errors:
        process = subprocess.Popen(
            _command(place, folder, cache, is_writable=is_writable),
            env=_environment(storage, keys),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for us alone, who end it and wait
        )
        try:
            with _ended_with_us(process):
                _wait_until_mounted(process, folder)
                yield process
        finally:
            _end(process, folder)


@contextmanager
def _ended_with_us(process: "subprocess.Popen[bytes]") -> Generator[None]:
    """Have the program end once if we are killed. PR_SET_PDEATHSIG would signal it at the end of each of our
    threads, and its second signal ends it before it has unmounted."""
    reading, ours = os.pipe()
    watch = ["sh", "-c", 'read -r _; kill "$0"', str(process.pid)]  # once the pipe closes
    with subprocess.Popen(watch, stdin=reading, start_new_session=True) as watcher:
        os.close(reading)
        try:
            yield
        finally:
            watcher.kill()
            os.close(ours)


@contextmanager
def _visible_errors() -> Generator[int]:
    """Yield a descriptor for what the program says. It says names of objects, so control characters are made
    visible, by another program that outlives us as well: if nobody read what it says, it would end before it
    has unmounted."""
    said, saying = os.pipe()
    # Entered first, so it is waited for when the other end is closed.
    with subprocess.Popen(["cat", "-v"], stdin=said, stdout=sys.stderr, start_new_session=True):
        os.close(said)
        try:
            yield saying
        finally:
            os.close(saying)


def _command(place: BucketPlace, folder: Path, cache: MountCache | None, *, is_writable: bool) -> list[str]:
    options = [
        *(cache.options() if cache else ("--vfs-cache-mode=off",)),
        *([] if is_writable else ["--read-only"]),
        f"--dir-cache-time={LISTING_SECONDS}s",
        "--use-server-modtime",
        "--log-level=ERROR",
        "--retries=1",
        "--low-level-retries=3",
    ]
    remote = f"{REMOTE}:{place.bucket}/{place.prefix}".rstrip("/")
    return [PROGRAM, "mount", *options, f"--devname={remote}", "--", remote, str(folder)]


def _environment(storage: Storage, keys: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which no other key and no other settings count."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_"))}
    remote = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENV_AUTH": "true",
        "ENDPOINT": storage.url,
        "REGION": storage.region,
        "FORCE_PATH_STYLE": "true",
        "CHUNK_SIZE": f"{PART_MIB}M",
        "NO_CHECK_BUCKET": "true",
    }
    nothing = {
        name: os.devnull for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "RCLONE_CONFIG")
    }
    trust = {"RCLONE_CA_CERT": storage.ca_file} if storage.ca_file else {}
    set_up = {f"RCLONE_CONFIG_{REMOTE.upper()}_{name}": value for name, value in remote.items()}
    return {**kept, **nothing, **trust, **set_up, **keys, "NO_PROXY": "*"}


def _wait_until_mounted(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Return once the kernel has the mount and rclone answers."""
    deadline = time.monotonic() + START_SECONDS
    while not _is_ours(folder) or state_of(folder) != "mounted":
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClientError("FAILED_PRECONDITION", f"{folder} was not mounted", "rclone says why above")
        time.sleep(POLL_SECONDS)


def _end(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Unmount. A program may still be in the folder: it then sees errors."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if _is_ours(folder):
        subprocess.run([UNMOUNT, "-u", "-z", "--", str(folder)], check=False, capture_output=True)


def _is_ours(folder: Path) -> bool:
    there = mounted_at(folder)
    return there is not None and there.is_bucket
