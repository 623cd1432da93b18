"""Measure one worker from inside and print the figures as JSON. Runs in the shared root on the worker.

Usage: python3 - [SHARED_ROOT] < node.py. Without the folder no speeds are measured, which takes no time.
"""

import json
import os
import subprocess
import sys
import time

FILE_MIB = 64


def read_number(*paths: str) -> int | None:
    """Return the number in the first of these files that has one; None for "max" or no file."""
    for path in paths:
        try:
            with open(path) as file:
                text = file.read().split()[0]
        except OSError:
            continue
        if text.lstrip("-").isdigit():
            return int(text)
    return None


def cpus() -> float:
    found = float(len(os.sched_getaffinity(0)))
    quota = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu.max")
    if quota and quota > 0:
        found = min(found, quota / 100_000)
    return found


def memory_mib() -> int:
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max")
    return min(found, limit or found) // 2**20


def gpus() -> list[str] | None:
    """Return the names of the GPUs that the driver lists; None without a driver."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def shared_root_speed(root: str) -> tuple[float, float]:
    """Return MiB/s written through to disk and read back past the page cache."""
    path = os.path.join(root, f".neocloud-speed-{os.uname().nodename}")
    block = os.urandom(2**20)
    try:
        start = time.perf_counter()
        with open(path, "wb", buffering=0) as file:
            for _ in range(FILE_MIB):
                file.write(block)
            os.fsync(file.fileno())
            written = FILE_MIB / (time.perf_counter() - start)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        with open(path, "rb", buffering=0) as file:
            while file.read(2**20):
                pass
        return written, FILE_MIB / (time.perf_counter() - start)
    finally:
        if os.path.exists(path):
            os.unlink(path)


def main() -> None:
    report: dict[str, object] = {
        "cpus": cpus(),
        "memory_mib": memory_mib(),
        "gpus": gpus(),
        "time": time.time(),
        "tmp_device": os.stat("/tmp").st_dev,
        "shm_device": os.stat("/dev/shm").st_dev,
    }
    if len(sys.argv) > 1:
        written, read = shared_root_speed(sys.argv[1])
        report |= {"write_mib_per_second": written, "read_mib_per_second": read}
    print(json.dumps(report))


main()
