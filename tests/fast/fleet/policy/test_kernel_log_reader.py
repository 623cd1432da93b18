"""The kernel log is read to its end without waiting, and nothing is lost or read twice over restarts.

A FIFO stands in for /dev/kmsg: it is a device of the same kind, which gives what is there and blocks then.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.fleet.policy import kernel_log_reader
from neocloud.fleet.policy.kernel_log_reader import Cursor, KernelLog


class Log:
    """A kernel log that tests write."""

    def __init__(self, folder: Path) -> None:
        self.device, self.cursor, self.boot_id = folder / "kmsg", folder / "cursor", folder / "boot_id"
        self.boot_id.write_text("first\n")
        os.mkfifo(self.device)
        self._end = os.open(self.device, os.O_RDWR | os.O_NONBLOCK)

    def write(self, *sequences: int, priority: int = 3) -> None:
        for each in sequences:
            os.write(self._end, f"{priority},{each},{each}000,-;message {each}\n SUBSYSTEM=pci\n".encode())

    def open(self) -> KernelLog:
        return KernelLog(self.cursor, device=self.device, boot_id=self.boot_id)

    def close(self) -> None:
        os.close(self._end)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.close()


def test_all_records_are_read_once(log: Log) -> None:
    log.write(0, 1)
    with log.open() as opened:
        first = opened.read()
        assert [each.message for each in first.records] == ["message 0", "message 1"] and not first.lost
        assert not opened.read().records, "there is no more, and it does not wait"
        log.write(2)
        assert [each.sequence for each in opened.read().records] == [2]


def test_after_a_restart_it_goes_on_after_what_was_kept(log: Log) -> None:
    """A reader that opens /dev/kmsg gets all records that are left, so the old ones come again."""
    log.write(0, 1)
    with log.open() as opened:
        opened.commit(opened.read())
        log.write(2)
        opened.read()  # and it ends before it has kept this one
    log.write(0, 1, 2, 3)
    with log.open() as opened:
        batch = opened.read()
    assert [each.sequence for each in batch.records] == [2, 3] and not batch.lost


def test_records_that_were_overwritten_are_counted(log: Log) -> None:
    log.write(5, 6)
    with log.open() as opened:
        assert opened.read().lost == 5, "those before the first that is left"
        log.write(7, 10)
        assert opened.read().lost == 2


def test_records_of_programs_are_no_gap(log: Log) -> None:
    log.write(0)
    log.write(1, priority=12)
    log.write(2)
    with log.open() as opened:
        batch = opened.read()
    assert [each.sequence for each in batch.records] == [0, 2] and not batch.lost


def test_a_record_that_vanishes_during_the_read_is_counted(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel answers EPIPE, and continues with the oldest record that is left."""
    log.write(4)
    answers = [BrokenPipeError()]
    read = os.read

    def answer(descriptor: int, size: int) -> bytes:
        if answers:
            raise answers.pop()
        return read(descriptor, size)

    monkeypatch.setattr("neocloud.fleet.policy.kernel_log_reader.os.read", answer)
    with log.open() as opened:
        batch = opened.read()
    assert [each.sequence for each in batch.records] == [4] and batch.lost == 4


def test_another_boot_begins_at_its_beginning(log: Log) -> None:
    log.write(0, 1)
    with log.open() as opened:
        opened.commit(opened.read())
    log.boot_id.write_text("second\n")
    log.write(0)
    with log.open() as opened:
        assert [each.sequence for each in opened.read().records] == [0]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"boot_id": "first"}', '{"boot_id": "first", "sequence": -1}',
     '{"boot_id": "first", "sequence": true}', '{"boot_id": "first", "sequence": "9"}',
     "[" * 900, "x" * 2000],
)  # fmt: skip
def test_a_broken_cursor_reads_again_and_loses_nothing(log: Log, content: str) -> None:
    log.cursor.write_text(content)
    log.cursor.chmod(0o600)
    log.write(0)
    with log.open() as opened:
        batch = opened.read()
        assert len(batch.records) == 1
        opened.commit(batch)
    assert json.loads(log.cursor.read_text()) == {"boot_id": "first", "sequence": 1}


def test_a_flood_comes_in_batches(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log_reader, "MOST_RECORDS", 1)
    monkeypatch.setattr(kernel_log_reader, "READ_BYTES", 36)  # one record of the test's
    log.write(0, 1)
    with log.open() as opened:
        assert opened.read().cursor == Cursor("first", 1)
        assert opened.read().cursor == Cursor("first", 2)
