"""Copies and digests of whole folders that somebody else can write in.

Everything is opened as `files` opens it; blocking. Raises OSError, of which UnsafePath is one.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from neocloud.core.untrusted.files import MAX_TREE_DEPTH, MAX_TREE_ENTRIES, Folder, UnsafePath, copy_facts

_CHUNK_BYTES = 8 * 1024**2
BLOCK_BYTES = 512  # of st_blocks, whatever the file system


@dataclass(frozen=True)
class TreeLimits:
    """Limits for copying a tree; `size` is bytes on the disk, a file with two names counted twice."""

    entries: int = MAX_TREE_ENTRIES
    depth: int = MAX_TREE_DEPTH
    size: int | None = None


def copy_tree(
    source: Folder, target: Folder, *, exact: bool = False, limits: TreeLimits = TreeLimits()
) -> None:
    """All regular files and folders into `target`, which is empty; `exact` keeps owners, modes and links.

    Memory does not grow with the tree; each level takes three open files. Raises UnsafePath at the first
    thing that is none of these, and when there is too much.
    """
    _Copy(limits, exact=exact).fill(source, target, 0)


def stage_files(
    source: Folder, target: Path, check: Callable[[Folder], None] = lambda _: None, *, link: bool = False
) -> None:
    """The regular files of a folder, none below it, in a new folder at `target`: whole or not at all.

    Nobody else can write around `target`. Relative links between the files become files. `check` looks at
    what was laid before it gets its name. Raises OSError, and what `check` raises.
    """
    with Folder.open(target.parent) as parent:
        if parent.state(target.name) is not None:
            return
        with parent.staged(target.name) as staged:
            for name in source.names():
                with source.pinned(name, inner_links=True) as found:
                    is_file = stat.S_ISREG(os.fstat(found).st_mode)
                if is_file:
                    source.copy_file(name, staged, name, link=link, inner_links=True)
            check(staged)


def stage_file(source: Folder, name: str, target: Folder, target_name: str) -> None:
    """Copy one file, whole or not at all, in place of a file of the new name. Raises OSError."""
    partial = f".{target_name}.partial"
    target.remove(partial)
    source.copy_file(name, target, partial)
    target.rename(partial, target_name)


def content_digest(folder: Folder, names: Iterable[str]) -> str:
    """SHA-256, in hexadecimal, over names, sizes and contents of these files. Raises OSError."""
    found = hashlib.sha256()
    for name in sorted(names):
        with folder.file(name, inner_links=True) as file:
            found.update(f"{name}\0{os.fstat(file.fileno()).st_size}\0".encode())
            while chunk := file.read(_CHUNK_BYTES):
                found.update(chunk)
    return found.hexdigest()


class _Copy:
    """One copy of a tree under way."""

    def __init__(self, limits: TreeLimits, *, exact: bool) -> None:
        self._limits = limits
        self._exact = exact
        self._entries = self._size = 0

    def fill(self, source: Folder, target: Folder, depth: int) -> None:
        if depth > self._limits.depth:
            raise UnsafePath(source.path, f"lies more than {self._limits.depth} folders deep")
        for name in source.each_name():
            self._count(source, name)
            if not (self._exact and _copied_link(source, target, name)):
                self._one(source, target, name, depth)
        if self._exact:
            copy_facts(source.descriptor, target.descriptor)

    def _one(self, source: Folder, target: Folder, name: str, depth: int) -> None:
        with source.pinned(name) as found:
            is_folder = stat.S_ISDIR(os.fstat(found).st_mode)
        if is_folder:
            with source.folder(name) as inner, target.make(name) as copy:
                self.fill(inner, copy, depth + 1)
        else:
            source.copy_file(name, target, name, exact=self._exact)

    def _count(self, source: Folder, name: str) -> None:
        state = os.stat(name, dir_fd=source.descriptor, follow_symlinks=False)
        self._entries += 1
        self._size += state.st_blocks * BLOCK_BYTES
        if self._entries > self._limits.entries:
            raise UnsafePath(source.path, f"and its folders hold more than {self._limits.entries:,} files")
        if self._limits.size is not None and self._size > self._limits.size:
            raise UnsafePath(source.path, f"and its folders hold more than {self._limits.size:,} bytes")


def _copied_link(source: Folder, target: Folder, name: str) -> bool:
    """A link with the same text; False for anything else."""
    try:
        text = os.readlink(name, dir_fd=source.descriptor)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    os.symlink(text, name, dir_fd=target.descriptor)
    state = os.stat(name, dir_fd=source.descriptor, follow_symlinks=False)
    os.chown(name, state.st_uid, state.st_gid, dir_fd=target.descriptor, follow_symlinks=False)
    return True
