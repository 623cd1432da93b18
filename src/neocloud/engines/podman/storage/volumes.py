"""Volumes: claims that outlive pods, and scratch space that is removed with its pod.

A claim is a folder under `<home>/volumes/<namespace>/<name>/`. With a dataSourceRef of kind RootFilesystem it
is an overlay: the named root file system below, all changes above it, one mount on this machine that all pods
share. It keeps the version of the root file system that it started with. With any other source it is a copy,
made once, before the claim counts as existing: complete or absent, sparse, and shared with the original where
the file system supports it.

Data of a claim lie in its folder, or, for a filesystem of a tenant on a machine that can mount one, in a file
system of the claim's size (`sized_filesystems`). A claim stays what it was made as: those of earlier versions
are folders, whose size is recorded and not enforced.
"""

import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neocloud.core.osfiles import make_folder, sync_folder
from neocloud.core.untrusted.files import Folder, UnsafePath
from neocloud.core.untrusted.trees import BLOCK_BYTES, TreeLimits, copy_tree
from neocloud.engines.base import EngineError, Reference
from neocloud.engines.manifest import (
    CLAIM,
    DISK,
    ROOT_FILESYSTEM,
    SHARED,
    DataSource,
    EmptyDir,
    HostPath,
    Pod,
    VolumeClaim,
)
from neocloud.engines.podman.layout import Layout, logged, read_record, write_record
from neocloud.engines.podman.storage import sized_filesystems
from neocloud.engines.podman.storage.container_disks import promised_bytes
from neocloud.engines.podman.storage.mounts import (
    detach,
    is_mounted,
    is_mounted_elsewhere,
    mount_overlay,
    mount_tmpfs,
    mounts_below,
    remove_tree,
    unmount,
)
from neocloud.engines.podman.storage.pod_mounts import mount_shifted_overlay, shifted_by
from neocloud.engines.podman.storage.sized_filesystems import IMAGE

logger = logging.getLogger(__name__)

_SCRATCH_MODE = 0o777
FOLDER_MODE, FILE_MODE = 0o755, 0o644
"""Modes of new volumes, whatever the umask: programs in pods that are not root read them. They lie in the
state folder, which only root may enter."""

MAX_ENTRIES = 10_000_000
"""Most files and folders of a volume that is copied; a copy takes as many inodes of the disk."""
MAX_DEPTH = 128
"""Most levels of folders; each holds three open files while its content is copied."""
GIB = 1024**3
SPARE_BYTES = GIB
"""Space that a copy may take beyond 105 % of its volume's size, for the tables of disk files."""

MOST_NAMED = 5
"""How many filesystems a warning names."""


class Volumes:
    """Creates folders and mounts on this machine; blocking, to be called in a thread."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._mounting = threading.Lock()
        self.enforces_sizes = False
        """Whether new filesystems get a file system of their size; known once the engine is prepared."""

    def claims(self, namespace: str) -> list[str]:
        """Return the names of the claims of a namespace."""
        folder = self._layout.volumes / namespace
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def ensure_claim(self, claim: VolumeClaim) -> None:
        """Create the volume unless it exists; an overlay is mounted when the first pod mounts it."""
        folder = self._folder(claim.namespace, claim.name)
        source, spec = claim.data_source, claim.to_dict()["spec"]
        below = source.name if source and source.kind == ROOT_FILESYSTEM else None
        copied = str(source) if source and not below else None
        record: dict[str, object] = {
            "source": below,
            "copied": copied,
            "size_bytes": claim.size_bytes,
            "spec": spec,
        }
        known: dict[str, Any] = read_record(folder / "volume.json") or {}
        if known and (known["source"], known.get("copied")) != (below, copied):
            raise EngineError(
                f"PersistentVolumeClaim {claim.name} exists with another dataSourceRef; "
                "remove it first, which deletes its data, or choose another name."
            )
        if self._is_sized(claim, known):
            record["sized"] = True
            self._ensure_size(claim, known)
        if below:
            record["lower"] = self._lower(below, known.get("lower"))
        elif source and not known:
            with logged(logger, f"Copied {source} to volume {claim.namespace}/{claim.name}"):
                self._fill(self._content(claim.reference, record) / "data", source, claim.size_bytes)
        elif not record.get("sized"):
            make_folder(folder / "data", FOLDER_MODE)
        if record != known:
            write_record(folder / "volume.json", record)
            logger.debug("Created or changed volume %s/%s", claim.namespace, claim.name)

    def claim_path(self, namespace: str, name: str, first_id: int = 0) -> Path:
        """Return the folder that pods mount; an overlay shows owners shifted by `first_id`.

        Raises EngineError.
        """
        folder = self._folder(namespace, name)
        record = read_record(folder / "volume.json")
        if record is None:
            raise EngineError(
                f"PersistentVolumeClaim {name} of namespace {namespace} does not exist; "
                "apply it before the pod."
            )
        content = self._content(Reference(CLAIM, namespace, name), record)
        if record["source"]:
            with self._mounting:
                self._mount(folder, content, self._lower(record["source"], record.get("lower")), first_id)
            return folder / "merged"
        make_folder(content / "data", FOLDER_MODE)
        return content / "data"

    def shared_path(self, namespace: str, name: str) -> Path:
        """Return the folder of a filesystem for processes of this machine; it does not exist while the
        filesystem is not mounted. Raises EngineError."""
        record = read_record(self._folder(namespace, name) / "volume.json") or {}
        if SHARED not in record.get("spec", {}).get("accessModes", ()) or record["source"]:
            raise EngineError(
                f"PersistentVolumeClaim {name} is not a filesystem that exists; apply it first."
            )
        return self.claim_path(namespace, name)

    def stored_bytes(self, namespace: str, name: str) -> int:
        """Return what the files of a volume take of the disk: of an overlay, the changes."""
        folder = self._folder(namespace, name)
        if (folder / IMAGE).exists():
            return sized_filesystems.stored_bytes(folder / IMAGE, self._point(namespace, name))
        total = 0
        for part in filter(Path.is_dir, (folder / "data", folder / "upper")):
            for _, _, files, opened in os.fwalk(part):
                for file in files:
                    with suppress(FileNotFoundError):
                        total += os.stat(file, dir_fd=opened, follow_symlinks=False).st_blocks * BLOCK_BYTES
        return total

    def remove_claim(self, namespace: str, name: str) -> None:
        """Delete a volume with its data."""
        folder = self._folder(namespace, name)
        with logged(logger, f"Removed volume {namespace}/{name}"):
            unmount(folder / "merged")
            detach(self._point(namespace, name))
            with suppress(OSError):  # it is not there, or holds mounts of other claims
                self._point(namespace, name).parent.rmdir()
            remove_tree(folder)

    def scratch_path(self, namespace: str, pod: str, volume: str, source: EmptyDir) -> Path:
        """Return the folder of an emptyDir, in memory if its medium says so; create it if needed. It holds no
        more than its size, where sizes are enforced."""
        path = self._scratch(namespace, pod) / volume
        image = path.with_name(f"{volume}.ext4")
        is_new = not path.exists()
        if source.medium == "Memory":
            mount_tmpfs(path, size_bytes=source.size_bytes, mode=0o1777)
        elif image.exists() or (is_new and self.enforces_sizes and source.size_bytes):
            sized_filesystems.create(image, source.size_bytes or 0)
            sized_filesystems.mount(image, path)
            path = path / "data"  # beside what mkfs makes
            make_folder(path, _SCRATCH_MODE)
        else:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(_SCRATCH_MODE)
        return path

    def remove_scratch(self, namespace: str, pod: str) -> None:
        """Delete the emptyDirs of a pod."""
        folder = self._scratch(namespace, pod)
        for point in mounts_below(folder):
            unmount(point)
        remove_tree(folder)

    def unsized(self, namespace: str = "*") -> list[Reference]:
        """Return the filesystems whose size is not enforced, of one namespace or of all."""
        return [claim for claim, record in self._filesystems(namespace) if not record.get("sized")]

    def warnings(self) -> list[str]:
        """Return what an operator should know about the sizes of filesystems."""
        found: list[str] = []
        unsized = [claim.name for claim in self.unsized()] if self.enforces_sizes else []
        if unsized:
            more = f" and {len(unsized) - MOST_NAMED} more" if len(unsized) > MOST_NAMED else ""
            found.append(
                f"The size of {', '.join(unsized[:MOST_NAMED])}{more} is not enforced: created by an earlier "
                "version, or without loop devices. Create a new filesystem and copy the files."
            )
        promised = sum(record["size_bytes"] for _, record in self._filesystems() if record.get("sized"))
        promised += promised_bytes(self._layout)
        disk = shutil.disk_usage(self._layout.volumes).total
        if promised > disk:
            found.append(
                f"Filesystems and disks of containers of {promised / GIB:.0f} GiB in total lie on a disk of "
                f"{disk / GIB:.0f} GiB. When the disk is full, programs that write to them get "
                "input/output errors."
            )
        return found

    def _filesystems(self, namespace: str = "*") -> Iterator[tuple[Reference, Mapping[str, Any]]]:
        for path in sorted(self._layout.volumes.glob(f"{namespace}/*/volume.json")):
            record = read_record(path)
            if record and SHARED in record.get("spec", {}).get("accessModes", ()):
                yield Reference(CLAIM, path.parts[-3], path.parts[-2]), record

    def _is_sized(self, claim: VolumeClaim, known: Mapping[str, Any]) -> bool:
        """Return whether the claim has a file system of its own, or gets one."""
        if known:
            return bool(known.get("sized"))
        folder = self._folder(claim.namespace, claim.name)
        is_folder = (folder / "data").exists()  # of an earlier version that was killed before it was recorded
        return claim.is_filesystem and self.enforces_sizes and not is_folder

    def _ensure_size(self, claim: VolumeClaim, known: Mapping[str, Any]) -> None:
        """Create the file system, or grow it."""
        image = self._folder(claim.namespace, claim.name) / IMAGE
        if not known:
            sized_filesystems.create(image, claim.size_bytes)
        elif claim.size_bytes > known["size_bytes"]:
            point, merged = self._point(claim.namespace, claim.name), image.parent / "merged"
            with self._mounting:
                is_used = any(is_mounted(path) and is_mounted_elsewhere(path) for path in (merged, point))
                if not is_used and not sized_filesystems.can_grow_mounted():
                    detach(merged)  # a pod that is being created fails, and does not mount an empty folder
                sized_filesystems.grow(image, point, claim.size_bytes, is_used=is_used)
        elif claim.size_bytes < known["size_bytes"]:
            raise EngineError(f"PersistentVolumeClaim {claim.name} cannot shrink; create a smaller one.")

    def _content(self, claim: Reference, record: Mapping[str, Any]) -> Path:
        """Return the folder with the claim's data, mounted if it is a file system of its own."""
        folder = self._folder(claim.namespace, claim.name)
        if not record.get("sized"):
            return folder
        point = self._point(claim.namespace, claim.name)
        if not (folder / IMAGE).exists():
            raise EngineError(f"{folder / IMAGE} is gone, which held the files of the filesystem.")
        # All users may search the run folder, and tenants leave set-uid programs in their filesystems.
        self._layout.filesystems.mkdir(mode=0o700, parents=True, exist_ok=True)
        sized_filesystems.mount(folder / IMAGE, point)
        return point

    def _point(self, namespace: str, name: str) -> Path:
        return self._layout.filesystems / namespace / name

    def _mount(self, folder: Path, content: Path, lower: str, first_id: int) -> None:
        """Mount the overlay; unmount one with other ids first, as two must not write to one folder."""
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
            scratch = self._layout.run / "layers"
            mount_shifted_overlay(merged, lower=Path(lower), folder=content, first=first_id, scratch=scratch)
        else:
            mount_overlay(merged, lower=Path(lower), upper=content / "upper", work=content / "work")

    def _folder(self, namespace: str, name: str) -> Path:
        return self._layout.volumes / namespace / name

    def _scratch(self, namespace: str, pod: str) -> Path:
        return self._layout.pod(Reference("Pod", namespace, pod)) / "scratch"

    def _fill(self, target: Path, source: DataSource, size_bytes: int) -> None:
        if source.kind == CLAIM:
            copy_folder(self.claim_path(source.namespace, source.name), target, size_bytes)
            return
        disk = self._layout.images / "machine" / source.name / DISK
        if not disk.is_file():
            raise EngineError(f"The machine image {source.name} is not in {disk}; build or import it first.")
        copy_file(disk, target / DISK)

    def _lower(self, source: str, known: str | None) -> str:
        """Return the root file system that a volume started with, or the current one if it is gone."""
        if known and Path(known).is_dir():
            return known
        current = self._layout.images / source / "rootfs"
        if not current.is_dir():
            raise EngineError(f"The root file system {source} is not in {current}; build the images first.")
        return str(current.resolve())


def copy_folder(source: Path, target: Path, size_bytes: int) -> None:
    """Copy all files below `source`, with owners, times and links, which are not followed.

    Raises EngineError if they do not fit into a volume of this size or exceed the limits.
    """
    limits = TreeLimits(MAX_ENTRIES, MAX_DEPTH, size_bytes + size_bytes // 20 + SPARE_BYTES)

    def fill(folder: Folder) -> None:
        with Folder.open(source) as original:
            copy_tree(original, folder, exact=True, limits=limits)

    _copy(fill, target)


def copy_file(source: Path, target: Path) -> None:
    """Create the folder `target.parent` with a copy of this one file."""

    def fill(folder: Folder) -> None:
        with Folder.open(source.parent) as original:
            original.copy_file(source.name, folder, target.name, inner_links=True)
        with folder.file(target.name) as copied:
            os.fchmod(copied.fileno(), FILE_MODE)

    _copy(fill, target.parent)


def _copy(fill: Callable[[Folder], None], folder: Path) -> None:
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.new")
    remove_tree(unfinished)
    try:
        unfinished.mkdir(parents=True)
        unfinished.chmod(FOLDER_MODE)
        with Folder.open(unfinished) as copy:
            fill(copy)
        subprocess.run(["sync", "--file-system", str(unfinished)], check=True)
        unfinished.rename(folder)
    except UnsafePath as error:
        raise EngineError(f"A volume could not be filled: {error}; free space in the original.") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineError(f"A volume could not be filled: {error}; check free space.") from error
    finally:
        if unfinished.exists():
            remove_tree(unfinished)
    sync_folder(folder.parent)


def require_device(source: HostPath, pod: Pod) -> None:
    """Raise EngineError where this machine does not have the device."""
    if not Path(source.path).is_char_device():
        raise EngineError(f"Pod {pod.name} needs device {source.path}, which this machine does not have.")


def host_path(source: HostPath, pod: Pod) -> Path:
    """Return the path of this machine that a volume names; create it if the volume says so."""
    path = Path(source.path)
    if source.type == "DirectoryOrCreate":
        make_folder(path)
    elif source.type == "FileOrCreate" and not path.exists():
        path.touch()
        path.chmod(FILE_MODE)
    if not path.exists():
        raise EngineError(f"Pod {pod.name} mounts {path} of this machine, which is not there.")
    return path
