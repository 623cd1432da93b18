"""Verify an object store beside its gateway, or without one.

python -m neocloud.object_gateway.verify --home HOME

Writes a line of JSON for each problem, and one with what was checked at the end. The exit code is 1 where
something is wrong. It reads alone: nothing is repaired, and the gateway continues.
"""

import argparse
import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from neocloud.core.clock import SystemClock
from neocloud.data_plane.gateway_keys import object_gateway_folder
from neocloud.object_gateway.composition import load_or_make_store_key
from neocloud.object_store.blob_location import known_driver
from neocloud.object_store.blobs.driver import BlobError
from neocloud.object_store.blobs.sealing import KeySealer
from neocloud.object_store.bodies.engine import Engine, QuotaReservations
from neocloud.object_store.errors import ObjectStoreError, StoreUnavailable
from neocloud.object_store.metadata import location
from neocloud.object_store.metadata.database import ReadingDatabase
from neocloud.object_store.verification import Checked, verify_store

THREADS = 4


async def verify(folder: Path) -> int:
    """Write what is wrong, and return how much. Raises StoreUnavailable, BlobError, OSError."""
    if not location.is_there(folder):
        raise StoreUnavailable(f"There is no object store in {folder}.")
    clock, checked, count = SystemClock(), Checked(), 0
    key = load_or_make_store_key(folder / "store.key")
    database = ReadingDatabase(lambda: location.open_beside(folder), clock)
    with ThreadPoolExecutor(THREADS) as executor:
        blobs = known_driver(database, folder, executor)
        engine = Engine(database, blobs, KeySealer(key), executor, QuotaReservations(lambda bucket: 0))
        async for finding in verify_store(engine, clock.now(), checked):
            problem, count = finding.problem, count + 1
            where = {"bucket": finding.bucket, "key": problem.key, "version_id": problem.version_id}
            _write({**where, "what": problem.what})
        await blobs.close()
    await database.close()
    _write({"versions": checked.versions, "bytes": checked.bytes, "problems": count})
    return count


def _write(document: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(document)}\n")
    sys.stdout.flush()


def main() -> None:
    os.umask(0o077)
    parser = argparse.ArgumentParser(
        prog="python -m neocloud.object_gateway.verify", description="Verify objects."
    )
    parser.add_argument("--home", type=Path, required=True, help="state folder of the cloud")
    home: Path = parser.parse_args().home
    try:
        sys.exit(1 if asyncio.run(verify(object_gateway_folder(home))) else 0)
    except (ObjectStoreError, BlobError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
