"""Measure the control plane with thousands of resources: creating, reading and reconciling them.

It uses an emulated cloud, so that only the control plane is measured, and the official SDK, as clients do.
Prints how long 1,000 creates take, List of a page and Get with 100, 1,000 and 10,000 resources, each
relative to the first, and after a restart the time until every resource has been reconciled.

    python bench/emulator.py [--kind instance|disk|filesystem] [--counts 100 1000 10000] [--callers 20]
"""

import argparse
import asyncio
import json
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
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    AttachedDiskSpec,
    CreateDiskRequest,
    CreateFilesystemRequest,
    CreateInstanceRequest,
    DiskServiceClient,
    DiskSpec,
    FilesystemServiceClient,
    FilesystemSpec,
    GetDiskRequest,
    GetFilesystemRequest,
    GetInstanceRequest,
    InstanceServiceClient,
    InstanceSpec,
    IPAddress,
    ListDisksRequest,
    ListFilesystemsRequest,
    ListInstancesRequest,
    ManagedDisk,
    NetworkInterfaceSpec,
    ResourcesSpec,
    SourceImageFamily,
)
from nebius.api.nebius.vpc.v1 import ListSubnetsRequest, SubnetServiceClient
from nebius.sdk import SDK

from neocloud.testing.emulator import Emulator, connected, emulator_process

WORK = Path(__file__).resolve().parent / ".work"
"""A folder on this disk, so that the cost of durable writes is included."""
PAGE = 100
CREATED = 1000
ROUNDS = 100
LOOK_SECONDS = 0.05
SOON_SECONDS = 10.0
STARTS = 3


@dataclass(frozen=True)
class Nouns:
    """One kind of resource, with its calls of the SDK."""

    create: Callable[[str], Awaitable[Any]]
    get: Callable[[str], Awaitable[Any]]
    list: Callable[[], Awaitable[Any]]


async def filesystems(sdk: SDK, project_id: str) -> Nouns:
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


async def disks(sdk: SDK, project_id: str) -> Nouns:
    client = DiskServiceClient(sdk)
    spec = DiskSpec(type=DiskSpec.DiskType.NETWORK_SSD, size_gibibytes=1)

    async def create(name: str) -> Any:
        metadata = ResourceMetadata(parent_id=project_id, name=name)
        return await client.create(CreateDiskRequest(metadata=metadata, spec=spec))

    return Nouns(
        create=create,
        get=lambda resource_id: client.get(GetDiskRequest(id=resource_id)),
        list=lambda: client.list(ListDisksRequest(parent_id=project_id, page_size=PAGE)),
    )


async def instances(sdk: SDK, project_id: str) -> Nouns:
    """Instances, each with a boot disk of its own, on the default subnet of the project."""
    client = InstanceServiceClient(sdk)
    subnets = await SubnetServiceClient(sdk).list(ListSubnetsRequest(parent_id=project_id))
    address = NetworkInterfaceSpec(
        name="eth0", subnet_id=subnets.items[0].metadata.id, ip_address=IPAddress()
    )
    disk = DiskSpec(
        type=DiskSpec.DiskType.NETWORK_SSD,
        size_gibibytes=10,
        source_image_family=SourceImageFamily(image_family="ubuntu24.04-driverless"),
    )

    async def create(name: str) -> Any:
        boot_disk = AttachedDiskSpec(
            attach_mode=AttachedDiskSpec.AttachMode.READ_WRITE,
            managed_disk=ManagedDisk(name=f"{name}-boot", spec=disk),
        )
        spec = InstanceSpec(
            resources=ResourcesSpec(platform="cpu-d3", preset="4vcpu-16gb"),
            boot_disk=boot_disk,
            network_interfaces=[address],
        )
        metadata = ResourceMetadata(parent_id=project_id, name=name)
        return await client.create(CreateInstanceRequest(metadata=metadata, spec=spec))

    return Nouns(
        create=create,
        get=lambda resource_id: client.get(GetInstanceRequest(id=resource_id)),
        list=lambda: client.list(ListInstancesRequest(parent_id=project_id, page_size=PAGE)),
    )


KINDS: dict[str, tuple[str, Callable[[SDK, str], Awaitable[Nouns]]]] = {
    "disk": ("nebius.compute.v1.Disk", disks),
    "filesystem": ("nebius.compute.v1.Filesystem", filesystems),
    "instance": ("nebius.compute.v1.Instance", instances),
}


class Fill:
    """Creates resources by several callers simultaneously and remembers them."""

    def __init__(self, nouns: Nouns, callers: int) -> None:
        self._nouns = nouns
        self._callers = callers
        self.made: list[str] = []

    async def up_to(self, count: int) -> float:
        """Create until there are this many, each with its operation finished; return the seconds."""
        numbers = iter(range(len(self.made), count))
        begin = time.perf_counter()

        async def caller() -> None:
            for number in numbers:
                operation = await self._nouns.create(f"bench-{number}")
                await operation.wait(interval=0.05)
                self.made.append(operation.resource_id)

        await asyncio.gather(*(caller() for _ in range(self._callers)))
        return time.perf_counter() - begin


@dataclass(frozen=True)
class Cost:
    milliseconds: float
    """Return the median of one caller's calls, including the SDK's own work."""
    server_milliseconds: float
    """Processor time of the server for each call, which a busy machine disturbs least."""

    def against(self, first: "Cost") -> str:
        ratios = (
            self.milliseconds / first.milliseconds,
            self.server_milliseconds / first.server_milliseconds,
        )
        return (
            f"{self.milliseconds:6.1f} ms ({ratios[0]:4.2f}), "
            f"{self.server_milliseconds:5.2f} of the server ({ratios[1]:4.2f})"
        )


async def cost(call: Callable[[], Awaitable[Any]], server: psutil.Process) -> Cost:
    found = []
    used = processor_seconds(server)
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        await call()
        found.append(time.perf_counter() - begin)
    used = processor_seconds(server) - used
    return Cost(statistics.median(found) * 1000, used / ROUNDS * 1000)


def processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def fill_and_read(cloud: Emulator, kind: str, counts: list[int], callers: int) -> None:
    async with cloud.sdk() as sdk:
        nouns = await KINDS[kind][1](sdk, cloud.project_id)
        fill = Fill(nouns, callers)
        await fill.up_to(counts[0])
        server = psutil.Process(json.loads((cloud.home / "server.json").read_text())["pid"])
        first: tuple[Cost, Cost] | None = None
        took = 0.0
        for count in counts:
            seconds = await fill.up_to(count)
            if count - CREATED <= 0 < seconds:
                took = seconds * CREATED / max(1, count - counts[0])
            middle = fill.made[len(fill.made) // 2]
            listed = await cost(nouns.list, server)
            got = await cost(partial(nouns.get, middle), server)
            first = first or (listed, got)
            print(f"{count:7} there: List of {PAGE} {listed.against(first[0])}")
            print(f"{'':14} Get {got.against(first[1])}", flush=True)
        print(
            f"{CREATED} {kind}s created, {callers} callers: {took:.1f} s, {CREATED / took:.0f} /s", flush=True
        )


def due(home: Path, kind: str, at: float) -> int:
    """Return how many resources of the kind are due before that time."""
    with sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True) as database:
        query = "SELECT count(*) FROM queue WHERE kind = ? AND due_at <= ?"
        return database.execute(query, (KINDS[kind][0], int(at * 1e6))).fetchone()[0]


def restart(home: Path, kind: str) -> None:
    """Make every resource due, as after a stop of some minutes."""
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
    """Return the seconds that the command `neo up --emulator` takes, in folders of its own."""
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
    parser.add_argument("--kind", choices=KINDS, default="instance")
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
