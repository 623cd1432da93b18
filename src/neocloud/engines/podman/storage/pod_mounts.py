"""Mount points for pods: volumes that Podman must not look up by name, or whose owners are shifted. Blocking.

A program that can write in a volume can replace a folder by a link to the host's files, even after a check:
Podman is given a name, and looks it up when a container is created and each time it is started. So a sub-path
of a volume is opened without following links, and that descriptor is mounted below the engine's run folder,
which only root can enter; Podman is given the mount point. All folders of a pod with a user namespace are
mounted in this way, with shifted ids. The mounts outlive the server, serve restarts by Podman itself, are
renewed when the pod is applied again (also after a boot), and are removed with the pod.

A pod with `hostUsers: false` has a user namespace. The ids 0 to 65535 of all pods of a Kubernetes namespace
map to one range of ids of this machine that nobody else has, so root in them has no rights here. Files on
disk keep the ids that pods see: such a pod mounts an idmapped mount (mount_setattr(2)), which shifts ids. An
overlay cannot be shifted (EINVAL); an overlay on top of shifted folders shows shifted ids.
"""

import contextlib
import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from neocloud.core.osfiles import make_folder
from neocloud.core.untrusted.files import Folder, UnsafePath
from neocloud.engines.base import EngineError, PathRefused
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.storage.mounts import (
    detach,
    libc,
    mount_descriptor,
    mount_filesystem,
    mount_options,
    mount_tmpfs,
    mounts_below,
    remove_tree,
    unmount,
)

SubPath = tuple[str, str]
"""(name of a pod's volume, path in it)"""


@dataclass(frozen=True)
class MountedPaths:
    """Sources of a pod's mounts: by volume name, by sub-path, by image that is a root file system."""

    volumes: Mapping[str, Path] = field(default_factory=dict[str, Path])
    sub_paths: Mapping[SubPath, Path] = field(default_factory=dict[SubPath, Path])
    root_filesystems: Mapping[str, Path] = field(default_factory=dict[str, Path])
    disks: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Root by container name, of containers whose disk has a size."""


class PodMounts:
    """Creates and removes the mount points of pods."""

    def __init__(self, layout: Layout) -> None:
        self._root = layout.pod_mounts

    def mount(
        self,
        pod: Pod,
        volumes: Mapping[str, Path],
        root_filesystems: Mapping[str, Path] | None = None,
        first_id: int = 0,
    ) -> MountedPaths:
        """Mount what the pod needs: with `first_id` everything, with ids shifted by it, else sub-paths only.

        Raises PathRefused for a link or device in a path, EngineError for a missing path.
        """
        roots = root_filesystems or {}
        folder = self._folder(pod.namespace, pod.name)
        with contextlib.ExitStack() as stack:
            namespace = stack.enter_context(user_namespace(first_id)) if first_id else None
            sub_paths: dict[SubPath, Path] = {}
            for volume, sub_path in pod.sub_paths:
                if volume in volumes and (volume, sub_path) not in sub_paths:
                    point = folder / _file_name(volume, sub_path)
                    where = f"Pod {pod.name}, volume {volume}"
                    owner_ids = None if _is_shifted(volumes[volume], first_id) else namespace
                    _mount_sub_path(volumes[volume], sub_path, point, where, owner_ids)
                    sub_paths[volume, sub_path] = point
            if namespace is None:
                return MountedPaths(volumes, sub_paths, roots)
            return MountedPaths(
                {name: _shifted(path, folder / name, namespace, first_id) for name, path in volumes.items()},
                sub_paths,
                {
                    image: _shifted(path, folder / _file_name("image", image), namespace, first_id)
                    for image, path in roots.items()
                },
            )

    def remove(self, namespace: str, pod: str) -> None:
        """Remove the mounts of a pod. The volumes stay as they are."""
        folder = self._folder(namespace, pod)
        for point in mounts_below(folder):
            detach(point)
        if folder.is_dir():
            for point in folder.iterdir():
                detach(point)  # left by a boot or a shutdown, with nothing mounted
            folder.rmdir()

    def _folder(self, namespace: str, pod: str) -> Path:
        return self._root / namespace / pod


def _file_name(kind: str, text: str) -> str:
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _is_shifted(path: Path, first_id: int) -> bool:
    """Return whether the path is an overlay that was mounted for this range of ids."""
    return first_id > 0 and shifted_by(path) == first_id


def _shifted(path: Path, point: Path, namespace: int, first_id: int) -> Path:
    if _is_shifted(path, first_id):
        return path
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        mount_descriptor(descriptor, point, namespace)
    finally:
        os.close(descriptor)
    return point


def _mount_sub_path(volume: Path, sub_path: str, point: Path, where: str, user_namespace: int | None) -> None:
    try:
        with Folder.open(volume) as folder, folder.pinned(sub_path) as descriptor:
            mount_descriptor(descriptor, point, user_namespace)
    except UnsafePath as error:
        raise PathRefused(
            f'{where}: the path "{sub_path}" {error.why}; name a plain folder or file of the volume.'
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EngineError(f'{where}: there is no "{sub_path}" in it; create that folder first.') from error
    except OSError as error:
        raise EngineError(f'{where}: "{sub_path}" cannot be mounted: {error}.') from error


SIZE = 65536
"""Number of ids of a pod: those of a Linux installation, including `nobody` (65534)."""
_FIRST, _RANGES = 0x4000_0000, 8192
"""Above the subordinate ids that useradd assigns (login.defs: up to 600,100,000)."""
_LAYERS = "layers-"
_OF_LAYERS = re.compile(rf"lowerdir=[^,]*/{_LAYERS}(\d+)-")
_SET_SECURE_BITS, _NO_SETUID_FIXUP = 28, 1 << 2  # linux/prctl.h, linux/securebits.h


def first_id(subnet: IPv4Network) -> int:
    """Return the id of this machine that root of a namespace has; each namespace has another subnet."""
    return _FIRST + (int(subnet.network_address) >> 8) % _RANGES * SIZE


def id_mappings(first: int) -> dict[str, object]:
    """Return the fields of a libpod container spec."""
    mapping = [{"container_id": 0, "host_id": first, "size": SIZE}]
    return {"userns": {"nsmode": "private"}, "idmappings": {"UIDMap": mapping, "GIDMap": mapping}}


@contextlib.contextmanager
def user_namespace(first: int) -> Generator[int, None, None]:
    """Provide a descriptor of a user namespace whose ids begin at `first`, for mounts. Raises EngineError."""
    # A process with several threads, like ours, cannot create one itself.
    command = ["unshare", "--user", "sh", "-c", "echo made; read end"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout and child.stderr
        if not child.stdout.readline():
            raise EngineError(f"No user namespace could be created: {child.stderr.read().strip()}.")
        process = Path("/proc") / str(child.pid)
        for name in ("uid_map", "gid_map"):
            (process / name).write_text(f"0 {first} {SIZE}")
        descriptor = os.open(process / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
        child.stdin.close()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def mount_shifted_overlay(point: Path, *, lower: Path, folder: Path, first: int, scratch: Path) -> None:
    """Mount a writable view on `lower` at `point`; changes go to `folder`/upper, with unshifted ids.

    The shifted layers are mounted in the folder `scratch` for a moment. Raises EngineError.
    """
    for name in ("upper", "work"):
        make_folder(folder / name)
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    layers = Path(tempfile.mkdtemp(prefix=f"{_LAYERS}{first}-", dir=scratch))
    try:
        with user_namespace(first) as namespace:
            _mount_folder(lower, layers / "lower", namespace)
            _mount_folder(folder, layers / "written", namespace)
        options = f"lowerdir={layers}/lower,upperdir={layers}/written/upper,workdir={layers}/written/work"
        point.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ThreadPoolExecutor(1) as thread:  # its ids and secure bits end with it
            thread.submit(_mount_as, first, point, options).result()
    finally:
        for name in ("lower", "written"):
            detach(layers / name)  # the overlay keeps its own reference
        layers.rmdir()


def shifted_by(path: Path) -> int:
    """Return the first id of the range that the overlay mounted here was made for; 0 for anything else.

    Read from the kernel's record of its layers, not from owners, which tenants can change.
    """
    found = _OF_LAYERS.search(mount_options(path))
    return int(found[1]) if found else 0


def missing_support(folder: Path) -> str:
    """Return why file systems here cannot be shifted, empty if they can; tests it inside `folder`."""
    scratch = Path(tempfile.mkdtemp(prefix="user-namespaces-", dir=folder))
    overlay, memory, shown = (scratch / name for name in ("overlay", "memory", "shown"))
    try:
        for name in ("lower", "written"):
            make_folder(scratch / name)
        mount_tmpfs(memory)
        mount_shifted_overlay(
            overlay,
            lower=scratch / "lower",
            folder=scratch / "written",
            first=_FIRST,
            scratch=scratch / "layers",
        )
        with user_namespace(_FIRST) as namespace:
            _mount_folder(memory, shown, namespace)
        if any(point.stat().st_uid != _FIRST for point in (overlay, shown)):
            return "mounts do not shift ids"
        # The kernel mounts an overlay read-only when it cannot work in the folder behind it.
        is_writable = not os.statvfs(overlay).f_flag & os.ST_RDONLY
        return "" if is_writable else "an overlay over shifted folders cannot be written to"
    except (EngineError, OSError) as error:
        return str(error)
    finally:
        detach(shown)
        for mounted in (overlay, memory):
            unmount(mounted)
        remove_tree(scratch)


def _mount_folder(source: Path, point: Path, namespace: int) -> None:
    descriptor = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mount_descriptor(descriptor, point, namespace)
    finally:
        os.close(descriptor)


def _mount_as(user: int, point: Path, options: str) -> None:
    """Mount an overlay that creates its own files as `user`, with the capabilities of this thread.

    It creates them in shifted folders, in which root of this machine has no id (EOVERFLOW). Changes the
    credentials of this thread.
    """
    if libc.prctl(_SET_SECURE_BITS, _NO_SETUID_FIXUP, 0, 0, 0):
        raise EngineError(f"{point} could not be mounted: {os.strerror(ctypes.get_errno())}.")
    libc.setfsuid(user)
    libc.setfsgid(user)
    mount_filesystem("overlay", point, options)
