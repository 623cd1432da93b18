"""Mount and unmount on this machine, and remove folders without following mounts.

Every function may be repeated. A folder is never deleted while something is mounted below it.
"""

import contextlib
import ctypes
import errno
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted import files as untrusted_files
from neocloud.engines.base import EngineError

_BIND, _MOUNT_RECURSIVE, _PRIVATE, _SHARED = 0x1000, 0x4000, 1 << 18, 1 << 20  # linux/mount.h
_DETACH, _NOFOLLOW = 0x2, 0x8
_CLONE, _RECURSIVE, _EMPTY_PATH = 0x1, 0x8000, 0x1000  # open_tree(2)
_FROM_DESCRIPTOR, _ATTRIBUTE_IDMAP, _ATTRIBUTE_READ_ONLY = 0x4, 0x100000, 0x1
"""Flags of move_mount(2) and mount_setattr(2)."""
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same numbers on every architecture
_WORKING_FOLDER = -100  # AT_FDCWD

libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


def mount_tmpfs(path: Path, *, size_bytes: int | None = None, mode: int = 0o700) -> None:
    """Mount a file system in memory."""
    options = f"mode={mode:o},nosuid,nodev" + (f",size={size_bytes}" if size_bytes else "")
    _mount(path, ["-t", "tmpfs", "-o", options, "tmpfs"])


def mount_overlay(path: Path, *, lower: Path, upper: Path, work: Path, allows_devices: bool = True) -> None:
    """Mount a writable view on `lower`; changes are written to `upper`."""
    make_folder(upper)  # its mode is that of the view, so of "/" for the programs in it
    work.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}" + ("" if allows_devices else ",nodev")
    _mount(path, ["-t", "overlay", "-o", options, "overlay"])


def mount_descriptor(
    descriptor: int, path: Path, user_namespace: int | None = None, *, is_read_only: bool = False
) -> None:
    """Mount an open file or folder at `path`, replacing what is mounted there.

    The kernel follows the descriptor, not a name, so exactly the file that was opened is mounted. With the
    descriptor of a user namespace, owners are shifted to that namespace's ids on this machine. Later mounts
    below `path` do not appear at the original, nor the other way round. Raises EngineError.
    """
    wanted = os.fstat(descriptor)
    tree = _call(path, _OPEN_TREE, descriptor, b"", _CLONE | _RECURSIVE | _EMPTY_PATH | os.O_CLOEXEC)
    try:
        if user_namespace is not None or is_read_only:
            changes = (_ATTRIBUTE_IDMAP if user_namespace is not None else 0) | (
                _ATTRIBUTE_READ_ONLY if is_read_only else 0
            )
            attributes = _Attributes(changes, 0, _PRIVATE, user_namespace or 0)
            size = ctypes.sizeof(attributes)
            flags = _EMPTY_PATH | _RECURSIVE
            _call(path, _MOUNT_SETATTR, tree, b"", flags, ctypes.byref(attributes), size)
        if is_mounted(path) and _is_same(os.stat(path), os.fstat(tree)):
            return
        detach(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_ISDIR(wanted.st_mode):
            path.mkdir(mode=0o700)
        else:
            path.touch(mode=0o600)
        _call(path, _MOVE_MOUNT, tree, b"", _WORKING_FOLDER, os.fsencode(path), _FROM_DESCRIPTOR)
    finally:
        os.close(tree)
    libc.mount(None, os.fsencode(path), None, _PRIVATE | _MOUNT_RECURSIVE, None)


def mount_view(source: Path, path: Path) -> None:
    """Bind-mount a folder of ours at `path`, which may be the same, with shared propagation.

    Mounts and unmounts below it take effect in every mount namespace: Podman's monitors of containers with a
    user namespace have their own one, and unmount there. Podman's storage driver makes its own folder private
    again. Raises EngineError.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    if is_mounted(path):
        return
    for origin, flags in ((source, _BIND), (None, _PRIVATE), (None, _SHARED)):
        name = os.fsencode(origin) if origin else None
        if libc.mount(name, os.fsencode(path), None, flags, None):
            raise EngineError(f"{path} could not be mounted: {os.strerror(ctypes.get_errno())}.")


def mount_filesystem(kind: str, path: Path, options: str, *, source: Path | None = None) -> None:
    """Mount a file system, of a device if it has one, with the ids and capabilities of this thread.

    Raises EngineError.
    """
    device = os.fsencode(source) if source else kind.encode()
    if libc.mount(device, os.fsencode(path), kind.encode(), 0, options.encode()):
        raise EngineError(f"{path} could not be mounted: {os.strerror(ctypes.get_errno())}.")


def detach(path: Path) -> None:
    """Unmount a mount of `mount_descriptor` and remove its mount point; containers that use it keep it."""
    while is_mounted(path):
        if libc.umount2(os.fsencode(path), _DETACH | _NOFOLLOW):
            raise EngineError(f"{path} could not be unmounted: {os.strerror(ctypes.get_errno())}.")
    if path.is_dir():
        path.rmdir()  # must be empty; never remove its content
    else:
        path.unlink(missing_ok=True)


def unmount_unused(path: Path) -> bool:
    """Unmount and remove a mount point; False while a process, in any container, has a file of it open.

    The kernel refuses to unmount it then, also where a container has the mount by propagation.
    """
    if is_mounted(path) and libc.umount2(os.fsencode(path), _NOFOLLOW):
        if ctypes.get_errno() == errno.EBUSY:
            return False
        raise EngineError(f"{path} could not be unmounted: {os.strerror(ctypes.get_errno())}.")
    path.rmdir()
    return True


def unmount(path: Path, *, lazily: bool = False) -> None:
    """Unmount if mounted; with `lazily` also while it is in use."""
    if lazily:
        libc.umount2(os.fsencode(path), _DETACH | _NOFOLLOW)
    elif is_mounted(path):
        _run(["umount", str(path)], f"{path} could not be unmounted; end the processes that still use it")


def is_mounted(path: Path) -> bool:
    """Return whether the path is a mount point."""
    return str(path) in _mount_points()


def mount_options(path: Path) -> str:
    """Return the options of the file system mounted at the path; "" if none is."""
    for line in reversed(Path("/proc/self/mountinfo").read_bytes().splitlines()):
        fields = line.split()
        if _unescaped(fields[4]) == str(path):
            return _unescaped(fields[-1])
    return ""


def is_mounted_elsewhere(path: Path) -> bool:
    """Return whether a mount namespace, for example a container's, has this file system at another path."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    seen: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended
            namespace = (process / "ns/mnt").stat().st_ino
            if namespace not in seen:
                seen.add(namespace)
                found = _mounts((process / "mountinfo").read_bytes())
                if any(each == number and point != str(path) for each, point in found):
                    return True
    return False


def mounts_below(path: Path) -> list[Path]:
    """Return the mount points at or below the folder, deepest first."""
    inside = {Path(point) for point in _mount_points() if Path(point).is_relative_to(path)}
    return sorted(inside, key=lambda point: len(point.parts), reverse=True)


def remove_tree(path: Path) -> None:
    """Delete a folder with its content. Raises EngineError while something is mounted in it."""
    held = mounts_below(path)
    if held:
        raise EngineError(f"{path} was not removed: {held[0]} is still mounted there.")
    untrusted_files.remove_tree(path)


def _call(path: Path, number: int, *arguments: object) -> int:
    found = libc.syscall(number, *arguments)
    if found < 0:
        raise EngineError(f"{path} could not be mounted: {os.strerror(ctypes.get_errno())}.")
    return found


def _is_same(shown: os.stat_result, wanted: os.stat_result) -> bool:
    return os.path.samestat(shown, wanted) and (shown.st_uid, shown.st_gid) == (wanted.st_uid, wanted.st_gid)


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
    return [point for _, point in _mounts(Path("/proc/self/mountinfo").read_bytes())]


def _mounts(table: bytes) -> list[tuple[str, str]]:
    """Return device numbers and mount points."""
    lines = [line.split() for line in table.splitlines()]
    return [(fields[2].decode(), _unescaped(fields[4])) for fields in lines]


def _unescaped(field: bytes) -> str:
    """Decode a field: the kernel writes blanks and other special characters as \\040."""
    return field.decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
