"""A put in a process that a test kills.

Run as `python -m tests.fast.object_store.killed_put HOME PLACE ENDPOINT KEY_FILE`.
"""

import asyncio
import os
import sys
from pathlib import Path

from neocloud.object_store.blobs.driver import BlobDriver
from neocloud.object_store.blobs.s3 import driver
from neocloud.object_store.blobs.s3.location import s3_place
from neocloud.object_store.store import open_store
from neocloud.testing.blob_conformance import names
from neocloud.testing.waiting import FakeClock
from tests.fast.object_gateway.s3.served import REGION
from tests.fast.object_store.stores import KEY, MIB, make_bucket


async def main(home: Path, name: str, endpoint: str, key_file: Path) -> None:
    driver.PIECE_BYTES = MIB
    place = s3_place(name, endpoint, REGION, key_file)
    store = await open_store(home / "store", KEY, FakeClock(), place=place)
    bucket = await make_bucket(store)
    writer = await store.open_write(bucket.id, 10 * MIB, key="k")
    for _ in range(5):
        await writer.write(os.urandom(MIB))
    blobs = store.engine.blobs
    while not await names(blobs) or (await _size(blobs)) < 2 * MIB:
        await asyncio.sleep(0.01)
    sys.stdout.write("pieces are stored\n")
    sys.stdout.flush()
    await asyncio.Event().wait()  # until it is killed


async def _size(blobs: BlobDriver) -> int:
    return sum([stat.size async for stat in blobs.list()])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])))
