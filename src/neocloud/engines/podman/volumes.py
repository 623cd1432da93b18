"""Volumes: claims that outlive pods, scratch space that goes with its pod.

A claim is a folder under `<home>/volumes/<namespace>/<name>/`. With a dataSourceRef of kind RootFilesystem it
is an overlay: the named root file system below, everything written above it, one mount on this machine that
all pods share. It keeps the version of the root file system that it began with. With any other source it is a
copy, made once, before the claim counts as existing. Sizes are recorded and not enforced.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neocloud.core.osfiles import make_folder
from neocloud.engines.base import EngineError, KubernetesObject
from neocloud.engines.data_source import CLAIM, DISK, ROOT_FILESYSTEM, DataSource, data_source_of
from neocloud.engines.manifests import quantity
from neocloud.engines.podman.copies import FOLDER_MODE, copy_file, copy_folder
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.mounts import (
    is_mounted,
    is_mounted_elsewhere,
    mount_overlay,
    mount_tmpfs,
    mounts_below,
    remove_tree,
    unmount,
)
from neocloud.engines.podman.records import read_record, write_record
from neocloud.engines.podman.user_namespaces import mount_shifted_overlay, shifted_by

_SCRATCH_MODE = 0o777


class Volumes:
    """Makes folders and mounts on the host; blocking, to be called in a thread."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._mounting = threading.Lock()

    def claims(self, namespace: str) -> list[str]:
        folder = self._layout.volumes / namespace
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def ensure_claim(self, manifest: KubernetesObject) -> None:
        """The volume exists; an overlay is mounted when the first pod mounts it."""
        metadata, spec = manifest["metadata"], manifest.get("spec") or {}
        folder = self._folder(metadata["namespace"], metadata["name"])
        source = data_source_of(manifest)
        below = source.name if source and source.kind == ROOT_FILESYSTEM else None
        copied = str(source) if source and not below else None
        record = {"source": below, "copied": copied, "size_bytes": _size_of(manifest), "spec": spec}
        known = read_record(folder / "volume.json") or {}
        if known and (known["source"], known.get("copied")) != (below, copied):
            raise EngineError(
                f"PersistentVolumeClaim {metadata['name']} exists with another dataSourceRef; "
                "remove it first, which deletes its data, or choose another name."
            )
        if record["source"]:
            record["lower"] = self._lower(record["source"], known.get("lower"))
        else:
            if source and not known:
                self._fill(folder / "data", source, record["size_bytes"])
            make_folder(folder / "data", FOLDER_MODE)
        write_record(folder / "volume.json", record)

    def claim_path(self, namespace: str, name: str, first_id: int = 0) -> Path:
        """What pods mount; an overlay shows owners shifted by `first_id`, a folder as they are.

        Raises EngineError.
        """
        folder = self._folder(namespace, name)
        record = read_record(folder / "volume.json")
        if record is None:
            raise EngineError(
                f"PersistentVolumeClaim {name} of namespace {namespace} does not exist; "
                "apply it before the pod."
            )
        if record["source"]:
            with self._mounting:
                self._mount(folder, self._lower(record["source"], record.get("lower")), first_id)
            return folder / "merged"
        make_folder(folder / "data", FOLDER_MODE)
        return folder / "data"

    def remove_claim(self, namespace: str, name: str) -> None:
        folder = self._folder(namespace, name)
        unmount(folder / "merged")
        remove_tree(folder)

    def scratch_path(self, namespace: str, pod: str, volume: str, source: Mapping[str, Any]) -> Path:
        """An emptyDir of a pod; in memory when its medium says so."""
        path = self._scratch(namespace, pod) / volume
        if source.get("medium") == "Memory":
            limit = source.get("sizeLimit")
            size = int(quantity(limit, "sizeLimit")) if limit else None
            mount_tmpfs(path, size_bytes=size, mode=0o1777)
        else:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(_SCRATCH_MODE)
        return path

    def remove_scratch(self, namespace: str, pod: str) -> None:
        folder = self._scratch(namespace, pod)
        for point in mounts_below(folder):
            unmount(point)
        remove_tree(folder)

    def _mount(self, folder: Path, lower: str, first_id: int) -> None:
        """Two overlays must not write to one folder, so one that is shifted otherwise has to go before."""
        merged = folder / "merged"
        if is_mounted(merged):
            if shifted_by(merged) == first_id:
                return
            if is_mounted_elsewhere(merged):
                raise EngineError(
                    f"PersistentVolumeClaim {folder.name} is still used by a pod with other user ids; it can "
                    "be mounted once that pod is gone. Apply the pod again."
                )
            unmount(merged)
        if first_id:
            place = self._layout.run / "layers"
            mount_shifted_overlay(merged, lower=Path(lower), folder=folder, first=first_id, place=place)
        else:
            mount_overlay(merged, lower=Path(lower), upper=folder / "upper", work=folder / "work")

    def _folder(self, namespace: str, name: str) -> Path:
        return self._layout.volumes / namespace / name

    def _scratch(self, namespace: str, pod: str) -> Path:
        return self._layout.namespace(namespace) / "pods" / pod / "scratch"

    def _fill(self, target: Path, source: DataSource, size_bytes: int) -> None:
        if source.kind == CLAIM:
            copy_folder(self.claim_path(source.namespace, source.name), target, size_bytes)
            return
        disk = self._layout.images / "machine" / source.name / DISK
        if not disk.is_file():
            raise EngineError(f"The machine image {source.name} is not in {disk}; build or import it first.")
        copy_file(disk, target / DISK)

    def _lower(self, source: str, known: str | None) -> str:
        """The root file system that the volume began with, as long as that version is there."""
        if known and Path(known).is_dir():
            return known
        current = self._layout.images / source / "rootfs"
        if not current.is_dir():
            raise EngineError(f"The root file system {source} is not in {current}; build the images first.")
        return str(current.resolve())


def _size_of(manifest: KubernetesObject) -> int:
    name = manifest["metadata"]["name"]
    requests = ((manifest.get("spec") or {}).get("resources") or {}).get("requests") or {}
    if "storage" not in requests:
        raise EngineError(f"PersistentVolumeClaim {name} has no size; set spec.resources.requests.storage.")
    size = int(quantity(requests["storage"], f"PersistentVolumeClaim {name}: storage"))
    if size < 1:
        raise EngineError(f"PersistentVolumeClaim {name}: storage must be more than 0.")
    return size
