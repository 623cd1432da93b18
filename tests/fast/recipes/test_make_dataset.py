"""The demonstration data: the same for the same seed, and ready for the next script."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

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


def test_the_test_file_asks_about_every_topic_in_words_that_the_training_file_does_not_have(
    tmp_path: Path,
) -> None:
    train, test = tmp_path / "bank.csv", tmp_path / "bank_test.csv"
    arguments = ["--output", str(train), "--test", str(test), "--conversations", "400"]
    assert make_dataset.main(arguments) == 0
    rows = {path: list(csv.DictReader(io.StringIO(path.read_text("utf-8")))) for path in (train, test)}
    assert {row["topic"] for row in rows[test]} == {row["topic"] for row in rows[train]}
    asked = {row["customer"].lower() for row in rows[train]}
    assert not [row for row in rows[test] if any(row["customer"].lower() in each for each in asked)]
    known = {row["advisor"] for row in rows[train]}
    assert all(row["advisor"] in known for row in rows[test]), "what is asked for was taught"


def test_each_wording_of_the_first_topics_occurs_equally_often() -> None:
    phrases = json.loads(make_dataset.TOPICS.read_text("utf-8"))
    rows = make_dataset.rows(2 * 12 * 12, 3, topics=12)
    assert {topic for _, _, topic, _, _ in rows} == {each["topic"] for each in phrases["topics"][:12]}
    assert len(phrases["topics"]) == make_dataset.ALL_TOPICS
    plain = [words for topic in phrases["topics"][:12] for words in topic["customer"] if "{" not in words]
    first = [customer.lower() for _, turn, _, customer, _ in rows if turn == 0]
    for words in plain:
        assert sum(each.endswith(words.lower()) for each in first) == 2, words


def test_the_number_of_topics_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("0", "21"):
        assert make_dataset.main(["--output", str(tmp_path / "bank.csv"), "--topics", wrong]) != 0
        assert f"--topics {wrong}: from 1 to 20" in capsys.readouterr().err
