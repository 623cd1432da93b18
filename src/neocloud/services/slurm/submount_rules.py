"""Rules of the folders that each worker of a cluster has for itself. Pure.

A path is written by a tenant: it may hide nothing of the system, no home and no other mount. That it leads
through no link is ensured where it is mounted, by the image's `shared-root`.
"""

from collections.abc import Iterable, Sequence

from neocloud.core.kind import Violation
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.compute.public import preset
from neocloud.services.slurm.types import memory_of_submounts

SYSTEM_FOLDERS = frozenset(
    {"bin", "boot", "dev", "etc", "jail", "opt", "proc", "run", "sbin", "sys", "tmp", "usr", "var"}
)
_FOLDERS_OF_USERS = frozenset({"home", "root", "lost+found"})
MOST_OF_MEMORY = 2
"""Submounts may have one part in so many of a worker's memory."""


def is_of_system(path: str) -> bool:
    top = path.split("/")[1]
    return top in SYSTEM_FOLDERS or top.startswith("lib")


def overlaps(path: str, others: Iterable[str]) -> list[str]:
    """Return the other mount points that are the same, above this one or below it."""
    return [
        other for other in others if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")
    ]


def submount_violations(spec: ClusterSpec) -> Iterable[Violation]:
    others: list[str] = [mounted.mount_path for mounted in spec.filesystems]
    for index, submount in enumerate(spec.submounts):
        field, path = f"spec.submounts[{index}].mount_path", submount.mount_path
        if is_of_system(path) or path.split("/")[1] in _FOLDERS_OF_USERS:
            yield Violation(
                field, f"{path} belongs to the system or to users; choose a folder such as /scratch"
            )
        for other in overlaps(path, others):
            yield Violation(field, f"{path} and {other} are one inside the other")
        others.append(path)


def submount_memory_violations(spec: ClusterSpec) -> Sequence[Violation]:
    """Return whether submounts leave jobs enough memory; the presets exist."""
    wanted = memory_of_submounts(spec)
    for node_set in spec.node_sets if wanted else ():
        memory = preset(node_set.platform, node_set.preset).memory_mib
        if wanted * MOST_OF_MEMORY > memory:
            text = (
                f"take {wanted // 1024} GiB of the memory of each worker; workers of {node_set.name} have "
                f"{memory // 1024} GiB, of which they may take half. Choose less, or leave out in_memory"
            )
            return [Violation("spec.submounts", text)]
    return []
