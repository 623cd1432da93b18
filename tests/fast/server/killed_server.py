"""A server in a process of its own that kills itself before one write of the store, or after a commit.

Run as `python -m tests.fast.server.killed_server FOLDER POINT`: it prints its address once it listens. POINT
is the number of the write, counted from the first request on, before which the process dies; "commit" is the
moment after the first commit, before the answer is sent; "none" lets it live.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from neocloud.messages.nebius.common.v1 import Operation

from neocloud.core.clock import SystemClock
from neocloud.core.service import Call, Method, NewOperation, Service, Write, row_to_change
from neocloud.core.store import Store, Transaction, open_store
from neocloud.server import ApiServer
from tests.control_plane import plain_dependencies
from tests.fast.server.conftest import FILESYSTEM, INVENTORY, PermissionTable, TokenTable

STOP = "nebius.compute.v1.InstanceService/Stop"
WRITES = frozenset({"update", "insert_operation", "audit", "remember"})
"""The writes of one custom verb, in this order."""
Result = TypeVar("Result")


async def stop(call: Call, request: Any) -> Write[Operation]:
    """A custom verb that counts in a label how often it was done."""

    def work(tx: Transaction) -> NewOperation:
        row = row_to_change(tx, FILESYSTEM.message, request.id, "filesystem")
        times = int(row.labels.get("stopped", "0")) + 1
        changed = replace(row, labels={"stopped": str(times)}, resource_version=row.resource_version + 1)
        tx.update(changed)
        return NewOperation(changed, "filesystem")

    return Write(work)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillingTransaction:
    def __init__(self, tx: Transaction, store: "KillingStore") -> None:
        self._tx, self._store = tx, store

    def __getattr__(self, name: str) -> Any:
        if name in WRITES:
            self._store.writes += 1
            if str(self._store.writes) == self._store.point:
                die()
        return getattr(self._tx, name)


class KillingStore:
    def __init__(self, store: Store, point: str) -> None:
        self._store, self.point, self.writes = store, point, 0

    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        return await self._store.read(work)

    async def write(self, work: Callable[[Transaction], Result]) -> Result:
        result = await self._store.write(lambda tx: work(KillingTransaction(tx, self)))  # type: ignore[arg-type]
        if self.point == "commit" and self.writes:
            die()
        return result


async def main(folder: Path, point: str) -> None:
    clock = SystemClock()
    store: Any = KillingStore(await open_store(folder / "state.db", b"k" * 32, clock), point)
    custom = Method(STOP, stop, "compute.filesystems.stop", target=lambda request: request.id, is_change=True)
    server = ApiServer(
        [Service("tests", kinds=(FILESYSTEM,), methods=(custom,))],
        TokenTable(),
        PermissionTable(),
        plain_dependencies(store, clock),
        notify=lambda: None,
        inventory=lambda: INVENTORY,
    )
    await server.start()
    sys.stdout.write(f"{server.addresses.http}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
