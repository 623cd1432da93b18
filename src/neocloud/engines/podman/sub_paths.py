"""Sub-folders of volumes that pods mount, each shown at a path that no tenant can change.

Who can write in a volume can put a link to the host's files where a folder was, also after any check: Podman
takes a name, and looks it up when a container is made and each time it is started. So the sub-folder is
opened without following links, and that descriptor is bind-mounted below the engine's run folder, which is
root's alone; Podman is given the mount point. The mount stays when the server ends, is there for restarts
that Podman makes by itself, is renewed when the pod is applied again (also after a boot) and goes with the
pod. Blocking.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from neocloud.core.osfiles import Folder, UnsafePath
from neocloud.engines.base import EngineError, KubernetesObject, PathRefused
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.mounts import detach, mount_descriptor, mounts_below

SubPath = tuple[str, str]
"""Name of a pod's volume, path in it."""


class SubPaths:
    def __init__(self, layout: Layout) -> None:
        self._root = layout.sub_paths

    def show(self, manifest: KubernetesObject, volumes: Mapping[str, Path]) -> dict[SubPath, Path]:
        """Mount points of all sub-paths that the pod mounts of `volumes`, folders by name.

        Raises PathRefused for a link or device in a path, EngineError for one that is not there.
        """
        metadata = manifest["metadata"]
        place = self._place(metadata["namespace"], metadata["name"])
        found = {}
        for volume, sub_path in find_sub_paths(manifest):
            if volume in volumes and (volume, sub_path) not in found:
                point = place / f"{volume}-{hashlib.sha256(sub_path.encode()).hexdigest()[:16]}"
                _show(volumes[volume], sub_path, point, f"Pod {metadata['name']}, volume {volume}")
                found[volume, sub_path] = point
        return found

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


def _show(volume: Path, sub_path: str, point: Path, where: str) -> None:
    try:
        with Folder.open(volume) as folder, folder.pinned(sub_path) as descriptor:
            mount_descriptor(descriptor, point)
    except UnsafePath as error:
        raise PathRefused(
            f'{where}: the path "{sub_path}" {error.why}; name a plain folder or file of the volume.'
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EngineError(f'{where}: there is no "{sub_path}" in it; make that folder first.') from error
    except OSError as error:
        raise EngineError(f'{where}: "{sub_path}" cannot be mounted: {error}.') from error
