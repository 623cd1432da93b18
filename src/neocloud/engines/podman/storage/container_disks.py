"""Disks of containers: what one writes on its root is held to its limit `ephemeral-storage`. Blocking.

A container with that limit whose image is a root file system gets a file system of the limit's size
(`sized_filesystems`) in its pod's folder. Its root is an overlay: the image below, and a layer in that file
system above. It is mounted in the run folder, and Podman is given the mount point as a folder. The layer is
kept when the container is started again, also after a boot, and removed with the container. In a pod with a
user namespace its files have the ids that they have on this machine, as in layers that Podman makes.

Containers without the limit, with a read-only root, or from an image that Podman stores have a layer that
Podman makes, without a size.
"""

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from neocloud.core.osfiles import make_folder
from neocloud.engines.base import Reference
from neocloud.engines.manifest import Container, Pod
from neocloud.engines.podman.layout import Layout, pod_field
from neocloud.engines.podman.storage import sized_filesystems
from neocloud.engines.podman.storage.mounts import (
    detach,
    mount_overlay,
    mounts_below,
    remove_tree,
)
from neocloud.engines.podman.storage.sized_filesystems import IMAGE

logger = logging.getLogger(__name__)

_ROOT = "root"
"""Mount point of the container's root, in its file system."""


class ContainerDisks:
    """Creates, mounts and removes the disks of containers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.are_enforced = False
        """Whether new containers get a disk of their size; known once the engine is prepared."""

    def create(self, pod: Pod, roots: Mapping[str, Path]) -> None:
        """Create the disks of a new pod, in place of those that a killed server left. Raises EngineError.

        `roots`: folder by image name, of images that are root file systems.
        """
        self.remove(pod.reference)
        for container in pod.containers:
            size_bytes = _writable_bytes(container)
            if not size_bytes:
                continue
            if self.are_enforced and container.image in roots:
                sized_filesystems.create(self._image(pod, container), size_bytes)
            else:
                reason = "the image lies in Podman's store" if self.are_enforced else "see `neo status`"
                logger.warning(
                    "The disk size of container %s is not enforced: %s",
                    container.name,
                    reason,
                    extra=pod_field(pod.reference),
                )

    def mount(self, pod: Pod, roots: Mapping[str, Path], first_id: int) -> dict[str, Path]:
        """Mount the disks that the pod has, and return the containers' roots by name. Raises EngineError.

        `roots`: as for `create`, with shifted ids in a pod with a user namespace.
        """
        found: dict[str, Path] = {}
        for container in pod.containers:
            image = self._image(pod, container)
            if container.image in roots and image.exists():
                point = self._folder(pod.reference) / container.name
                self._make_folders(pod.reference, first_id)
                sized_filesystems.mount(image, point)
                self._mount_root(point, roots[container.image], first_id)
                found[container.name] = point / _ROOT
        return found

    def remove(self, pod: Reference) -> None:
        """Remove the disks of a pod whose containers have been removed."""
        folder = self._folder(pod)
        for point in mounts_below(folder):
            detach(point)
        remove_tree(folder)
        remove_tree(self._images(pod))

    def _make_folders(self, pod: Reference, first_id: int) -> None:
        """Create the folders above the mounts of a pod, closed to the host's other users.

        Root of a pod's user namespace has to search them, and leaves set-uid programs in its layer.
        """
        space = self._layout.disks / pod.namespace
        make_folder(space.parent, 0o711)
        space.mkdir(mode=0o700, exist_ok=True)
        if first_id:
            os.chown(space, first_id, first_id)
        make_folder(self._folder(pod), 0o711)

    def _mount_root(self, disk: Path, lower: Path, first_id: int) -> None:
        upper = disk / "upper"
        make_folder(upper)
        os.chown(upper, first_id, first_id)  # it is "/" for the programs in it
        mount_overlay(disk / _ROOT, lower=lower, upper=upper, work=disk / "work", allows_devices=False)

    def _folder(self, pod: Reference) -> Path:
        return self._layout.disks / pod.namespace / pod.name

    def _images(self, pod: Reference) -> Path:
        return self._layout.pod(pod) / "disks"

    def _image(self, pod: Pod, container: Container) -> Path:
        return self._images(pod.reference) / container.name / IMAGE


def promised_bytes(layout: Layout) -> int:
    """Return the sizes of all disks together, which take what was written."""
    total = 0
    for image in layout.namespaces.glob(f"*/pods/*/disks/*/{IMAGE}"):
        with contextlib.suppress(FileNotFoundError):  # its pod was removed
            total += image.stat().st_size
    return total


def _writable_bytes(container: Container) -> int:
    """Return how much the container may write on its root; 0 without a limit, or with nothing to hold."""
    context = container.security_context
    return 0 if context and context.read_only_root_filesystem else container.disk_bytes
