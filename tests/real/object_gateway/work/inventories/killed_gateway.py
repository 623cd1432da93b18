"""A gateway with one inventory, in a process that a test kills within the run: see test_faults.py."""

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

from neocloud.messages.neocloud.storage.v1 import GatewayBucket, GatewayInventory

from neocloud.object_gateway.work.inventories import run
from neocloud.object_gateway.work.inventories.records import Records
from neocloud.testing.object_control_plane import FakeControlPlane
from tests.fast.object_gateway.s3.served import serving
from tests.fast.object_gateway.work.inventories.cloud import Inventories

KEYS = [f"key-{number}" for number in range(7)]
ROWS_PER_FILE = 2


def main(home: Path, place: str) -> None:
    """Stop at this place in the run, and say how many data files and manifests are stored."""
    run.ROWS_PER_FILE = ROWS_PER_FILE
    reached = _stop_at(place)
    with serving(home) as served:
        inventories = Inventories(served, served.make_bucket(), served.make_bucket())
        for key in KEYS:
            inventories.put(key, b"")
        _keep(inventories, home, inventories.start())
        reached.wait()
        keys = inventories.keys(inventories.destination)
        data, manifests = (sum(mark in key for key in keys) for mark in ("/data/", "/manifest.json"))
        sys.stdout.write(f"{data} {manifests}\n")
        sys.stdout.flush()
        sys.stdin.read()  # until it is killed


def _stop_at(place: str) -> threading.Event:
    """Let the run stop for ever at this place; return what is set then."""
    reached = threading.Event()

    async def stop() -> None:
        reached.set()
        await asyncio.Event().wait()

    advance, put = Records.advance, run.InventoryRun._put

    async def advanced(self: Records, row: Any, position: Any, file: Any, **more: Any) -> Any:
        if place == "unremembered" and file is not None and file.number == 3:
            await stop()
        after = await advance(self, row, position, file, **more)
        if place == "data" and file is not None and file.number == 2:
            await stop()
        return after

    async def stored(self: Any, key: str, body: bytes, content_type: str) -> None:
        await put(self, key, body, content_type)
        if place == "manifest":
            await stop()

    Records.advance = advanced  # type: ignore[method-assign]
    run.InventoryRun._put = stored  # type: ignore[method-assign]
    return reached


def _keep(inventories: Inventories, home: Path, inventory_id: str) -> None:
    """Keep what the control plane knows."""
    known = inventories.served.control_plane
    for name, bucket in (("source", inventories.source), ("destination", inventories.destination)):
        (home / name).write_bytes(known.named(bucket).SerializeToString())
    (home / "inventory").write_bytes(known.inventory(inventory_id).SerializeToString())


def kept(home: Path) -> tuple[FakeControlPlane, str, str, str]:
    """Return what is kept: a control plane, the names of the buckets and the id of the inventory."""
    known = FakeControlPlane()
    source, destination = (
        GatewayBucket.FromString((home / name).read_bytes()) for name in ("source", "destination")
    )
    inventory = GatewayInventory.FromString((home / "inventory").read_bytes())
    known.adopt(source)
    known.adopt(destination)
    known.put_inventory(inventory)
    return known, source.name, destination.name, inventory.id


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
