"""Files and folders at paths that only the operator can change: written whole, private, and locked.

For folders in which tenants or containers can write, use `untrusted.files`. All calls block for as long as a
disk does.
"""

import contextlib
import os
import stat
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol

PRIVATE = 0o600
_POLL_SECONDS = 0.05
OTHERS = 0o077
"""All rights of the group and of everybody else."""


class HeldLock(Protocol):
    """A lock file that this process holds, for as long as this object lives."""

    def release(self) -> None: ...


class Locked(Exception):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by process {holder}")
        self.holder = holder
        """Its process id as text; "unknown" where it wrote none."""


def write_file(path: Path, content: bytes | str, mode: int = PRIVATE, *, durable: bool = False) -> None:
    """Replace a file in one step; a reader sees the old or the new content, whatever ends this process.

    The file has this mode from its first moment, whatever the umask. With `durable`, the content is on the
    disk when this returns. The folder has to exist. Raises OSError.
    """
    with _draft(path, content, mode, durable=durable) as draft:
        draft.replace(path)
        if durable:
            sync_folder(path.parent)


def create_file(path: Path, content: bytes | str, mode: int = PRIVATE) -> None:
    """Create a file in one step and durably, unless another process was faster: its file stays."""
    with _draft(path, content, mode, durable=True) as draft:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        sync_folder(path.parent)


def read_private(path: Path, most_bytes: int) -> str:
    """Return the text of a file that others cannot read. Raises ValueError with words for the operator,
    OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path} is not a file")
        if mode & OTHERS:
            raise ValueError(f"{path} is open to other users; run: chmod 600 {path}")
        content = os.read(descriptor, most_bytes + 1)
    finally:
        os.close(descriptor)
    try:
        if len(content) > most_bytes:
            raise ValueError("too large")
        return content.decode()
    except ValueError as error:
        raise ValueError(f"{path} cannot be used ({type(error).__name__})") from None


def make_private_parents(path: Path) -> None:
    """Create the folders above a path for their owner alone; those that exist keep their mode."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Create a folder for programs of other users, with this mode whatever the umask.

    One that exists keeps its mode; folders above it are created as the umask says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        return
    path.chmod(mode)


def sync_folder(path: Path) -> None:
    """Return once the names in the folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path, *, wait: bool = False, on_wait: Callable[[], None] | None = None) -> HeldLock:
    """Lock a file, created if needed, until `release()` of what is returned, or until this process ends.

    With `wait`, wait for another holder, after a call of `on_wait`; else raise Locked. The file stays when
    the lock is released. It holds the process id of the last holder. Raises OSError.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415  40 ms, and most commands take no lock

    lock = FileLock(path, mode=PRIVATE, thread_local=False, fallback_to_soft=False)
    while True:
        path.parent.stat()  # filelock would create a folder that was removed meanwhile
        try:
            lock.acquire(blocking=False)
            break
        except Timeout:
            if not wait:
                raise Locked(path, _holder(path)) from None
        if on_wait is not None:
            on_wait()
            on_wait = None
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(OSError):  # for people only; on a full disk the lock does without
        path.write_text(str(os.getpid()))
    return lock


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Generator[None, None, None]:
    """Hold the lock while the context lasts; see `take_lock`."""
    lock = take_lock(path, wait=wait)
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


@contextlib.contextmanager
def _draft(path: Path, content: bytes | str, mode: int, *, durable: bool) -> Generator[Path, None, None]:
    """A file beside `path` with this content, removed at the end if it still has its own name."""
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(draft, flags, mode & ~0o077)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            os.fchmod(file.fileno(), mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


class OpenFolder(OSError):
    """The folder belongs to another user, or others may enter it."""

    def __init__(self, why: str, next_step: str) -> None:
        super().__init__(why)
        self.why = why
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.why}. {self.next_step}"


def ensure_private(path: Path) -> None:
    """Make a folder that only its owner may enter, or accept one; an empty folder of ours is closed.

    A user who can enter it could read the database, keys and logs, and run the set-uid programs that tenants'
    containers leave in volumes. Raises OpenFolder, which names the command that fixes it; other OSErrors.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise OpenFolder(
                f"The state folder {path} belongs to user {found.st_uid}, who could change all that is in it",
                f"If it is yours, run: chown {os.geteuid()} {path}",
            )
        if not found.st_mode & OTHERS:
            return
        if os.listdir(descriptor):
            mode = stat.S_IMODE(found.st_mode)
            raise OpenFolder(
                f"The state folder {path} is open to other users (mode {mode:04o}), and it holds secrets",
                f"Run: chmod 700 {path}",
            )
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
