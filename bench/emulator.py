"""How the control plane behaves as it fills: creating, reading and reconciling thousands of resources.

In an emulated cloud, so that nothing but the control plane is measured; by the official SDK, as clients do.
Prints how long 1,000 creates take, List of a page and Get with 100, 1,000 and 10,000 resources there, each
against the first, and after a restart the time until every resource has been looked at again.

    python bench/emulator.py [--kind filesystem] [--counts 100 1000 10000] [--callers 20]
"""

import argparse
import asyncio
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    CreateFilesystemRequest,
    FilesystemServiceClient,
    FilesystemSpec,
    GetFilesystemRequest,
    ListFilesystemsRequest,
)
from nebius.sdk import SDK

from neocloud.testing.emulator import Emulator, connected, emulator_process

WORK = Path(__file__).resolve().parent / ".work"
"""On this disk, so that what is durable is paid for."""
PAGE = 100
CREATED = 1000
ROUNDS = 100
LOOK_SECONDS = 0.05
SOON_SECONDS = 10.0
STARTS = 3


@dataclass(frozen=True)
class Nouns:
    """One kind of resource, as the SDK makes, gets and lists it."""

    create: Callable[[str], Awaitable[Any]]
    get: Callable[[str], Awaitable[Any]]
    list: Callable[[], Awaitable[Any]]


def filesystems(sdk: SDK, project_id: str) -> Nouns:
    client = FilesystemServiceClient(sdk)
    spec = FilesystemSpec(type=FilesystemSpec.FilesystemType.NETWORK_SSD, size_gibibytes=1)

    async def create(name: str) -> Any:
        metadata = ResourceMetadata(parent_id=project_id, name=name)
        return await client.create(CreateFilesystemRequest(metadata=metadata, spec=spec))

    return Nouns(
        create=create,
        get=lambda resource_id: client.get(GetFilesystemRequest(id=resource_id)),
        list=lambda: client.list(ListFilesystemsRequest(parent_id=project_id, page_size=PAGE)),
    )


KINDS: dict[str, tuple[str, Callable[[SDK, str], Nouns]]] = {
    "filesystem": ("nebius.compute.v1.Filesystem", filesystems),
}


class Fill:
    """Creates resources by several callers at once and remembers them."""

    def __init__(self, nouns: Nouns, callers: int) -> None:
        self._nouns = nouns
        self._callers = callers
        self.made: list[str] = []

    async def up_to(self, count: int) -> float:
        """Create until there are so many, each with its operation finished; says how long it took."""
        numbers = iter(range(len(self.made), count))
        begin = time.perf_counter()

        async def caller() -> None:
            for number in numbers:
                operation = await self._nouns.create(f"bench-{number}")
                await operation.wait(interval=0.05)
                self.made.append(operation.resource_id)

        await asyncio.gather(*(caller() for _ in range(self._callers)))
        return time.perf_counter() - begin


async def milliseconds(call: Callable[[], Awaitable[Any]]) -> float:
    """The median of one caller's calls."""
    found = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        await call()
        found.append(time.perf_counter() - begin)
    return statistics.median(found) * 1000


async def fill_and_read(cloud: Emulator, kind: str, counts: list[int], callers: int) -> None:
    async with cloud.sdk() as sdk:
        nouns = KINDS[kind][1](sdk, cloud.project_id)
        fill = Fill(nouns, callers)
        await fill.up_to(counts[0])
        first: tuple[float, float] | None = None
        took = 0.0
        for count in counts:
            seconds = await fill.up_to(count)
            if count - CREATED <= 0 < seconds:
                took = seconds * CREATED / max(1, count - counts[0])
            listed = await milliseconds(nouns.list)
            middle = fill.made[len(fill.made) // 2]
            got = await milliseconds(lambda: nouns.get(middle))  # noqa: B023  awaited before the next round
            first = first or (listed, got)
            print(
                f"{count:7} there: List of {PAGE} {listed:6.1f} ms ({listed / first[0]:4.2f})"
                f"   Get {got:6.1f} ms ({got / first[1]:4.2f})",
                flush=True,
            )
        print(
            f"{CREATED} {kind}s created, {callers} callers: {took:.1f} s, {CREATED / took:.0f} /s", flush=True
        )


def due(home: Path, kind: str, at: float) -> int:
    """How many resources of the kind are to be looked at before that time."""
    with sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True) as database:
        query = "SELECT count(*) FROM queue WHERE kind = ? AND due_at <= ?"
        return database.execute(query, (KINDS[kind][0], int(at * 1e6))).fetchone()[0]


def restart(home: Path, kind: str) -> None:
    """As after a stop of some minutes: every resource is due when the server comes back."""
    with sqlite3.connect(home / "state.db") as database:
        database.execute("UPDATE queue SET due_at = 0 WHERE kind = ?", (KINDS[kind][0],))
    with emulator_process(home):
        ready = time.time()
        there = due(home, kind, ready)
        while due(home, kind, ready + SOON_SECONDS):
            time.sleep(LOOK_SECONDS)
        seconds = time.time() - ready
    print(f"after a restart: {there} due, none after {seconds:.1f} s, {there / seconds:.0f} /s")


def start_times() -> list[float]:
    """From the command `neo up --emulator` to the end of it, in folders of its own."""
    found = []
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "XDG_CONFIG_HOME": folder, "NEOCLOUD_HOME": f"{folder}/cloud"}
            neo = [sys.executable, "-m", "neocloud.cli.main"]
            begin = time.perf_counter()
            subprocess.run([*neo, "up", "--emulator"], env=environment, check=True, capture_output=True)
            found.append(time.perf_counter() - begin)
            subprocess.run([*neo, "down"], env=environment, check=True, capture_output=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, default="filesystem")
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--callers", type=int, default=20)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, client and server share {psutil.cpu_count()} cores, load {load:.1f}"
    )
    starts = start_times()
    print(f"neo up --emulator: {min(starts):.1f} to {max(starts):.1f} s ({STARTS} starts)")
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        home = Path(folder)
        with emulator_process(home), connected(home) as cloud:
            asyncio.run(fill_and_read(cloud, given.kind, sorted(given.counts), given.callers))
        restart(home, given.kind)


if __name__ == "__main__":
    main()
