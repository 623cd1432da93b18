"""Claims that come and go while their pod runs. Blocking.

Each claim is mounted below a folder of the pod that containers mount with propagation: what is mounted there
later shows in them, and in those that Podman starts again. Containers have the folder read-only, so that no
program in them can put a link in the place of a mount. A claim is released by unmounting it, which the kernel
refuses as long as a process of the pod has a file of it open: a claim that was released is really free.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from neocloud.engines.base import EngineError
from neocloud.engines.manifest import ATTACHED_VOLUME, EmptyDir, Pod
from neocloud.engines.podman.storage.mounts import (
    is_mounted,
    mount_descriptor,
    mount_view,
    unmount_unused,
)
from neocloud.engines.podman.storage.volumes import Volumes


@dataclass(frozen=True)
class AttachedClaim:
    """A claim's folder on this machine."""

    folder: Path
    is_read_only: bool = False


def show_attached(pod: Pod, volumes: Volumes) -> Path:
    """Mount the claims that are attached to the pod, and no others; return the folder that shows them.

    Raises EngineError while a program of the pod uses one that is to go.
    """
    folder = volumes.scratch_path(pod.namespace, pod.name, ATTACHED_VOLUME, EmptyDir())
    claims: dict[str, AttachedClaim] = {}
    for source in pod.attached:
        claim = pod.attached_claim(source)
        path = volumes.claim_path(claim.namespace, claim.name)
        claims[source.claim_name] = AttachedClaim(path, source.read_only)
    show_claims(folder, claims)
    return folder


def show_claims(folder: Path, claims: Mapping[str, AttachedClaim]) -> None:
    """Mount exactly these claims below the folder, by name. Raises EngineError while a program uses one that
    is to go; the others are as they should be then."""
    mount_view(folder, folder)
    used = [
        point.name
        for point in sorted(folder.iterdir())
        if not _is_shown(point, claims.get(point.name)) and not unmount_unused(point)
    ]
    for name, claim in claims.items():
        if name not in used and not is_mounted(folder / name):
            descriptor = os.open(claim.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                mount_descriptor(descriptor, folder / name, is_read_only=claim.is_read_only)
            finally:
                os.close(descriptor)
    if used:
        raise EngineError(f"A program of the pod still uses the claim {', '.join(used)}; it stays attached.")


def _is_shown(point: Path, claim: AttachedClaim | None) -> bool:
    if claim is None or not is_mounted(point):
        return False
    is_read_only = bool(os.statvfs(point).f_flag & os.ST_RDONLY)
    return os.path.samestat(point.stat(), claim.folder.stat()) and is_read_only == claim.is_read_only
