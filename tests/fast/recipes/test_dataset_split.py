"""FT-06: a split by ratio, beside the input, shuffled on request."""

from __future__ import annotations

from pathlib import Path

import pytest

import dataset_split
from conversations import read_conversations
from tests.fast.recipes.conftest import CHATS, write_chats


def parts(path: Path) -> tuple[list, list]:
    names = (path.with_name(f"{path.stem}_{part}.jsonl") for part in ("train", "test"))
    train, test = (read_conversations(name) for name in names)
    return train, test


def test_train_and_test_files_lie_beside_the_input_in_order(chats: Path) -> None:
    assert dataset_split.main([str(chats), "--ratio", "0.75"]) == 0
    assert parts(chats) == (CHATS[:9], CHATS[9:])


def test_rand_sort_shuffles_the_same_way_for_the_same_seed(chats: Path) -> None:
    found = []
    for seed in ("1", "1", "2"):
        assert dataset_split.main([str(chats), "--rand-sort", "--seed", seed]) == 0
        found.append(parts(chats))
    assert found[0] == found[1] != found[2]
    train, test = found[0]
    assert sorted(map(str, train + test)) == sorted(map(str, CHATS)) and train + test != CHATS


def test_two_conversations_always_give_two_files(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "two.jsonl", CHATS[:2])
    assert dataset_split.main([str(path), "--ratio", "0.99"]) == 0
    assert [len(part) for part in parts(path)] == [1, 1]


def test_one_conversation_cannot_be_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dataset_split.main([str(write_chats(tmp_path / "one.jsonl", CHATS[:1]))]) == 1
    assert "at least two" in capsys.readouterr().err


def test_a_test_conversation_never_stands_in_the_training_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_chats(tmp_path / "copies.jsonl", [*CHATS[:8], CHATS[0], CHATS[9]])
    assert dataset_split.main([str(path), "--ratio", "0.8"]) == 0
    assert parts(path)[1] == [CHATS[9]]
    assert "left out 1 test" in capsys.readouterr().err


@pytest.mark.parametrize("ratio", ["0", "1", "-2"])
def test_a_ratio_outside_0_and_1_is_refused(
    chats: Path, ratio: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dataset_split.main([str(chats), f"--ratio={ratio}"]) == 1
    assert "between 0 and 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "boss", "content": "x"}]}', "role 'boss'"),
        ('{"messages": [{"role": "user", "content": " "}]}', "no content"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "what the model learns"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "in turn"),
        ("[1]", "at least one message"),
        ("{", "broken JSON"),
    ],
)
def test_a_bad_conversation_is_named_by_line_and_can_be_skipped(
    tmp_path: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_chats(tmp_path / "bad.jsonl", CHATS[:2])
    path.write_text(path.read_text("utf-8") + line + "\n", "utf-8")
    assert dataset_split.main([str(path)]) == 1
    error = capsys.readouterr().err
    assert "line 3" in error and message in error
    assert dataset_split.main([str(path), "--skip-bad"]) == 0
    assert "skipped 1 bad" in capsys.readouterr().err
