"""User namespaces of pods: which ids of this machine theirs stand for, and mounts that shift them.

A pod with `hostUsers: false` has a user namespace. The ids 0 to 65535 of all pods of a Kubernetes namespace
stand for one range of this machine that nobody else has, so root in them is nobody here. On the disk files
keep the ids that pods see: what such a pod mounts is an idmapped mount (mount_setattr(2)), which shifts ids.
An overlay cannot be shifted (EINVAL); one laid over shifted folders shows shifted ids. Blocking.
"""

import contextlib
import ctypes
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from pathlib import Path

from neocloud.core.osfiles import make_folder
from neocloud.engines.base import EngineError
from neocloud.engines.podman.storage.mounts import (
    detach,
    libc,
    mount_descriptor,
    mount_filesystem,
    mount_options,
    mount_tmpfs,
    remove_tree,
    unmount,
)

SIZE = 65536
"""Ids of a pod: those of a Linux installation, with `nobody` (65534)."""
_FIRST, _RANGES = 0x4000_0000, 8192
"""Above what useradd gives to users (login.defs: up to 600,100,000)."""
_LAYERS = "layers-"
_OF_LAYERS = re.compile(rf"lowerdir=[^,]*/{_LAYERS}(\d+)-")
_SET_SECURE_BITS, _NO_SETUID_FIXUP = 28, 1 << 2  # linux/prctl.h, linux/securebits.h


def first_id(subnet: IPv4Network) -> int:
    """The id of this machine that a namespace's root has; subnets of namespaces are all different."""
    return _FIRST + (int(subnet.network_address) >> 8) % _RANGES * SIZE


def id_mappings(first: int) -> dict[str, object]:
    """The fields of a libpod container spec."""
    mapping = [{"container_id": 0, "host_id": first, "size": SIZE}]
    return {"userns": {"nsmode": "private"}, "idmappings": {"UIDMap": mapping, "GIDMap": mapping}}


@contextlib.contextmanager
def user_namespace(first: int) -> Iterator[int]:
    """A descriptor of a user namespace whose ids begin at `first`, for mounts. Raises EngineError."""
    # A process with several threads, as ours, cannot make one itself.
    command = ["unshare", "--user", "sh", "-c", "echo made; read end"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout and child.stderr
        if not child.stdout.readline():
            raise EngineError(f"No user namespace could be made: {child.stderr.read().strip()}.")
        process = Path("/proc") / str(child.pid)
        for name in ("uid_map", "gid_map"):
            (process / name).write_text(f"0 {first} {SIZE}")
        descriptor = os.open(process / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
        child.stdin.close()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def mount_shifted_overlay(point: Path, *, lower: Path, folder: Path, first: int, place: Path) -> None:
    """A writable view on `lower` at `point`; what is written goes to `folder`/upper, with unshifted ids.

    The shifted layers are mounted in the folder `place` for a moment. Raises EngineError.
    """
    for name in ("upper", "work"):
        make_folder(folder / name)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    layers = Path(tempfile.mkdtemp(prefix=f"{_LAYERS}{first}-", dir=place))
    try:
        with user_namespace(first) as namespace:
            _mount_folder(lower, layers / "lower", namespace)
            _mount_folder(folder, layers / "written", namespace)
        options = f"lowerdir={layers}/lower,upperdir={layers}/written/upper,workdir={layers}/written/work"
        point.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ThreadPoolExecutor(1) as thread:  # its ids and secure bits end with it
            thread.submit(_mount_as, first, point, options).result()
    finally:
        for name in ("lower", "written"):
            detach(layers / name)  # the overlay has its own hold of them
        layers.rmdir()


def shifted_by(path: Path) -> int:
    """Return the first id of the range that an overlay mounted here was laid for; 0 for anything else.

    The kernel tells where its layers were. Owners tell nothing: tenants can change them.
    """
    found = _OF_LAYERS.search(mount_options(path))
    return int(found[1]) if found else 0


def missing_support(folder: Path) -> str:
    """Why file systems here cannot be shifted, empty when they can; tried in a folder made in `folder`."""
    place = Path(tempfile.mkdtemp(prefix="user-namespaces-", dir=folder))
    overlay, memory, shown = (place / name for name in ("overlay", "memory", "shown"))
    try:
        for name in ("lower", "written"):
            make_folder(place / name)
        mount_tmpfs(memory)
        mount_shifted_overlay(
            overlay, lower=place / "lower", folder=place / "written", first=_FIRST, place=place / "layers"
        )
        with user_namespace(_FIRST) as namespace:
            _mount_folder(memory, shown, namespace)
        if any(point.stat().st_uid != _FIRST for point in (overlay, shown)):
            return "mounts do not shift ids"
        # The kernel mounts an overlay read-only when it cannot work in the folder behind it.
        is_writable = not os.statvfs(overlay).f_flag & os.ST_RDONLY
        return "" if is_writable else "an overlay over shifted folders cannot be written to"
    except (EngineError, OSError) as error:
        return str(error)
    finally:
        detach(shown)
        for mounted in (overlay, memory):
            unmount(mounted)
        remove_tree(place)


def _mount_folder(source: Path, point: Path, namespace: int) -> None:
    descriptor = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mount_descriptor(descriptor, point, namespace)
    finally:
        os.close(descriptor)


def _mount_as(user: int, point: Path, options: str) -> None:
    """Mount an overlay that makes its own files as `user`, who keeps the capabilities of this thread.

    It makes them in shifted folders, in which root of this machine has no id (EOVERFLOW). Changes the thread.
    """
    if libc.prctl(_SET_SECURE_BITS, _NO_SETUID_FIXUP, 0, 0, 0):
        raise EngineError(f"{point} could not be mounted: {os.strerror(ctypes.get_errno())}.")
    libc.setfsuid(user)
    libc.setfsgid(user)
    mount_filesystem("overlay", point, options)
