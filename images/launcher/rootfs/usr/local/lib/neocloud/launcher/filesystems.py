"""One virtiofsd for each shared filesystem. It serves one folder of the container to the guest."""

import subprocess
import time
from pathlib import Path

from launcher.wish import Filesystem

VIRTIOFSD = "/usr/libexec/virtiofsd"
_START_SECONDS = 10.0


class FilesystemError(Exception):
    """The message names the filesystem."""


def virtiofsd_command(filesystem: Filesystem, socket: Path) -> list[str]:
    """The container is the sandbox: virtiofsd may not make namespaces of its own in it."""
    words = [VIRTIOFSD, f"--shared-dir={filesystem.path}", f"--socket-path={socket}", "--sandbox=none"]
    words += ["--inode-file-handles=never", "--cache=auto", "--rlimit-nofile=0", "--log-level=warn"]
    return [*words, "--readonly"] if filesystem.read_only else words


def serve_filesystem(filesystem: Filesystem, socket: Path) -> "subprocess.Popen[bytes]":
    """Returns when QEMU can connect; the process ends by itself with QEMU."""
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
    return process
