"""The demonstration data: the same for the same seed, and ready for the next script."""

from __future__ import annotations

from pathlib import Path

import dataset_convert
import make_dataset
from conversations import read_conversations


def test_the_same_seed_gives_the_same_rows_and_another_seed_does_not() -> None:
    assert make_dataset.rows(60, 1) == make_dataset.rows(60, 1) != make_dataset.rows(60, 2)


def test_no_slot_is_left_unfilled_and_every_topic_occurs() -> None:
    rows = make_dataset.rows(100, 42)
    assert not any("{" in customer + advisor for *_, customer, advisor in rows)
    assert len({topic for _, _, topic, _, _ in rows}) == 20


def test_convert_reads_it_without_being_told_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "bank.csv"
    assert make_dataset.main(["--output", str(path), "--conversations", "30"]) == 0
    assert dataset_convert.main([str(path)]) == 0
    found = read_conversations(tmp_path / "bank.jsonl")
    assert len(found) == 30 and {len(chat) for chat in found} >= {2, 4}
