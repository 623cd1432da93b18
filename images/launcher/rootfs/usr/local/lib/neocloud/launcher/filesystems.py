"""Run a virtiofsd for each shared filesystem, which serves one folder of the container to the guest.

It runs as root, since files in the folder have owners, but in a chroot of that folder, with only the
capabilities for owners and modes, and with its own filter of system calls.
"""

import subprocess
import time
from pathlib import Path

from launcher import rights
from launcher.desired import Filesystem

VIRTIOFSD = "/usr/libexec/virtiofsd"
_START_SECONDS = 10.0
_SERVING = ("chown", "dac_override", "fowner", "fsetid", "setgid", "setuid", "setfcap")
"""The capabilities of virtiofsd: its default without mknod, since guests make no devices on this host."""


class FilesystemError(Exception):
    """The message names the filesystem."""


def virtiofsd_command(filesystem: Filesystem, socket: Path) -> list[str]:
    """Return the command in a chroot, since virtiofsd may not make namespaces in a container."""
    words = [VIRTIOFSD, f"--shared-dir={filesystem.path}", f"--socket-path={socket}", "--sandbox=chroot"]
    words += ["--seccomp=kill", "--modcaps=-mknod"]
    words += ["--inode-file-handles=never", "--cache=auto", "--rlimit-nofile=0", "--log-level=warn"]
    words += ["--readonly"] if filesystem.read_only else []
    return rights.limited(words, ("sys_chroot", "setpcap", *_SERVING))


def serve_filesystem(filesystem: Filesystem, socket: Path) -> "subprocess.Popen[bytes]":
    """Return when QEMU can connect; the process ends by itself with QEMU."""
    if not filesystem.path.is_dir():
        raise FilesystemError(f"Filesystem {filesystem.tag}: {filesystem.path} is not a folder.")
    socket.unlink(missing_ok=True)
    process = subprocess.Popen(virtiofsd_command(filesystem, socket), stdin=subprocess.DEVNULL)
    end = time.monotonic() + _START_SECONDS
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise FilesystemError(f"Filesystem {filesystem.tag}: virtiofsd did not start.")
        time.sleep(0.01)
    rights.give(socket)
    return process
