"""The filter of system calls for containers that have given up SYS_CHROOT: those that run tenants' images.

It is Podman's own profile without what makes or enters namespaces or mounts. A program that makes a user
namespace has all rights in it, and so reaches parts of the kernel that are closed to it otherwise.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT = Path("/usr/share/containers/seccomp.json")
"""Podman's own, of the package golang-github-containers-common."""
NAMESPACES = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000
"""CLONE_NEW: cgroup, uts, ipc, user, pid, net, mount. That of time is none of clone's."""
REFUSED = frozenset(
    {
        *("unshare", "setns", "mount", "umount", "umount2", "pivot_root", "mount_setattr", "move_mount"),
        *("open_tree", "fsopen", "fsconfig", "fsmount", "fspick"),
    }
)
EPERM, ENOSYS = 1, 38


def without_namespaces(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile under which nothing makes or enters a namespace, and nothing is mounted.

    clone3 has its flags in memory, where no filter can look: it is not there, and C libraries use clone.
    """
    taken = REFUSED | {"clone", "clone3"}
    kept = [
        {**group, "names": names}
        for group in profile["syscalls"]
        if (names := [name for name in group["names"] if name not in taken])
    ]
    plain = {"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    return {
        **profile,
        "syscalls": [
            *kept,
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [plain]},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "args": [], "errnoRet": ENOSYS},
            {"names": sorted(REFUSED), "action": "SCMP_ACT_ERRNO", "args": [], "errnoRet": EPERM},
        ],
    }


def profile_text(default: Path = DEFAULT) -> str:
    """Return the profile, or "" where Podman's own is not there to begin with."""
    try:
        return json.dumps(without_namespaces(json.loads(default.read_bytes())), indent=1)
    except FileNotFoundError:
        return ""
