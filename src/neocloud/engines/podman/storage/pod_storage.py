"""All that a pod has of this machine's storage: its volumes, and the roots of its containers. Blocking."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from neocloud.engines.base import Reference
from neocloud.engines.manifest import ATTACHED_VOLUME, Pod, Volume
from neocloud.engines.podman.layout import Layout, write_file
from neocloud.engines.podman.storage.attached_claims import show_attached
from neocloud.engines.podman.storage.config_mounts import ConfigMounts
from neocloud.engines.podman.storage.container_disks import ContainerDisks
from neocloud.engines.podman.storage.pod_mounts import MountedPaths, PodMounts
from neocloud.engines.podman.storage.volumes import Volumes, host_path, require_device


class PodStorage:
    """Mounts and removes what pods use."""

    def __init__(self, layout: Layout, volumes: Volumes, config_mounts: Mapping[str, ConfigMounts]) -> None:
        self._layout = layout
        self._volumes = volumes
        self._config_mounts = config_mounts
        self._mounts = PodMounts(layout)
        self.disks = ContainerDisks(layout)

    def mount(self, pod: Pod, roots: Mapping[str, Path], first_id: int) -> MountedPaths:
        """Create the pod's mounts and the roots of its containers. May be repeated. Raises EngineError.

        `roots`: folder by image name. `first_id`: of the pod's user namespace, 0 without one.
        """
        path, content = self._layout.host_name_file(pod.reference), f"{pod.host_name}\n".encode()
        if not path.exists() or path.read_bytes() != content:
            write_file(path, content, 0o644)
        shown = self._mounts.mount(pod, self._volume_folders(pod, first_id), roots, first_id)
        return replace(shown, disks=self.disks.mount(pod, shown.root_filesystems, first_id))

    def remove(self, pod: Reference) -> None:
        """Remove the mounts, disks and scratch volumes of a pod whose containers have been removed."""
        self.disks.remove(pod)
        self._mounts.remove(pod.namespace, pod.name)
        self._volumes.remove_scratch(pod.namespace, pod.name)
        self._layout.host_name_file(pod).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not there, or holds a record of the network
            self._layout.pod(pod).rmdir()

    def _volume_folders(self, pod: Pod, first_id: int) -> dict[str, Path]:
        folders: dict[str, Path] = {}
        for volume in pod.volumes:
            if volume.host_path and volume.host_path.is_device:
                require_device(volume.host_path, pod)
            else:
                folders[volume.name] = self._volume_folder(pod, volume, first_id)
        return folders

    def _volume_folder(self, pod: Pod, volume: Volume, first_id: int) -> Path:
        if volume.config_map:
            return self._config_mounts["ConfigMap"].view(pod.namespace, volume.config_map)
        if volume.secret:
            return self._config_mounts["Secret"].view(pod.namespace, volume.secret)
        if claim := pod.claim_of(volume):
            return self._volumes.claim_path(claim.namespace, claim.name, first_id)
        if volume.empty_dir and volume.name == ATTACHED_VOLUME:
            return show_attached(pod, self._volumes)
        if volume.empty_dir:
            return self._volumes.scratch_path(pod.namespace, pod.name, volume.name, volume.empty_dir)
        assert volume.host_path is not None, "a volume has a source"
        return host_path(volume.host_path, pod)
