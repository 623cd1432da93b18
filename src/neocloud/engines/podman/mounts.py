"""Mounting and unmounting on this machine, and removing folders without following mounts.

Every function may be repeated. A folder is never deleted while something is mounted below it.
"""

import ctypes
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from neocloud.core import osfiles
from neocloud.core.osfiles import make_folder
from neocloud.engines.base import EngineError

_BIND, _RECURSIVE = 0x1000, 0x4000  # linux/mount.h
_DETACH, _NOFOLLOW = 0x2, 0x8

_libc = ctypes.CDLL(None, use_errno=True)


def mount_tmpfs(path: Path, *, size_bytes: int | None = None, mode: int = 0o700) -> None:
    options = f"mode={mode:o},nosuid,nodev" + (f",size={size_bytes}" if size_bytes else "")
    _mount(path, ["-t", "tmpfs", "-o", options, "tmpfs"])


def mount_overlay(path: Path, *, lower: Path, upper: Path, work: Path) -> None:
    """A writable view on `lower`; what is written goes to `upper`."""
    make_folder(upper)  # its mode is that of the view: of "/" for the programs that see it
    work.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    _mount(path, ["-t", "overlay", "-o", options, "overlay"])


def mount_descriptor(descriptor: int, path: Path) -> None:
    """Show an open file or folder at `path`, in place of what is shown there; only we can write around it.

    The kernel follows the descriptor, not a name, so what is shown cannot be another than what was opened.
    """
    wanted = os.fstat(descriptor)
    if is_mounted(path) and os.path.samestat(os.stat(path), wanted):
        return
    detach(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_ISDIR(wanted.st_mode):
        path.mkdir(mode=0o700)
    else:
        path.touch(mode=0o600)
    source = f"/proc/self/fd/{descriptor}".encode()
    if _libc.mount(source, os.fsencode(path), None, _BIND | _RECURSIVE, None):
        raise EngineError(f"{path} could not be mounted: {os.strerror(ctypes.get_errno())}.")


def detach(path: Path) -> None:
    """Take away a mount of `mount_descriptor` and its empty mount point; who has it mounted keeps it."""
    while is_mounted(path):
        if _libc.umount2(os.fsencode(path), _DETACH | _NOFOLLOW):
            raise EngineError(f"{path} could not be unmounted: {os.strerror(ctypes.get_errno())}.")
    if path.is_dir():
        path.rmdir()  # never with what it holds: it is empty, or something is wrong
    else:
        path.unlink(missing_ok=True)


def unmount(path: Path) -> None:
    """Unmount if mounted."""
    if is_mounted(path):
        _run(["umount", str(path)], f"{path} could not be unmounted; end what still uses it")


def is_mounted(path: Path) -> bool:
    return str(path) in _mount_points()


def mounts_below(path: Path) -> list[Path]:
    """Mount points at or below the folder, deepest first."""
    inside = {Path(point) for point in _mount_points() if Path(point).is_relative_to(path)}
    return sorted(inside, key=lambda point: len(point.parts), reverse=True)


def remove_tree(path: Path) -> None:
    """Delete a folder with all it holds; refuses while something is mounted in it."""
    held = mounts_below(path)
    if held:
        raise EngineError(f"{path} was not removed: {held[0]} is still mounted there.")
    osfiles.remove_tree(path)


def _mount(path: Path, arguments: Sequence[str]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if not is_mounted(path):
        _run(["mount", *arguments, str(path)], f"{path} could not be mounted")


def _run(command: Sequence[str], failure: str) -> None:
    # mount(8) keeps a table below /run that every user of the machine reads.
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o022)
    if done.returncode:
        raise EngineError(f"{failure}: {done.stderr.strip()}.")


def _mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [_unescaped(line.split()[4]) for line in lines]


def _unescaped(field: bytes) -> str:
    """The kernel writes blanks and the like as \\040."""
    return field.decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
