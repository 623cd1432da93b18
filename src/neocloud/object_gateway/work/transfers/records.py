"""Stored state of transfers, in the metadata of the object store: phases, iterations, unfinished uploads.

A process that is killed continues from here. Secrets are not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from neocloud.core import contract
from neocloud.messages.nebius.storage.v1 import TransferError, TransferIteration
from neocloud.messages.neocloud.storage.v1 import TransferReport
from neocloud.object_gateway.work.transfers.types import Upload
from neocloud.object_store.metadata.database import Database
from neocloud.object_store.metadata.transaction import Transaction, to_time

REPORTED_TOGETHER = 20
"""Iterations of a transfer in one report."""


class Phase(StrEnum):
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


class Outcome(StrEnum):
    """The states of an iteration."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    INTERRUPTED = "INTERRUPTED"
    FAILED = "FAILED"


class TransferRow(NamedTuple):
    id: str
    generation: int
    run: int
    phase: str
    empty_iterations: int
    failures: int
    error: bytes
    next_ms: int


class IterationRow(NamedTuple):
    transfer: str
    number: int
    state: str
    error: bytes
    start_ms: int
    end_ms: int | None
    objects: int
    deleted: int
    size: int
    position: bytes
    is_reported: int


@dataclass(frozen=True)
class AfterIteration:
    """The consequences of the end of an iteration."""

    outcome: Outcome
    phase: Phase
    empty_iterations: int
    failures: int
    error: TransferError | None
    pause: timedelta


class Records:
    """Reads and writes the progress of all transfers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, transfer_id: str) -> TransferRow | None:
        found = self._database.reading.execute("SELECT * FROM transfer WHERE id = ?", (transfer_id,))
        row = found.fetchone()
        return TransferRow._make(row) if row else None

    def ids(self) -> list[str]:
        return [row[0] for row in self._database.reading.execute("SELECT id FROM transfer ORDER BY id")]

    def last_iteration(self, transfer_id: str) -> IterationRow | None:
        found = self._database.reading.execute(
            "SELECT * FROM transfer_iteration WHERE transfer = ? ORDER BY number DESC LIMIT 1", (transfer_id,)
        ).fetchone()
        return IterationRow._make(found) if found else None

    async def apply(self, transfer_id: str, generation: int, run: int, *, is_stopped: bool) -> TransferRow:
        """Store the desired state: another run starts again, a stop interrupts the iteration in progress."""

        def work(tx: Transaction) -> None:
            row = _find(tx, transfer_id)
            if row is None or run != row.run:
                row = TransferRow(transfer_id, generation, run, Phase.RUNNING, 0, 0, b"", 0)
            row = row._replace(generation=generation)
            if is_stopped:
                tx.connection.execute(
                    "UPDATE transfer_iteration SET state = ?, end_ms = ?"
                    " WHERE transfer = ? AND end_ms IS NULL",
                    (Outcome.INTERRUPTED, tx.now_ms, transfer_id),
                )
                row = row._replace(phase=Phase.STOPPED if row.phase == Phase.RUNNING else row.phase)
            _put(tx, row)

        await self._database.write(work)
        found = self.find(transfer_id)
        assert found is not None
        return found

    async def begin(self, transfer_id: str) -> IterationRow:
        """Return the iteration in progress: the one that a killed process left, or a new one."""

        def work(tx: Transaction) -> None:
            number, end = tx.connection.execute(
                "SELECT coalesce(max(number), 0), sum(CASE WHEN end_ms IS NULL THEN 1 ELSE 0 END)"
                " FROM transfer_iteration WHERE transfer = ?",
                (transfer_id,),
            ).fetchone()
            if not end:
                values = (transfer_id, number + 1, Outcome.IN_PROGRESS, b"", tx.now_ms, None, 0, 0, 0, b"", 0)
                marks = ", ".join("?" * len(values))
                tx.connection.execute(f"INSERT INTO transfer_iteration VALUES ({marks})", values)  # nosec B608

        await self._database.write(work)
        found = self.last_iteration(transfer_id)
        assert found is not None
        return found

    async def count(self, transfer_id: str, *, objects: int = 0, deleted: int = 0, size: int = 0) -> None:
        """Count what the iteration in progress has done."""

        def work(tx: Transaction) -> None:
            tx.connection.execute(
                "UPDATE transfer_iteration SET objects = objects + ?, deleted = deleted + ?,"
                " bytes = bytes + ? WHERE transfer = ? AND end_ms IS NULL",
                (objects, deleted, size, transfer_id),
            )

        await self._database.write(work)

    async def advance(self, transfer_id: str, position: str) -> None:
        """Remember up to which key the iteration in progress has done all."""

        def work(tx: Transaction) -> None:
            tx.connection.execute(
                "UPDATE transfer_iteration SET position = ? WHERE transfer = ? AND end_ms IS NULL",
                (position.encode(), transfer_id),
            )

        await self._database.write(work)

    async def end(self, transfer_id: str, after: AfterIteration) -> None:
        def work(tx: Transaction) -> None:
            row = _find(tx, transfer_id)
            if row is None:
                return
            error = after.error.SerializeToString() if after.error is not None else b""
            tx.connection.execute(
                "UPDATE transfer_iteration SET state = ?, error = ?, end_ms = ?"
                " WHERE transfer = ? AND end_ms IS NULL",
                (after.outcome, error, tx.now_ms, transfer_id),
            )
            next_ms = tx.now_ms + int(after.pause.total_seconds() * 1000)
            _put(
                tx,
                row._replace(
                    phase=after.phase,
                    empty_iterations=after.empty_iterations,
                    failures=after.failures,
                    error=error,
                    next_ms=next_ms,
                ),
            )

        await self._database.write(work)

    async def remove(self, transfer_id: str) -> None:
        def work(tx: Transaction) -> None:
            tx.connection.execute("DELETE FROM transfer WHERE id = ?", (transfer_id,))
            tx.connection.execute("DELETE FROM transfer_iteration WHERE transfer = ?", (transfer_id,))
            tx.connection.execute("DELETE FROM transfer_upload WHERE transfer = ?", (transfer_id,))

        await self._database.write(work)

    def unreported(self, transfer_id: str) -> Sequence[IterationRow]:
        """Return the first iterations that ended and were not reported."""
        found = self._database.reading.execute(
            "SELECT * FROM transfer_iteration WHERE transfer = ? AND end_ms IS NOT NULL AND is_reported = 0"
            " ORDER BY number LIMIT ?",
            (transfer_id, REPORTED_TOGETHER),
        )
        return [IterationRow._make(row) for row in found]

    async def note_reported(self, numbers: Sequence[tuple[str, int]]) -> None:
        """Forget these iterations, which the control plane keeps now, save the last of each transfer."""

        def work(tx: Transaction) -> None:
            tx.connection.executemany(
                "UPDATE transfer_iteration SET is_reported = 1 WHERE transfer = ? AND number = ?", numbers
            )
            tx.connection.execute(
                "DELETE FROM transfer_iteration WHERE is_reported = 1 AND number <"
                " (SELECT max(number) FROM transfer_iteration AS i"
                " WHERE i.transfer = transfer_iteration.transfer)"
            )

        await self._database.write(work)

    def upload(self, transfer_id: str, key: str) -> Upload | None:
        return next((each for each in self.uploads(transfer_id) if each.key == key), None)

    def uploads(self, transfer_id: str) -> list[Upload]:
        found = self._database.reading.execute(
            "SELECT key, source_etag, upload_id, part_size FROM transfer_upload WHERE transfer = ?",
            (transfer_id,),
        )
        return [Upload(key.decode(), *others) for key, *others in found]

    async def put_upload(self, transfer_id: str, upload: Upload) -> None:
        values = (transfer_id, upload.key.encode(), upload.source_etag, upload.upload_id, upload.part_size)

        def work(tx: Transaction) -> None:
            tx.connection.execute(
                "DELETE FROM transfer_upload WHERE transfer = ? AND key = ?",
                (transfer_id, upload.key.encode()),
            )
            tx.connection.execute("INSERT INTO transfer_upload VALUES (?, ?, ?, ?, ?)", values)

        await self._database.write(work)

    async def forget_upload(self, transfer_id: str, key: str) -> None:
        def work(tx: Transaction) -> None:
            tx.connection.execute(
                "DELETE FROM transfer_upload WHERE transfer = ? AND key = ?", (transfer_id, key.encode())
            )

        await self._database.write(work)

    def report(self, transfer_id: str, now: datetime) -> TransferReport | None:
        """Return the report of a transfer for the control plane."""
        row = self.find(transfer_id)
        if row is None:
            return None
        found = TransferReport(
            id=row.id,
            applied_generation=row.generation,
            run=row.run,
            phase=TransferReport.Phase.Value(row.phase),
            failures=row.failures,
        )
        if row.error:
            found.error.ParseFromString(row.error)
        last = self.last_iteration(transfer_id)
        if last is not None:
            found.last_iteration.CopyFrom(_message(last, now))
        found.ended_iterations.extend(_message(each, now) for each in self.unreported(transfer_id))
        return found


def _find(tx: Transaction, transfer_id: str) -> TransferRow | None:
    row = tx.connection.execute("SELECT * FROM transfer WHERE id = ?", (transfer_id,)).fetchone()
    return TransferRow._make(row) if row else None


def _put(tx: Transaction, row: TransferRow) -> None:
    tx.connection.execute("DELETE FROM transfer WHERE id = ?", (row.id,))
    tx.connection.execute("INSERT INTO transfer VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def _message(row: IterationRow, now: datetime) -> TransferIteration:
    start = to_time(row.start_ms)
    end = to_time(row.end_ms) if row.end_ms is not None else now
    seconds = max((end - start).total_seconds(), 0.001)
    found = TransferIteration(
        sequence_number=row.number,
        state=TransferIteration.State.Value(row.state),
        start_time=contract.timestamp(start),
        objects_transferred_count=row.objects,
        objects_deleted_count=row.deleted,
        objects_transferred_size=row.size,
        average_throughput_bytes=int(row.size / seconds),
    )
    if row.error:
        found.error.ParseFromString(row.error)
    if row.end_ms is not None:
        found.end_time.CopyFrom(contract.timestamp(end))
    return found
