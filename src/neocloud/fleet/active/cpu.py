"""Measurements that need no GPU: processors, memory, a folder, Python's imports.

Each runs in a process of its own, which is killed at its deadline or when a job starts.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from neocloud.fleet.active import sdc
from neocloud.fleet.active.catalogue import GOLDEN
from neocloud.fleet.agent.probe_result import ProbeResult

SDC_SECONDS = 2.0
COPY_BYTES = 64 << 20
COPIES = 8
FILE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
FILES = 200
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
MOUNTS = Path("/proc/self/mounts")


def cpu_sdc(folder: Path, work: Callable[[], str] = sdc.work) -> ProbeResult:
    """Do the known work on each processor in turn, at least once, and count wrong results."""
    found = ProbeResult()
    processors = sorted(os.sched_getaffinity(0))
    each_seconds = SDC_SECONDS / len(processors)
    wrong, rounds = dict[int, int](), 0
    for processor in processors:
        os.sched_setaffinity(0, {processor})
        until = time.monotonic() + each_seconds
        while True:
            rounds += 1
            if work() != GOLDEN:
                wrong[processor] = wrong.get(processor, 0) + 1
            if time.monotonic() >= until:
                break
    note = f"{rounds} rounds on {len(processors)} processors"
    for processor, count in sorted(wrong.items())[:32]:
        found.read("cpu_sdc", f"cpu{processor}", count, note, unit="wrong rounds")
    if not wrong:
        found.read("cpu_sdc", "", 0, note, unit="wrong rounds")
    return found


def memory_bandwidth(folder: Path) -> ProbeResult:
    """Copy a block that fits in no cache; reading and writing both count, as STREAM counts a copy."""
    found = ProbeResult()
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    view = memoryview(target)
    view[:] = source  # pages are there from now on
    best = float("inf")
    for _ in range(COPIES):
        began = time.perf_counter()
        view[:] = source
        best = min(best, time.perf_counter() - began)
    found.read("memory_bandwidth", "", 2 * COPY_BYTES / best / 1e9, f"best of {COPIES}", unit="GB/s")
    return found


def disk_write(folder: Path) -> ProbeResult:
    return _disk(folder, "disk_write")


def disk_read(folder: Path) -> ProbeResult:
    return _disk(folder, "disk_read")


def _disk(folder: Path, name: str) -> ProbeResult:
    found = ProbeResult()
    if why := _no_disk(folder):
        found.leave_out(why, name)
        return found
    block = hashlib.shake_128(os.urandom(16)).digest(CHUNK_BYTES)  # nothing that could be compressed
    path = folder / name
    wrote = _write(path, block)
    if name == "disk_write":
        found.read(name, "", FILE_BYTES / wrote / 1e6, "with fsync", unit="MB/s")
    else:
        seconds, is_same = _read_back(path, block)
        speed = FILE_BYTES / seconds / 1e6 if is_same else 0.0  # what is read wrong is not read
        note = "content compared" if is_same else "the content differs from what was written"
        found.read(name, "", speed, note, unit="MB/s")
    path.unlink()
    return found


def _write(path: Path, block: bytes) -> float:
    began = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(FILE_BYTES // CHUNK_BYTES):
            left = memoryview(block)
            while left:
                left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
        seconds = time.perf_counter() - began
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return seconds


def _read_back(path: Path, block: bytes) -> tuple[float, bool]:
    is_same = True
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        for _ in range(FILE_BYTES // CHUNK_BYTES):
            data = bytearray()
            while len(data) < CHUNK_BYTES and (part := file.read(CHUNK_BYTES - len(data))):
                data += part
            is_same = is_same and data == block
    return time.perf_counter() - began, is_same


def metadata(folder: Path) -> ProbeResult:
    """Small files as many ranks write them: each file is created, looked at, renamed and removed."""
    found = ProbeResult()
    if why := _no_disk(folder):
        found.leave_out(why, "metadata")
        return found
    began = time.perf_counter()
    for number in range(FILES):
        (folder / f"m{number}").write_bytes(b"x")
    for number in range(FILES):
        (folder / f"m{number}").stat()
        (folder / f"m{number}").rename(folder / f"n{number}")
    for number in range(FILES):
        (folder / f"n{number}").unlink()
    seconds = time.perf_counter() - began
    found.read("metadata", "", 4 * FILES / seconds, f"{FILES} files", unit="operations/s")
    return found


def import_torch(folder: Path) -> ProbeResult:
    found = ProbeResult()
    if importlib.util.find_spec("torch") is None:
        found.leave_out("There is no torch in this Python", "import_torch")
        return found
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", "import torch"], check=True, stdin=subprocess.DEVNULL)
    found.read("import_torch", "", time.perf_counter() - began, "files may be in memory already", unit="s")
    return found


def _no_disk(folder: Path) -> str:
    kind = filesystem_type(folder, MOUNTS.read_text(errors="replace"))
    if kind in IN_MEMORY:
        return f"The folder is in memory ({kind})"
    state = os.statvfs(folder)
    if state.f_bavail * state.f_frsize < 4 * FILE_BYTES:
        return f"The folder has less than {4 * FILE_BYTES >> 20} MiB left"
    return ""


def filesystem_type(folder: Path, mounts: str) -> str:
    """Return the type of the filesystem of a folder, by the lines of /proc/self/mounts."""
    found, longest = "", -1
    for line in mounts.splitlines():
        _, point, kind, *_ = [*line.split(" "), "", "", ""]
        path = Path(point.encode().decode("unicode_escape", errors="replace"))
        if folder.is_relative_to(path) and len(path.parts) >= longest:
            found, longest = kind, len(path.parts)
    return found


PROGRAMS: dict[str, Callable[[Path], ProbeResult]] = {
    each.__name__: each for each in (cpu_sdc, memory_bandwidth, disk_write, disk_read, metadata, import_torch)
}
