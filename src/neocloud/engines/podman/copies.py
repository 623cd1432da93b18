"""Copies of volume contents: whole or not at all, sparse, shared with the original where the file system can.

Blocking. A copy is made beside its place and moved there once it is on the disk.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from neocloud.core.osfiles import Folder, UnsafePath
from neocloud.core.ostrees import TreeLimits, copy_tree
from neocloud.engines.base import EngineError
from neocloud.engines.podman.mounts import remove_tree

FOLDER_MODE, FILE_MODE = 0o755, 0o644
"""Modes of new volumes, whatever the umask: programs in pods that are not root read them. They lie in the
state folder, which only root may enter."""

MAX_ENTRIES = 10_000_000
"""Files and folders of a volume that is copied; a copy takes as many inodes of the machine's disk."""
MAX_DEPTH = 128
"""Levels of folders; each holds three open files while what is below it is copied."""
SPARE_BYTES = 1024**3
"""What a copy may take beyond a twentieth more than its volume's size: for the tables of disk files."""


def copy_folder(source: Path, target: Path, size_bytes: int) -> None:
    """All files below `source`, with owners, times and links, which are copied and not followed.

    Raises EngineError when they do not fit into a volume of this size, or are more than the limits say.
    """
    limits = TreeLimits(MAX_ENTRIES, MAX_DEPTH, size_bytes + size_bytes // 20 + SPARE_BYTES)

    def fill(folder: Folder) -> None:
        with Folder.open(source) as original:
            copy_tree(original, folder, exact=True, limits=limits)

    _copy(fill, target)


def copy_file(source: Path, target: Path) -> None:
    """A folder `target.parent` with this one file in it."""

    def fill(folder: Folder) -> None:
        with Folder.open(source.parent) as original:
            original.copy_file(source.name, folder, target.name, inner_links=True)
        with folder.file(target.name) as copied:
            os.fchmod(copied.fileno(), FILE_MODE)

    _copy(fill, target.parent)


def _copy(fill: Callable[[Folder], None], folder: Path) -> None:
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.new")
    remove_tree(unfinished)
    try:
        unfinished.mkdir(parents=True)
        unfinished.chmod(FOLDER_MODE)
        with Folder.open(unfinished) as copy:
            fill(copy)
        subprocess.run(["sync", "--file-system", str(unfinished)], check=True)
        unfinished.rename(folder)
    except UnsafePath as error:
        raise EngineError(f"A volume could not be filled: {error}; make room in the original.") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineError(f"A volume could not be filled: {error}; check free space.") from error
    finally:
        if unfinished.exists():
            remove_tree(unfinished)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
