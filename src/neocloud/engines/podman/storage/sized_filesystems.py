"""File systems that hold no more than their size: ext4 in a sparse file, on a loop device. Blocking.

A program that writes beyond the size gets ENOSPC, and nobody else notices. The file takes only as much of the
disk as was written; what is deleted is freed there too (`discard`). The kernel detaches the loop device when
its last mount ends, also when this process is killed between attaching and mounting.

Only files that `create` made are mounted: tenants write through the mount, never the blocks of the file.
Before each mount `e2fsck -p` repairs what a crash left, within milliseconds unless the file system is marked
as faulty. A file system grows while it is used if this process has CAP_SYS_RESOURCE, else once it is unused.

Project quotas of the disk's own file system would do with one file system for all, but a file's owner may
move it to another project (FS_IOC_FSSETXATTR) unless in a user namespace, which most pods have not.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from neocloud.core.osfiles import sync_folder
from neocloud.core.untrusted.trees import BLOCK_BYTES
from neocloud.engines.base import EngineError, EngineUnavailable
from neocloud.engines.podman.storage.mounts import is_mounted, mount_filesystem, remove_tree, unmount

IMAGE = "filesystem.ext4"
"""Name of the file in a volume's folder."""
MIN_BYTES = 16 * 2**20
"""Size of the smallest file system; a claim for less gets this much."""
BYTES_PER_INODE = 16 * 2**10
"""A file system holds one file or folder for so many bytes of its size."""

_BLOCK_BYTES = 4096
_OPTIONS = "discard,noinit_itable,errors=remount-ro"
"""Tables of inodes are not zeroed in the background: they are zero, as the file is sparse."""
_CONTROL, _DEVICES = Path("/dev/loop-control"), Path("/sys/block")
_GET_FREE, _CONFIGURE, _SET_CAPACITY = 0x4C82, 0x4C0A, 0x4C07  # linux/loop.h
_DETACHES_ITSELF, _DIRECT = 4, 16  # flags of a loop device
_LOOP_CONFIGURATION = struct.Struct("=II40xIIII64s112x64x")  # struct loop_config
_RESIZE = 0x40086610  # EXT4_IOC_RESIZE_FS
_ATTEMPTS = 64
"""How often a loop device is looked for: another process may take the one that was free."""
_DETACH_SECONDS = 5.0
_MAX_REPAIRED = 2
"""Highest exit code of e2fsck with which the file system can be used."""


def create(image: Path, size_bytes: int) -> None:
    """Create the file with an empty file system, unless it exists. Raises EngineError."""
    if image.exists():
        return
    draft = image.with_name(f"{image.name}.new")
    options = "root_owner=0:0,nodiscard,lazy_itable_init=1,lazy_journal_init=1"
    try:
        image.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            _resize_file(file.fileno(), size_bytes)
        layout = ["-b", str(_BLOCK_BYTES), "-i", str(BYTES_PER_INODE), "-m", "0", "-E", options]
        _run(["mkfs.ext4", "-q", "-F", *layout, str(draft)], f"{image} could not be made")
        draft.replace(image)
        sync_folder(image.parent)
    except OSError as error:
        raise EngineError(f"{image} could not be made: {error}; check free space.") from error
    finally:
        draft.unlink(missing_ok=True)


def mount(image: Path, point: Path) -> None:
    """Check the file system and mount it, unless it is mounted. Raises EngineError."""
    with _locked(image):
        if is_mounted(point):
            return
        point.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _mount_attached(image, point):
            return
        _repair(image, [])
        with _attached(image) as device:
            mount_filesystem("ext4", point, _OPTIONS, source=device)


def _mount_attached(image: Path, point: Path) -> bool:
    """Mount the loop device that still has the file, as another mount namespace uses it; False without one.

    Never attach it a second time: two devices would write to one file system.
    """
    ends_at = time.monotonic() + _DETACH_SECONDS
    while device := _device_of(image):
        try:
            mount_filesystem("ext4", point, _OPTIONS, source=device)
        except EngineError:  # it is about to be detached
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.02)
        else:
            return True
    return False


def grow(image: Path, point: Path, size_bytes: int, *, is_used: bool) -> None:
    """Make the file system larger. May be repeated after an interruption.

    `is_used`: a pod uses it, so it cannot be unmounted. Raises EngineUnavailable where it has to be.
    """
    with _locked(image):
        if is_mounted(point):
            if can_grow_mounted():
                _grow_mounted(image, point, size_bytes)
                return
            if is_used:
                raise EngineUnavailable(
                    f"The filesystem {image.parent.name} grows once no pod uses it: growing one in use needs "
                    "CAP_SYS_RESOURCE, which the server does not have on this host."
                )
            unmount(point)
        if not _is_detached(image):
            raise EngineUnavailable(f"{image} is still mounted elsewhere; it grows once it is not.")
        try:
            with image.open("r+b") as file:
                _resize_file(file.fileno(), size_bytes)
        except OSError as error:
            raise EngineError(f"{image} could not grow: {error}; check free space.") from error
        _repair(image, ["-f"])
        _run(["resize2fs", str(image)], f"{image} could not be resized")


def _grow_mounted(image: Path, point: Path, size_bytes: int) -> None:
    device = _device_of(image)
    if device is None:
        raise EngineError(f"{image} is mounted, and no loop device has it; stop its pods and try again.")
    try:
        with image.open("r+b") as file:
            _resize_file(file.fileno(), size_bytes)
        for path, request, value in (
            (device, _SET_CAPACITY, 0),
            (point, _RESIZE, struct.pack("=Q", max(size_bytes, MIN_BYTES) // _BLOCK_BYTES)),
        ):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(descriptor, request, value)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise EngineError(f"{image} could not grow: {error}; see the kernel's log.") from error


def stored_bytes(image: Path, point: Path) -> int:
    """Return what the files in it take; while it is not mounted, what the file takes of the disk."""
    if is_mounted(point):
        found = os.statvfs(point)
        return (found.f_blocks - found.f_bfree) * found.f_frsize
    return image.stat().st_blocks * BLOCK_BYTES


def can_grow_mounted() -> bool:
    """Return whether this process has CAP_SYS_RESOURCE."""
    status = Path("/proc/self/status").read_text()
    capabilities = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(capabilities.split()[1], 16) >> 24 & 1)


def missing_support(folder: Path) -> str:
    """Return why file systems in files cannot be mounted here, empty if they can; tries it in `folder`."""
    scratch = Path(tempfile.mkdtemp(prefix="filesystem-sizes-", dir=folder))
    image, point = scratch / IMAGE, scratch / "mounted"
    try:
        create(image, MIN_BYTES)
        mount(image, point)
        (point / "file").write_bytes(b"written")
        return "" if os.statvfs(point).f_blocks * _BLOCK_BYTES <= MIN_BYTES else "the size is another one"
    except (EngineError, OSError) as error:
        return str(error).rstrip(".")
    finally:
        unmount(point, lazily=True)  # something on the host may be searching it
        remove_tree(scratch)


@contextlib.contextmanager
def _locked(image: Path) -> Generator[None, None, None]:
    """Exclude other threads and processes that work with this file."""
    descriptor = os.open(image.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _attached(image: Path) -> Generator[Path, None, None]:
    """Provide a loop device with the file; unless it is mounted then, it is detached at the end."""
    file = os.open(image, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    name = os.fsencode(image)[:63]
    wanted = _LOOP_CONFIGURATION.pack(file, _BLOCK_BYTES, 0, 0, 0, _DETACHES_ITSELF | _DIRECT, name)
    device, descriptor = Path(), -1
    try:
        for attempt in range(_ATTEMPTS):
            device = Path(f"/dev/loop{_free_device()}")
            descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(descriptor, _CONFIGURE, wanted)
                break
            except OSError as error:
                os.close(descriptor)
                descriptor = -1
                if error.errno != errno.EBUSY or attempt == _ATTEMPTS - 1:
                    raise
        yield device
    except OSError as error:
        raise EngineError(
            f"{image} could not be attached to a loop device: {error}; `losetup` lists those in use."
        ) from error
    finally:
        os.close(file)
        if descriptor >= 0:
            os.close(descriptor)


def _free_device() -> int:
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(control, _GET_FREE)
    finally:
        os.close(control)


def _device_of(image: Path) -> Path | None:
    """Return the loop device that has the file, None if none has."""
    for backing in _DEVICES.glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it was detached
            if backing.read_text().rstrip("\n") == str(image):
                return Path("/dev") / backing.parts[-3]
    return None


def _is_detached(image: Path) -> bool:
    """Return whether no loop device has the file, waiting for the kernel a little."""
    ends_at = time.monotonic() + _DETACH_SECONDS
    while _device_of(image):
        if time.monotonic() > ends_at:
            return False
        time.sleep(0.02)
    return True


def _resize_file(descriptor: int, size_bytes: int) -> None:
    size = max(size_bytes, MIN_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES
    if os.fstat(descriptor).st_size >= size:
        return
    try:
        os.truncate(descriptor, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise EngineError(
            f"{size / 2**30:g} GiB are more than one file of the state folder's disk can have; choose less."
        ) from error


def _repair(image: Path, options: Sequence[str]) -> None:
    command = ["e2fsck", "-p", *options, str(image)]
    done = subprocess.run([_program(command[0]), *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode > _MAX_REPAIRED:
        said = " ".join((done.stdout + done.stderr).split())
        raise EngineError(
            f"The file system in {image} is damaged and was not mounted: {said}. Copy the file, then repair "
            f"it with `e2fsck -y {image}`, or restore the data from a copy."
        )


def _run(command: Sequence[str], failure: str) -> None:
    done = subprocess.run([_program(command[0]), *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError(f"{failure}: {' '.join((done.stderr or done.stdout).split())}")


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if not found:
        raise EngineError(f"The program {name} was not found; install it with: apt-get install e2fsprogs")
    return found
