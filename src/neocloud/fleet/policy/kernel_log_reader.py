"""Reads /dev/kmsg without waiting, and continues after a restart where it stopped.

A cursor in a file says which record comes next, and of which boot. It is written after the caller has kept
what it was given (`commit`), so a crash repeats records and loses none; the sequence of a record in its boot
tells the caller that it has it already. Records that the kernel overwrote before they were read are counted.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from neocloud.core.osfiles import read_private, write_file
from neocloud.fleet.policy.kernel_log import KernelMessage
from neocloud.fleet.policy.kernel_log_line import record_of, sequence_of

DEVICE = Path("/dev/kmsg")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
READ_BYTES = 1 << 16
"""The kernel refuses to read a record into less than it needs, which is 8 KiB at most."""
MOST_RECORDS = 20_000
"""Records of one batch; what is left comes with the next."""
LONGEST_CURSOR = 1000
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cursor:
    """The next record to read. Sequences begin at 0 with each boot."""

    boot_id: str
    sequence: int = 0


@dataclass(frozen=True)
class Batch:
    """The records of one read."""

    records: Sequence[KernelMessage]
    """Records of the kernel itself."""
    lost: int
    """How many records the kernel overwrote before they were read: what they said is not known."""
    cursor: Cursor
    """Where the next batch begins."""


class KernelLog:
    """The kernel log of this machine, from the cursor on. Use it as a context."""

    def __init__(self, cursor_file: Path, *, device: Path = DEVICE, boot_id: Path = BOOT_ID) -> None:
        self._cursor_file, self._device = cursor_file, device
        self.cursor = _read_cursor(cursor_file, boot_id.read_text().strip())

    def __enter__(self) -> "KernelLog":
        self._descriptor = os.open(self._device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def read(self) -> Batch:
        """Return the records that came since the last batch, without waiting for more."""
        records, lost, sequence = list[KernelMessage](), 0, self.cursor.sequence
        for line in available_lines(self._descriptor, most=MOST_RECORDS):
            found = sequence_of(line)
            if found is None or found < sequence:
                continue
            lost, sequence = lost + found - sequence, found + 1
            if (record := record_of(line)) is not None:
                records.append(record)
        self.cursor = Cursor(self.cursor.boot_id, sequence)
        return Batch(records, lost, self.cursor)

    def commit(self, batch: Batch) -> None:
        """Continue after this batch, also after a restart. Raises OSError."""
        content = {"boot_id": batch.cursor.boot_id, "sequence": batch.cursor.sequence}
        write_file(self._cursor_file, json.dumps(content), durable=True)


def available_lines(descriptor: int, *, most: int) -> Iterator[str]:
    """Yield the lines of records that can be read now. Each read of /dev/kmsg gives one whole record."""
    for _ in range(most):
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:  # the record was overwritten; the next read gives the oldest that is left
            continue
        if not data:
            return
        yield from data.decode(errors="replace").split("\n")


def _read_cursor(path: Path, boot_id: str) -> Cursor:
    """Return the cursor in the file, or the beginning of the log where there is none for this boot."""
    try:
        found: Any = json.loads(read_private(path, LONGEST_CURSOR))
        if found["boot_id"] != boot_id:
            return Cursor(boot_id)
        sequence = found["sequence"]
        if type(sequence) is not int or sequence < 0:
            raise ValueError("the sequence is not a number")
        return Cursor(boot_id, sequence)
    except FileNotFoundError:
        return Cursor(boot_id)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("The cursor %s cannot be used, so the kernel log is read again: %s", path, error)
        return Cursor(boot_id)
