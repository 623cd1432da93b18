"""The `podman system service` process that answers our requests.

It holds no state: it may be killed, replaced or adopted at any time, and pods never notice. Whoever starts
first under the lock wins, everybody else uses the same socket. It must not touch containers.
"""

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from neocloud.engines.base import EngineUnavailable
from neocloud.engines.podman.configuration import environment, is_kept_in_home, render_configuration
from neocloud.engines.podman.host import Host
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.mounts import mount_view, remove_tree

_START_SECONDS = 15.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02
_UMASK = 0o022
"""Umask of Podman's service: programs of other users read the image layers and mount points that it makes."""
_FOLDERS = ("networks", "storage", "tmp", "volumes")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PodmanService:
    """Starts, adopts and stops the process behind `layout.socket`."""

    def __init__(self, layout: Layout, host: Host) -> None:
        self._layout = layout
        self._host = host

    async def ensure(self) -> None:
        """Make sure that the socket answers, with the configuration of this version of ours."""
        await asyncio.to_thread(self._ensure)

    async def stop(self) -> None:
        """End the process if it runs; pods go on."""
        await asyncio.to_thread(self._stop)

    def process_id(self) -> int | None:
        """Who listens on the socket, None when nobody does."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self._layout.socket))
            except OSError:
                return None
            size = struct.calcsize("3i")
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return struct.unpack("3i", credentials)[0]

    def _ensure(self) -> None:
        try:
            for name in _FOLDERS:
                (self._layout.podman / name).mkdir(parents=True, exist_ok=True)
            self._layout.podman.chmod(0o711)  # as the run folder; it lies in the home, which is closed
        except OSError as error:
            raise EngineUnavailable(
                f"The state folder cannot be used: {error}; check its owner and free space."
            ) from error
        with self._lock():
            self._prepare_run_folder()
            changed = self._write_configuration()
            if self.process_id() and not changed:
                return
            self._stop()
            self._start()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with (self._layout.podman / "service.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _prepare_run_folder(self) -> None:
        """Podman takes an empty run folder for a boot; where /run outlives one, we empty it."""
        mark = self._layout.run / "boot_id"
        boot_id = _BOOT_ID.read_text()
        if self._layout.run.exists() and (not mark.exists() or mark.read_text() != boot_id):
            remove_tree(self._layout.run)
        for folder in (self._layout.runroot, self._layout.run / "libpod"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Root of a container with a user namespace searches it; what lies in it is closed on its own.
        self._layout.run.chmod(0o711)
        mark.write_text(boot_id)
        mount_view(self._layout.run, self._layout.run)
        if not is_kept_in_home(self._layout):
            mount_view(self._layout.podman, self._layout.podman_view)

    def _write_configuration(self) -> bool:
        changed = False
        is_in_home = is_kept_in_home(self._layout)
        for name, content in render_configuration(self._layout, self._host, is_in_home=is_in_home).items():
            path = self._layout.podman / name
            if not path.exists() or path.read_text() != content:
                path.write_text(content)
                changed = True
        return changed

    def _start(self) -> None:
        self._layout.socket.unlink(missing_ok=True)
        log = self._layout.podman / "service.log"
        command = [
            "setsid",
            "--fork",
            self._host.podman,
            "system",
            "service",
            "--time=0",
            f"unix://{self._layout.socket}",
        ]
        with log.open("ab") as output:
            begin = output.tell()
            subprocess.run(
                command,
                env={**os.environ, **environment(self._layout)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=True,
                umask=_UMASK,
            )
        _poll(lambda: self.process_id() is not None or _failure(log, begin), _START_SECONDS)
        if self.process_id() is None:
            reason = _failure(log, begin) or f"it did not answer within {_START_SECONDS:.0f} s"
            raise EngineUnavailable(f"Podman did not start: {reason}; its output is in {log}.")

    def _stop(self) -> None:
        process_id = self.process_id()
        if process_id is None:
            return
        try:
            handle = os.pidfd_open(process_id)
        except ProcessLookupError:
            return
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(handle, number)
                if select.select([handle], [], [], _STOP_SECONDS)[0]:
                    break
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)
        self._layout.socket.unlink(missing_ok=True)


def _poll(condition: Callable[[], object], seconds: float) -> None:
    """Wait in this thread until the condition holds or the time is up."""
    pause = select.poll()
    for _ in range(int(seconds / _POLL_SECONDS)):
        if condition():
            return
        pause.poll(_POLL_SECONDS * 1000)


def _failure(log: Path, begin: int) -> str:
    """What Podman said before it gave up, nothing while it has not."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    return next((line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")), "")
