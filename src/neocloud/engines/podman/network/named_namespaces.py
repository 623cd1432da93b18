"""The folder in which Podman and `ip netns` keep network namespaces by name."""

import os
from pathlib import Path

from neocloud.engines.podman.storage.mounts import is_mounted, libc, mount_view

FOLDER = Path("/run/netns")


def share_folder(folder: Path = FOLDER) -> None:
    """Make the folder a shared mount while it is empty, as the first `ip netns add` of a host does.

    Where pods run already, `ip netns add` would mount the folder with all that is in it on itself. Podman
    unmounts one of the two mounts of a pod's namespace when the pod ends, and the other keeps the pod's
    address on the bridge: the pod that has it next is not reached. Raises EngineError.
    """
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        mount_view(folder, folder)


def leave_folder(folder: Path = FOLDER) -> None:
    """Unmount the folder if it has no namespace; the next `ip netns add` mounts it again."""
    if is_mounted(folder) and not any(folder.iterdir()):
        libc.umount2(os.fsencode(folder), 0)  # refused where a namespace has been added meanwhile
