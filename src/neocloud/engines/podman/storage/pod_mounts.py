"""Mount points for pods: volumes that Podman must not look up by name, or whose owners are shifted. Blocking.

A program that can write in a volume can replace a folder by a link to the host's files, even after a check:
Podman is given a name, and looks it up when a container is created and each time it is started. So a sub-path
of a volume is opened without following links, and that descriptor is mounted below the engine's run folder,
which only root can enter; Podman is given the mount point. All folders of a pod with a user namespace are
mounted in this way, with shifted ids (user_namespaces.py). The mounts outlive the server, serve restarts by
Podman itself, are renewed when the pod is applied again (also after a boot), and are removed with the pod.
"""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.core.untrusted_files import Folder, UnsafePath
from neocloud.engines.base import EngineError, PathRefused
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.storage.mounts import detach, mount_descriptor, mounts_below
from neocloud.engines.podman.storage.user_namespaces import shifted_by, user_namespace

SubPath = tuple[str, str]
"""(name of a pod's volume, path in it)"""


@dataclass(frozen=True)
class MountedPaths:
    """Sources of a pod's mounts: by volume name, by sub-path, and by image that is a root file system."""

    volumes: Mapping[str, Path] = field(default_factory=dict)
    sub_paths: Mapping[SubPath, Path] = field(default_factory=dict)
    root_filesystems: Mapping[str, Path] = field(default_factory=dict)


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
            sub_paths = {}
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
