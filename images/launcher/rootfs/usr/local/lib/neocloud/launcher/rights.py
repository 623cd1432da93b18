"""Run the programs of a machine with as few rights as possible.

The launcher is root in its container: it connects the network, makes the seed and owns the files. QEMU and
qemu-img, which work on data of the guest, run as a user of their own without any capability, and can gain
none. They get files by their owner, and devices as open descriptors.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

QEMU_ID = 60700
"""User and group. No distribution assigns it: the ranges of Debian and systemd are elsewhere."""
_TUN, _TUNSETIFF = "/dev/net/tun", 0x400454CA
_TAP_FLAGS = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR


class RightsError(Exception):
    """The message names the file or device."""


def unprivileged(command: list[str]) -> list[str]:
    """Return the command as QEMU's user, without capabilities."""
    words = ["setpriv", f"--reuid={QEMU_ID}", f"--regid={QEMU_ID}", "--clear-groups", "--no-new-privs"]
    return [*words, "--inh-caps=-all", "--bounding-set=-all", "--", *command]


def limited(command: list[str], capabilities: Iterable[str]) -> list[str]:
    """Return the command as root with these capabilities and no way to gain others."""
    kept = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return ["setpriv", "--no-new-privs", "--inh-caps=-all", f"--bounding-set={kept}", "--", *command]


def give(path: Path, mode: int | None = None) -> None:
    """Make QEMU the owner of a file, folder or socket; a link is refused."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise RightsError(f"{path} is a link; a machine's own files are never links.")
    os.chown(path, QEMU_ID, QEMU_ID, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)


def give_open(descriptor: int, mode: int) -> None:
    """Make QEMU the owner of an open file that has no name."""
    os.fchmod(descriptor, mode)
    os.fchown(descriptor, QEMU_ID, QEMU_ID)


def let_through(folder: Path) -> None:
    """Let QEMU reach the files in a folder whose mode was made by a strict umask."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o011 != 0o011:
        folder.chmod(mode | 0o011)


def give_device(path: Path) -> None:
    """Make QEMU the owner of a device node, but only of the container's own node, never of the host's."""
    if path.lstat().st_dev != Path("/dev").stat().st_dev:
        raise RightsError(f"{path} is the host's own node; its owner cannot be changed for one machine.")
    give(path)


def open_tap(name: str) -> int:
    """Return a descriptor of the tap, for QEMU, which may not open it itself."""
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_FLAGS))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
