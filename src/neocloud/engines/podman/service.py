"""The process `podman system service` that serves our requests, and its configuration files.

The process holds no state: it may be killed, replaced or adopted at any time without effect on pods. The
first to take the lock starts it; all others use the same socket. It must not touch containers.

The configuration keeps our Podman apart from any other on the machine. Everything Podman writes lies in the
state folder and, until the next boot, in /run/neocloud-<id>, except one address list that netavark shares
between all root Podmans in /run/containers.
"""

import asyncio
import json
import logging
import os
import socket
import struct
from pathlib import Path

from neocloud.core.child_process import Child
from neocloud.core.osfiles import locked
from neocloud.core.process import Process
from neocloud.engines.base import EngineUnavailable
from neocloud.engines.podman.containers import processes_in_groups
from neocloud.engines.podman.host import Host
from neocloud.engines.podman.layout import Layout, logged
from neocloud.engines.podman.network.named_namespaces import share_folder
from neocloud.engines.podman.storage.mounts import mount_view, mounts_below, remove_tree, unmount

logger = logging.getLogger(__name__)

_START_SECONDS = 15.0
_STOP_SECONDS = 10.0
_UMASK = 0o022
"""Umask of Podman's service: programs of other users read the image layers and mount points it creates."""
_FOLDERS = ("networks", "storage", "tmp", "volumes")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MAX_LOG_BYTES = 64 * 1024 * 1024
_EVENTS_SIZE_MAX = 10 * 1000 * 1000
MAX_PROCESSES = 32768
_EXEC_KEPT_SECONDS = 10
"""How long the exit code of a finished `exec` can be read; a process waits for each."""


class PodmanService:
    """Starts, adopts and stops the process behind `layout.socket`."""

    def __init__(self, layout: Layout, host: Host) -> None:
        self._layout = layout
        self._host = host

    async def ensure(self) -> None:
        """Make sure that the service answers, with the configuration of this version."""
        await asyncio.to_thread(self._ensure)

    async def stop(self) -> None:
        """Stop the process if it runs; pods continue."""
        await asyncio.to_thread(self._stop)

    def process_id(self) -> int | None:
        """Return the id of the process that listens on the socket, None if there is none."""
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
            (self._layout.podman / "tmp").chmod(0o711)
        except OSError as error:
            raise EngineUnavailable(
                f"The state folder cannot be used: {error}; check its owner and free space."
            ) from error
        with locked(self._layout.podman / "service.lock", wait=True):
            self._prepare_run_folder()
            changed = self._write_configuration()
            if self.process_id() and not changed:
                return
            self._stop()
            with logged(logger, "Started Podman's service"):
                self._start()

    def _prepare_run_folder(self) -> None:
        """Empty the run folder after a boot, if /run outlived it: Podman recognises a boot by that."""
        mark = self._layout.run / "boot_id"
        boot_id = _BOOT_ID.read_text()
        if self._layout.run.exists() and (not mark.exists() or mark.read_text() != boot_id):
            for point in () if processes_in_groups(self._layout) else mounts_below(self._layout.run):
                unmount(point, lazily=True)  # left by a Podman that was called by hand
            remove_tree(self._layout.run)
        for folder in (self._layout.runroot, self._layout.run / "libpod"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Root of a container with a user namespace searches it; its content has modes of its own.
        self._layout.run.chmod(0o711)
        mark.write_text(boot_id)
        share_folder()
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
        child = Child("Podman service", self._layout.podman / "service.log")
        command = [self._host.podman, "system", "service", "--time=0", f"unix://{self._layout.socket}"]
        variables = {**os.environ, **environment(self._layout)}
        if _is_podman_5(self._host) and not is_kept_in_home(self._layout):
            # It makes mount points of user namespaces there, whose root cannot search the home.
            variables["TMPDIR"] = str(self._layout.podman_view / "tmp")
        child.start(command, environment=variables, umask=_UMASK)
        if child.wait_until_ready(lambda: self.process_id() is not None, _START_SECONDS):
            return
        reason = _failure(child.output()) or f"it did not answer within {_START_SECONDS:.0f} s"
        raise EngineUnavailable(f"Podman did not start: {reason}; its output is in {child.log_file}.")

    def _stop(self) -> None:
        process_id = self.process_id()
        process = None if process_id is None else Process.of(process_id)
        if process is None:
            return
        process.stop(_STOP_SECONDS)
        self._layout.socket.unlink(missing_ok=True)


def _failure(output: str) -> str:
    """Return the error that Podman printed before it exited; empty if it has not."""
    lines = output.splitlines()
    return next((line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")), "")


def render_configuration(layout: Layout, host: Host, *, is_in_home: bool = False) -> dict[str, str]:
    """Return content by file name, for the folder `layout.podman`.

    `is_in_home`: Podman knows its files by their paths in the state folder, as in those of earlier versions;
    it stores those paths in its records and cannot change them.
    """
    folder = layout.podman if is_in_home else layout.podman_view
    return {
        "containers.conf": _containers_conf(layout, host, folder),
        "storage.conf": _storage_conf(layout, folder, is_in_home),
        "registries.conf": "unqualified-search-registries = []\n",
    }


def _is_podman_5(host: Host) -> bool:
    """Return whether it is Podman 5 or newer."""
    return int(host.podman_version.partition(".")[0]) >= 5


def is_kept_in_home(layout: Layout) -> bool:
    """Return whether the existing configuration names Podman's files by paths in the state folder."""
    known = layout.podman / "storage.conf"
    return known.exists() and _graph_root(layout.podman) in known.read_text()


def environment(layout: Layout) -> dict[str, str]:
    """Return the variables that make Podman read these files and no others."""
    return {
        "CONTAINERS_CONF": str(layout.podman / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(layout.podman / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(layout.podman / "registries.conf"),
        "TMPDIR": str(layout.podman / "tmp"),
        "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
    }


def _containers_conf(layout: Layout, host: Host, folder: Path) -> str:
    limits = [f"{name}={soft}:{hard}" for name, soft, hard in host.limits]
    # netavark.py removes stale rules of iptables; with Podman 5, netavark may be built to use nftables.
    firewall = 'firewall_driver = "iptables"\n' if _is_podman_5(host) else ""
    # static_dir stays unset: the clean-up process that conmon starts derives it from --root. With another one
    # it would not find the container and never restart it.
    return f"""\
[containers]
default_ulimits = {json.dumps(limits)}
log_driver = "k8s-file"
log_size_max = {MAX_LOG_BYTES}
pids_limit = {MAX_PROCESSES}
init_path = {json.dumps(host.init)}

[engine]
runtime = {json.dumps(host.runtime)}
cgroup_manager = "cgroupfs"
events_logger = "file"
events_logfile_max_size = {json.dumps(str(_EVENTS_SIZE_MAX))}
lock_type = "file"
exit_command_delay = {_EXEC_KEPT_SECONDS}
tmp_dir = {json.dumps(str(layout.run / "libpod"))}
volume_path = {json.dumps(str(folder / "volumes"))}
image_copy_tmp_dir = {json.dumps(str(layout.podman / "tmp"))}
helper_binaries_dir = ["/usr/libexec/podman", "/usr/lib/podman", "/usr/local/libexec/podman"]

[network]
network_backend = "netavark"
network_config_dir = {json.dumps(str(layout.podman / "networks"))}
{firewall}"""


def _storage_conf(layout: Layout, folder: Path, is_in_home: bool) -> str:
    # Below a shared mount, as `podman_view` is, the driver has to make its own folder private.
    private = '\n[storage.options.overlay]\nskip_mount_home = "true"\n' if is_in_home else ""
    return f"""\
[storage]
driver = "overlay"
{_graph_root(folder)}
runroot = {json.dumps(str(layout.runroot))}
{private}"""


def _graph_root(folder: Path) -> str:
    return f"graphroot = {json.dumps(str(folder / 'storage'))}"
