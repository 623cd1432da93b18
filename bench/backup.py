"""Measure backup and restore of a cloud with thousands of resources, while it is read and written.

It uses an emulated cloud. Prints how long `neo backup`, `neo restore --check` and `neo restore` take beside
copying the same files with `cp`, the size of the backup beside the state, and the latency of Create while a
backup runs beside that before it.

    python bench/backup.py [--count 10000] [--rounds 3]
"""

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from neocloud.testing.emulator import Emulator, connected, emulator_process
from neocloud.testing.waiting import wait_until

DISK = "nebius.compute.v1.Disk"
CALLERS = 8
FEWEST_CREATES = 50


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-") as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        with emulator_process(home), connected(home) as cloud:
            with ThreadPoolExecutor(CALLERS) as pool:
                list(pool.map(lambda number: create(cloud, f"n{number}"), range(options.count)))
            wait_until(lambda: not due(home), "all disks are reconciled", seconds=600)
            measure(cloud, Path(folder), options.rounds, options.count)


def create(cloud: Emulator, name: str) -> float:
    """Return how long the call took."""
    spec = {"size_gibibytes": 1, "type": "NETWORK_SSD"}
    began = time.perf_counter()
    metadata = {"parent_id": cloud.project_id, "name": name}
    cloud.client.call("nebius.compute.v1.DiskService/Create", {"metadata": metadata, "spec": spec})
    return time.perf_counter() - began


def due(home: Path) -> int:
    """Return how many disks wait to be reconciled."""
    with sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True) as database:
        query = "SELECT count(*) FROM queue WHERE kind = ? AND (due_at <= ? OR lease_token != '')"
        return database.execute(query, (DISK, int(time.time() * 1e6))).fetchone()[0]


def measure(cloud: Emulator, folder: Path, rounds: int, count: int) -> None:
    file, key, new = folder / "cloud.age", folder / "key", folder / "new"
    quiet = [create(cloud, f"quiet{number}") for number in range(FEWEST_CREATES)]
    neo("backup", str(file), "--home", str(cloud.home), "--key-file", str(key), "--new-key")
    start = best(rounds, lambda: neo("--version"))
    busy: list[float] = []
    is_over = threading.Event()

    def write_on() -> None:
        while not is_over.is_set() or len(busy) < FEWEST_CREATES:
            busy.append(create(cloud, f"busy{len(busy)}"))

    writer = threading.Thread(target=write_on)
    writer.start()
    backup = best(
        rounds, lambda: neo("backup", str(file), "--home", str(cloud.home), "--key-file", str(key), "--force")
    )
    is_over.set()
    writer.join()
    check = best(rounds, lambda: neo("restore", str(file), "--key-file", str(key), "--check"))

    def restore() -> None:
        shutil.rmtree(new, ignore_errors=True)
        neo("restore", str(file), "--key-file", str(key), "--home", str(new))

    restored = best(rounds, restore)
    state = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
    copy = best(rounds, lambda: subprocess.run(["cp", "-r", new, folder / "copy"], check=True))
    figures = {
        "disks": count,
        "state, MiB": state / 1024**2,
        "backup, MiB": file.stat().st_size / 1024**2,
        "start of neo alone, s": start,
        "backup, s": backup,
        "check, s": check,
        "restore, s": restored,
        "cp -r of the state, s": copy,
        "backup against cp": (backup - start) / copy,
        "restore against cp": (restored - start) / copy,
        "Create, median, before, ms": statistics.median(quiet) * 1000,
        "Create, longest, before, ms": max(quiet) * 1000,
        "Create, median, during backups, against before": statistics.median(busy) / statistics.median(quiet),
        "Create, longest, during backups, ms": max(busy) * 1000,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))


def best(rounds: int, work: Callable[[], object]) -> float:
    def once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return min(once() for _ in range(rounds))


def neo(*arguments: str) -> None:
    command = [sys.executable, "-m", "neocloud.cli.main", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
