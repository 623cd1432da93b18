"""Compare the metadata of objects in PostgreSQL with those in SQLite, in one run on one disk.

    python bench/object_metadata.py [--folder /var/tmp] [--puts 2400]

Both flush each commit. PostgreSQL runs on this machine, reached over a Unix socket. Milliseconds of each
request, and in brackets those of the processor in the process of the store, without PostgreSQL's own.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from neocloud.core.clock import SystemClock
from neocloud.object_store.store import open_store
from neocloud.object_store.types import Attributes, DesiredBucket
from neocloud.testing import postgres

BODY = bytes(4096)
BUCKET = DesiredBucket("storagebucket-b", "bench", "project-a", 1, datetime(2026, 1, 1, tzinfo=UTC))
WRITERS, FOLDERS = 16, 50


async def measure(folder: Path, metadata: Path | None, puts: int) -> dict[str, str]:
    store = await open_store(folder, bytes(32), SystemClock(), metadata=metadata)
    bucket = await store.apply_bucket(BUCKET)
    each = puts // WRITERS
    names = [f"d{n % FOLDERS}/k{n}" for n in range(each * WRITERS)]
    found: dict[str, str] = {}

    async def put(name: str) -> None:
        async with await store.open_write(bucket.id, len(BODY), key=name) as writer:
            await writer.write(BODY)
            await writer.commit(name, Attributes())

    async def get(name: str) -> None:
        async with await store.open_read(bucket.id, name) as reader:
            async for _ in reader:
                pass

    async def timed(what: str, number: int, work: Callable[[], Awaitable[object]]) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        await work()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        found[what] = f"{1e3 * wall / number:.2f} ({1e3 * processor / number:.2f})"

    async def in_turn(call: Callable[[str], Awaitable[object]], some: list[str]) -> None:
        for name in some:
            await call(name)

    async def side_by_side() -> None:
        await asyncio.gather(*(in_turn(put, names[n::WRITERS]) for n in range(WRITERS)))

    await timed("put of 4 KiB, 16 at a time", len(names), side_by_side)
    await timed("put of 4 KiB, one at a time", 150, lambda: in_turn(put, names[:150]))
    await timed("head", 600, lambda: in_turn(lambda name: store.head(bucket.id, name), names[:600]))
    await timed("get of 4 KiB", 600, lambda: in_turn(get, names[:600]))
    pages = [""] * 15
    await timed("page of 1,000 keys", 15, lambda: in_turn(lambda _: store.list_objects(bucket.id), pages))
    await timed(
        "page of 50 common prefixes",
        15,
        lambda: in_turn(lambda _: store.list_objects(bucket.id, delimiter="/"), pages),
    )
    await store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--puts", type=int, default=2400)
    arguments = parser.parse_args()
    tempfile.tempdir = str(arguments.folder)
    safe = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
    postgres._OPTIONS.update(safe)  # tests do without
    with tempfile.TemporaryDirectory() as folder, postgres.running_postgres() as address:
        file = Path(folder) / "address"
        file.touch(mode=0o600)
        file.write_text(address)
        sqlite = asyncio.run(measure(Path(folder) / "sqlite", None, arguments.puts))
        there = asyncio.run(measure(Path(folder) / "postgresql", file, arguments.puts))
    print(f"load {os.getloadavg()[0]:.1f}")
    for what, figure in sqlite.items():
        print(f"{what:30} SQLite {figure:16} PostgreSQL {there[what]}")


if __name__ == "__main__":
    main()
