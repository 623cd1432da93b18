"""Stored state of inventories, in the metadata of the object store: the last run, and the one in progress.

A process that is killed continues from here.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import uuid4

from neocloud.core import contract
from neocloud.messages.nebius.storage.v1 import InventoryStatus
from neocloud.messages.neocloud.storage.v1 import InventoryReport
from neocloud.object_gateway.work.inventories.listing import Position
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.transaction import Transaction, to_time

NO_ERROR = "NO_ERROR"


class InventoryRow(NamedTuple):
    id: str
    generation: int
    error: str
    """A name of InventoryStatus.Error."""
    retry_ms: int
    last_start_ms: int | None
    """When the last run began that succeeded."""
    last_success_ms: int | None
    run: str = ""
    settings: bytes = b""
    """Settings of the run in progress."""
    start_ms: int = 0
    is_listed: int = 0
    """Whether the files of the run have all versions."""
    position_key: bytes = b""
    position_seq: int = 0

    @property
    def position(self) -> Position:
        return Position(self.position_key, self.position_seq)

    def without_run(self) -> "InventoryRow":
        return InventoryRow(*self[:6])


class FileRow(NamedTuple):
    inventory: str
    number: int
    bucket_id: str
    key: bytes
    version_id: str
    size: int
    md5: str


class Records:
    """Reads and writes the progress of all inventories."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, inventory_id: str) -> InventoryRow | None:
        found = self._database.reading.execute("SELECT * FROM inventory WHERE id = ?", (inventory_id,))
        row = found.fetchone()
        return InventoryRow._make(row) if row else None

    def ids(self) -> list[str]:
        return [row[0] for row in self._database.reading.execute("SELECT id FROM inventory ORDER BY id")]

    def files(self, inventory_id: str) -> Sequence[FileRow]:
        """Return the files of the run in progress."""
        found = self._database.reading.execute(
            "SELECT * FROM inventory_file WHERE inventory = ? ORDER BY number", (inventory_id,)
        )
        return [FileRow._make(row) for row in found]

    def next_number(self, inventory_id: str) -> int:
        """Return the number of the next file of the run in progress."""
        (found,) = self._database.reading.execute(
            "SELECT coalesce(max(number), 0) FROM inventory_file WHERE inventory = ?", (inventory_id,)
        ).fetchone()
        return found + 1

    async def apply(self, inventory_id: str, generation: int) -> None:
        """Store the desired generation; a run that failed is tried again at once with a new one."""

        def work(tx: Transaction) -> None:
            row = _find(tx, inventory_id) or InventoryRow(inventory_id, 0, NO_ERROR, 0, None, None)
            if row.generation != generation:
                _put(tx, row._replace(generation=generation, retry_ms=0))

        await self._database.write(work)

    async def begin(self, inventory_id: str, settings: bytes) -> InventoryRow:
        """Return the inventory with its run in progress: the one that a killed process left, or a new one."""

        def work(tx: Transaction) -> InventoryRow:
            row = _find(tx, inventory_id) or InventoryRow(inventory_id, 0, NO_ERROR, 0, None, None)
            if not row.run:
                row = row._replace(run=uuid4().hex, settings=settings, start_ms=tx.now_ms)
                _put(tx, row)
            return row

        return await self._database.write(work)

    async def advance(
        self, row: InventoryRow, position: Position, file: FileRow | None, *, is_listed: bool
    ) -> InventoryRow:
        """Store a finished file of the run (None for an empty one) and the last key that the files list."""
        after = row._replace(is_listed=int(is_listed), position_key=position.key, position_seq=position.seq)

        def work(tx: Transaction) -> None:
            if file is not None:
                tx.connection.execute("INSERT INTO inventory_file VALUES (?, ?, ?, ?, ?, ?, ?)", file)
            _put(tx, after)

        await self._database.write(work)
        return after

    async def succeed(self, row: InventoryRow) -> None:
        """End the run in progress, whose report is complete."""

        def work(tx: Transaction) -> None:
            _forget_files(tx, row.id)
            ended = row.without_run()
            _put(
                tx,
                ended._replace(
                    error=NO_ERROR, retry_ms=0, last_start_ms=row.start_ms, last_success_ms=tx.now_ms
                ),
            )

        await self._database.write(work)

    async def give_up(self, inventory_id: str) -> None:
        """End the run in progress without a report."""

        def work(tx: Transaction) -> None:
            _forget_files(tx, inventory_id)
            row = _find(tx, inventory_id)
            if row is not None:
                _put(tx, row.without_run())

        await self._database.write(work)

    async def fail(self, inventory_id: str, error: str, pause: timedelta) -> None:
        """Note why the last run failed. Another one may begin after the pause."""

        def work(tx: Transaction) -> None:
            row = _find(tx, inventory_id)
            if row is not None:
                retry_ms = tx.now_ms + pause // timedelta(milliseconds=1)
                _put(tx, row._replace(error=error, retry_ms=retry_ms))

        await self._database.write(work)

    async def remove(self, inventory_id: str) -> None:
        def work(tx: Transaction) -> None:
            _forget_files(tx, inventory_id)
            tx.connection.execute("DELETE FROM inventory WHERE id = ?", (inventory_id,))

        await self._database.write(work)

    def report(self, inventory_id: str) -> InventoryReport | None:
        """Return the report of an inventory for the control plane."""
        row = self.find(inventory_id)
        if row is None:
            return None
        status = InventoryStatus(error_code=InventoryStatus.Error.Value(row.error))
        if row.last_success_ms is not None:
            status.last_success.CopyFrom(contract.timestamp(to_time(row.last_success_ms)))
        return InventoryReport(id=row.id, applied_generation=row.generation, status=status)


def last_start(row: InventoryRow) -> datetime | None:
    return None if row.last_start_ms is None else to_time(row.last_start_ms)


def _find(tx: Transaction, inventory_id: str) -> InventoryRow | None:
    row = tx.connection.execute("SELECT * FROM inventory WHERE id = ?", (inventory_id,)).fetchone()
    return InventoryRow._make(row) if row else None


def _put(tx: Transaction, row: InventoryRow) -> None:
    marks = ", ".join("?" * len(row))
    tx.connection.execute("DELETE FROM inventory WHERE id = ?", (row.id,))
    tx.connection.execute(f"INSERT INTO inventory VALUES ({marks})", row)  # nosec B608


def _forget_files(tx: Transaction, inventory_id: str) -> None:
    tx.connection.execute("DELETE FROM inventory_file WHERE inventory = ?", (inventory_id,))
