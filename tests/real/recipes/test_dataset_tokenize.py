"""FT-07: tokenised files, packed or not; what does not fit is cut or dropped, and counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
import torch

import dataset_tokenize
from chat_tokens import IGNORED, ChatEncoder, load_tokenizer
from dataset_tokenize import Counts, fit
from lora_model import load_base
from recipe_errors import RecipeError
from tests.fast.recipes.conftest import ALONE, CHATS, RECIPES
from tokenized_data import TokenizedData, pack


def tokenize(chats: Path, model: Path, *flags: str) -> TokenizedData:
    output = chats.with_suffix(".arrow")
    assert dataset_tokenize.main([str(chats), "--model", str(model), *ALONE, *flags]) == 0
    return TokenizedData.open(output)


def tokenize_apart(
    chats: Path, model: Path, *flags: str, program: str = ""
) -> subprocess.CompletedProcess[str]:
    start = f"import os, signal, sys, dataset_tokenize\n{program}\nsys.exit(dataset_tokenize.main())"
    return subprocess.run(
        [sys.executable, "-c", start, str(chats), "--model", str(model), *flags],
        env={**os.environ, "PYTHONPATH": str(RECIPES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_rows_have_ids_labels_and_mask(chats: Path, tiny_model: Path) -> None:
    data = tokenize(chats, tiny_model)
    assert data.table.column_names == ["input_ids", "labels", "attention_mask"]
    ids, labels = ChatEncoder(load_tokenizer(str(tiny_model))).encode(CHATS[3])
    assert data.table["input_ids"][3].as_py() == ids
    assert data.table["labels"][3].as_py() == labels
    assert data.facts["conversations"] == len(data) == 12


def test_two_processes_write_what_one_writes(chats: Path, tiny_model: Path) -> None:
    alone = tokenize(chats, tiny_model).table
    ran = tokenize_apart(chats, tiny_model, "--workers", "2")
    assert ran.returncode == 0, ran.stderr
    assert TokenizedData.open(chats.with_suffix(".arrow")).table.equals(alone)


def test_a_process_that_dies_is_an_error_and_no_wait(chats: Path, tiny_model: Path) -> None:
    dies = "def die(messages): os.kill(os.getpid(), signal.SIGKILL)\ndataset_tokenize._encode_inherited = die"
    ran = tokenize_apart(chats, tiny_model, "--workers", "2", program=dies)
    assert ran.returncode == 1 and "one of 2 processes died" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr


def test_batches_are_padded_without_labels(chats: Path, tiny_model: Path) -> None:
    data = tokenize(chats, tiny_model)
    data_lengths = [len(data.table["input_ids"][row]) for row in (0, 11)]
    batch = data.batch([0, 11], pad_id=0)
    assert batch["input_ids"].shape == (2, -(-max(data_lengths) // 8) * 8)
    assert batch["attention_mask"].sum(dim=1).tolist() == data_lengths
    assert (batch["labels"][batch["attention_mask"] == 0] == IGNORED).all()
    assert data.tokens([0, 11]) == sum(data_lengths)


def test_packing_fills_rows_and_loses_nothing() -> None:
    examples = [([length] * length, [length] * length) for length in (7, 3, 5, 5, 2, 9, 1)]
    rows = [{name: part.tolist() for name, part in row.items()} for row in pack(examples, 10)]
    assert sorted(len(row["input_ids"]) for row in rows) == [2, 10, 10, 10]
    assert sorted(sum((row["input_ids"] for row in rows), [])) == sorted(
        sum((ids for ids, _ in examples), [])
    )
    for row in rows:
        assert row["position_ids"][0] == 0 and len(row["position_ids"]) == len(row["input_ids"])


def test_packed_conversations_do_not_see_each_other(chats: Path, tiny_model: Path) -> None:
    data = tokenize(chats, tiny_model, "--pack", "--context", "128")
    assert len(data) < len(CHATS)
    model = load_base(str(tiny_model)).eval()
    batch = data.batch(range(len(data)), pad_id=0)
    assert "attention_mask" not in batch
    with torch.inference_mode():
        packed = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False)
        compared = 0
        for row, positions in enumerate(batch["position_ids"].tolist()):
            for start, end in _conversations(positions):
                alone = model(input_ids=batch["input_ids"][row : row + 1, start:end], use_cache=False)
                torch.testing.assert_close(
                    packed.logits[row, start:end], alone.logits[0], atol=1e-4, rtol=1e-4
                )
                compared += 1
    assert compared == len(CHATS)


def _conversations(positions: list[int]) -> list[tuple[int, int]]:
    starts = [place for place, position in enumerate(positions) if position == 0]
    ends = [*starts[1:], len(positions)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end - start > 1]


def test_the_first_token_of_a_packed_conversation_is_never_a_label(chats: Path, tiny_model: Path) -> None:
    table = tokenize(chats, tiny_model, "--pack").table
    for labels, positions in zip(table["labels"], table["position_ids"], strict=True):
        pairs = zip(labels.as_py(), positions.as_py(), strict=True)
        assert all(label == IGNORED for label, position in pairs if position == 0)


def test_long_conversations_are_cut_or_dropped_and_counted() -> None:
    long, short = (list(range(20)), [IGNORED] * 4 + [1] * 16), ([1, 2], [IGNORED, 2])
    late = (list(range(20)), [IGNORED] * 15 + [1] * 5)
    cut, dropped = Counts(), Counts()
    assert [len(ids) for ids, _ in fit([long, short, late], 10, "truncate", cut)] == [10, 2]
    assert [len(ids) for ids, _ in fit([long, short, late], 10, "drop", dropped)] == [2]
    assert cut == Counts(kept=2, truncated=2, without_labels=1)
    assert dropped == Counts(kept=1, dropped=2)


def test_the_counts_are_reported(chats: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenize(chats, tiny_model, "--context", "40")
    assert "longer than 40 tokens: 12 truncated, 0 dropped" in capsys.readouterr().err


def test_a_context_too_short_for_any_answer_is_refused(
    chats: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [str(chats), "--model", str(tiny_model), "--context", "8"]
    assert dataset_tokenize.main(flags) == 1
    assert "raise --context" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no arrow file"])
def test_a_file_that_is_not_tokenised_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match="not a tokenised file"):
        TokenizedData.open(path)


def test_an_arrow_file_of_someone_else_is_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"a": [1]})
    with pyarrow.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(RecipeError, match="not written by dataset_tokenize.py"):
        TokenizedData.open(tmp_path / "a.arrow")
