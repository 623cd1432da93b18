# pyright: strict
"""A folder that only its owner may enter: the state folder of a cloud.

A user who can enter it could read the database, keys and logs, and run the set-uid programs that tenants'
containers leave in volumes. A folder that is open to others is refused; the error says how to fix it.
"""

import os
import stat
from pathlib import Path

OTHERS = 0o077
"""All rights of the group and of everybody else."""


class OpenFolder(OSError):
    """The folder belongs to another user, or others may enter it."""

    def __init__(self, why: str, next_step: str) -> None:
        super().__init__(why)
        self.why = why
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.why}. {self.next_step}"


def ensure_private(path: Path) -> None:
    """Make the folder, or take one that is ours and closed to others; an empty one of ours is closed.

    Raises OpenFolder, whose text is the command that mends it; other OSErrors.
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
