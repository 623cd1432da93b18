"""What pods mount that Podman must not look up by name, or that is shown to them with other owners.

Anyone who can write in a volume can put a link to the host's files in place of a folder, also after a
check: Podman takes a name, and looks it up when a container is made and each time it is started. So a
sub-folder of a volume is opened without following links, and that descriptor is mounted below the engine's
run folder, which is root's alone; Podman is given the mount point. A pod with a user namespace gets all its
folders in this way, with their ids shifted (user_namespaces.py). The mounts stay when the server ends, are
there for restarts that Podman makes by itself, are renewed when the pod is applied again (also after a
boot) and go with the pod. Blocking.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.core.osfiles import Folder, UnsafePath
from neocloud.engines.base import EngineError, KubernetesObject, PathRefused
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.storage.mounts import detach, mount_descriptor, mounts_below
from neocloud.engines.podman.storage.user_namespaces import shifted_by, user_namespace

SubPath = tuple[str, str]
"""Name of a pod's volume, path in it."""


@dataclass(frozen=True)
class MountedPaths:
    """Where to mount from, by name of the volume, by sub-path, and by image that is a root file system."""

    volumes: Mapping[str, Path] = field(default_factory=dict)
    sub_paths: Mapping[SubPath, Path] = field(default_factory=dict)
    root_filesystems: Mapping[str, Path] = field(default_factory=dict)


class PodMounts:
    def __init__(self, layout: Layout) -> None:
        self._root = layout.pod_mounts

    def show(
        self,
        manifest: KubernetesObject,
        volumes: Mapping[str, Path],
        root_filesystems: Mapping[str, Path] | None = None,
        first_id: int = 0,
    ) -> MountedPaths:
        """Mount what the pod needs; with `first_id` everything, shifted by it, else sub-paths only.

        Raises PathRefused for a link or device in a path, EngineError for one that is not there.
        """
        metadata, roots = manifest["metadata"], root_filesystems or {}
        place = self._place(metadata["namespace"], metadata["name"])
        with contextlib.ExitStack() as stack:
            namespace = stack.enter_context(user_namespace(first_id)) if first_id else None
            sub_paths = {}
            for volume, sub_path in find_sub_paths(manifest):
                if volume in volumes and (volume, sub_path) not in sub_paths:
                    point = place / _file_name(volume, sub_path)
                    where = f"Pod {metadata['name']}, volume {volume}"
                    shifts = None if _is_shifted(volumes[volume], first_id) else namespace
                    _show(volumes[volume], sub_path, point, where, shifts)
                    sub_paths[volume, sub_path] = point
            if namespace is None:
                return MountedPaths(volumes, sub_paths, roots)
            return MountedPaths(
                {name: _shifted(path, place / name, namespace, first_id) for name, path in volumes.items()},
                sub_paths,
                {
                    image: _shifted(path, place / _file_name("image", image), namespace, first_id)
                    for image, path in roots.items()
                },
            )

    def remove(self, namespace: str, pod: str) -> None:
        """Take the mounts of a pod away. The volumes stay as they are."""
        place = self._place(namespace, pod)
        for point in mounts_below(place):
            detach(point)
        if place.is_dir():
            for point in place.iterdir():
                detach(point)  # left from a boot or a shutdown: nothing is mounted there any more
            place.rmdir()

    def _place(self, namespace: str, pod: str) -> Path:
        return self._root / namespace / pod


def find_sub_paths(manifest: KubernetesObject) -> Iterator[SubPath]:
    """Yield the sub-paths that the containers of a pod mount."""
    for container in manifest["spec"]["containers"]:
        for mount in container.get("volumeMounts") or []:
            if mount.get("subPath"):
                yield mount["name"], mount["subPath"]


def _file_name(kind: str, text: str) -> str:
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _is_shifted(path: Path, first_id: int) -> bool:
    """Whether it is an overlay that was laid for this range."""
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


def _show(volume: Path, sub_path: str, point: Path, where: str, user_namespace: int | None) -> None:
    try:
        with Folder.open(volume) as folder, folder.pinned(sub_path) as descriptor:
            mount_descriptor(descriptor, point, user_namespace)
    except UnsafePath as error:
        raise PathRefused(
            f'{where}: the path "{sub_path}" {error.why}; name a plain folder or file of the volume.'
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EngineError(f'{where}: there is no "{sub_path}" in it; make that folder first.') from error
    except OSError as error:
        raise EngineError(f'{where}: "{sub_path}" cannot be mounted: {error}.') from error
