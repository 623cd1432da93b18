"""The buckets that this user has mounted on this machine, as the kernel lists them.

Nothing is remembered elsewhere, so nothing has to be cleaned after a crash, and no process is signalled by a
number that may be another's by now.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from neocloud.cli.storage.places import SCHEME
from neocloud.client.errors import ClientError

MOUNTINFO = Path("/proc/self/mountinfo")
UNMOUNT = "fusermount"
KIND = "fuse.rclone"
REMOTE = "neo"
"""The name of the remote in rclone, with which the source of a mount begins."""
ANSWER_SECONDS = 5.0
_OWNER = re.compile(r"(?:^|,)user_id=([0-9]+)(?:,|$)")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class MountedFolder:
    folder: Path
    kind: str
    source: str
    is_writable: bool
    owner: int
    """The user who mounted it with FUSE; -1 for other file systems."""

    @property
    def is_bucket(self) -> bool:
        """Return whether this user's `neo storage mount` made it. Others choose kind and source of their
        mounts as they like, but not the owner, whom the kernel knows."""
        return self.kind == KIND and self.source.startswith(f"{REMOTE}:") and self.owner == os.geteuid()

    @property
    def bucket(self) -> str:
        return SCHEME + self.source.removeprefix(f"{REMOTE}:")


def mounted_folders() -> list[MountedFolder]:
    """Return all mounts of this machine; where one hides another, the hidden one is before it."""
    lines = os.fsdecode(MOUNTINFO.read_bytes()).split("\n")
    return [_read(line) for line in lines if line]


def mounted_at(folder: Path) -> MountedFolder | None:
    """Return what is mounted at a path, also where it gives errors."""
    known = {each.folder: each for each in mounted_folders()}
    return known.get(real_path(folder)) or known.get(Path(os.path.realpath(folder)))


def real_path(folder: Path) -> Path:
    """Return the path as the kernel names it, without a look at the folder itself, which may not answer."""
    plain = Path(os.path.abspath(folder))
    return Path(os.path.realpath(plain.parent)) / plain.name


def state_of(folder: Path) -> str:
    """Return "mounted"; "stale" where rclone is gone; "no answer" where it does nothing."""
    look = ["stat", "--file-system", "--", str(folder)]
    try:
        looked = subprocess.run(look, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "no answer"
    return "stale" if looked.returncode else "mounted"


def unmount(folder: Path, *, force: bool) -> MountedFolder:
    """Unmount a bucket, and return what it was. Raises ClientError."""
    found = mounted_at(folder)
    if found is None:
        raise ClientError(
            "NOT_FOUND", f"Nothing is mounted at {folder}", "`neo storage mounts` lists mounted buckets"
        )
    if not found.is_bucket:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{folder} is not a bucket that you have mounted, but {found.kind} {found.source}",
            "`umount` unmounts it, if you may",
        )
    # Nobody can lose what a stale one holds.
    lazily = force or state_of(found.folder) == "stale"
    options = ["-u", *(["-z"] if lazily else []), "--"]
    command = [UNMOUNT, *options, str(found.folder)]
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if ran.returncode and mounted_at(folder) is not None:
        if "busy" in ran.stderr:
            raise ClientError(
                "FAILED_PRECONDITION",
                f"{folder} is in use: a program has an open file or its working folder in it",
                "End the program (`fuser -vm FOLDER` shows it), or give --force",
            )
        raise ClientError("FAILED_PRECONDITION", f"{folder} was not unmounted: {ran.stderr.strip()}")
    return found


def _read(line: str) -> MountedFolder:
    """Read a line of mountinfo: fields, optional ones, "-", kind, source, options of the file system."""
    fields = line.split(" ")
    kind, source, options = fields[fields.index("-", 6) + 1 :][:3]
    owner = _OWNER.search(options) if kind.startswith("fuse") else None
    return MountedFolder(
        folder=Path(_plain(fields[4])),
        kind=kind,
        source=_plain(source),
        is_writable="rw" in fields[5].split(",") and "rw" in options.split(","),
        owner=int(owner[1]) if owner else -1,
    )


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
