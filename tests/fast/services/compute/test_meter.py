"""Charges of a filesystem: BILL-03."""

from datetime import UTC, datetime, timedelta

from neocloud.messages.nebius.compute.v1 import FilesystemSpec

from neocloud.core.store.protocol import HistoryEntry
from neocloud.services.compute import FilesystemMeter
from neocloud.services.compute.public import filesystem_spec
from neocloud.services.compute.types import FILESYSTEM, FilesystemType

START = datetime(2026, 1, 1, tzinfo=UTC)
SSD = FilesystemType.Value("NETWORK_SSD")


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def entry(seconds: int, state: str, spec=None, *, is_deleted: bool = False) -> HistoryEntry:
    content = (spec or filesystem_spec(10)).SerializeToString()
    return HistoryEntry(
        "computefilesystem-e00a", FILESYSTEM, "project-e00a", "data", at(seconds), state, 1, content,
        is_deleted=is_deleted,
    )  # fmt: skip


def usage(*history: HistoryEntry, end: int = 1000) -> list[tuple[str, int, int]]:
    records = FilesystemMeter()(history, START, at(end))
    return [(record.sku, record.units, record.seconds) for record in records]


def test_it_costs_from_ready_until_its_deletion_is_asked_for() -> None:
    history = [entry(0, "CREATING"), entry(3, "READY"), entry(63, "DELETING"), entry(90, "", is_deleted=True)]
    assert usage(*history) == [("filesystem.network-ssd", 10, 60)]


def test_growing_costs_more_from_then_on() -> None:
    history = [entry(0, "READY"), entry(100, "UPDATING", filesystem_spec(20))]
    assert usage(*history) == [("filesystem.network-ssd", 10, 100), ("filesystem.network-ssd", 20, 900)]


def test_a_failed_filesystem_costs_nothing() -> None:
    assert usage(entry(0, "CREATING"), entry(10, "ERROR")) == []


def test_a_part_of_a_gibibyte_counts_as_one() -> None:
    assert usage(entry(0, "READY", FilesystemSpec(size_bytes=1, type=SSD)), end=5)[0][1] == 1
    assert usage(entry(0, "READY", FilesystemSpec(size_mebibytes=1025, type=SSD)), end=5)[0][1] == 2
