"""Read and write tokenised conversations, padded or packed.

The file is an Arrow file (`datasets.load_dataset("arrow", data_files=...)` reads it too) with the
columns `input_ids`, `labels`, `attention_mask` and, when packed, `position_ids`. It is read
through a memory map, so all processes of a node share one copy.

Packing puts several conversations into one row. They stay separate: `position_ids` start again
at 0 for each, from which the attention of `transformers` lets a token see only its own
conversation (tested: the logits are those of the conversation alone).
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import torch

from chat_tokens import IGNORED
from recipe_errors import RecipeError

COLUMNS = {
    "input_ids": pyarrow.int32(),
    "labels": pyarrow.int32(),
    "attention_mask": pyarrow.int8(),
    "position_ids": pyarrow.int32(),
}
ROWS_PER_BATCH = 512
PAD_MULTIPLE = 8

Ints = Sequence[int] | numpy.ndarray
Example = tuple[Ints, Ints]  # token ids, labels
Row = dict[str, numpy.ndarray]


def plain_row(example: Example) -> Row:
    ids, labels = (numpy.asarray(part, numpy.int32) for part in example)
    return {"input_ids": ids, "labels": labels, "attention_mask": numpy.ones(len(ids), numpy.int8)}


def pack(examples: Sequence[Example], context: int, lengths: Sequence[int] | None = None) -> Iterator[Row]:
    """Yield rows of up to `context` tokens, each of one or more whole conversations. Their lengths may be
    given where reading them takes long."""
    for group in fill_rows(lengths or [len(ids) for ids, _ in examples], context):
        parts = [plain_row(examples[index]) for index in group]
        row = {name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]}
        places = [numpy.arange(len(part["input_ids"]), dtype=numpy.int32) for part in parts]
        yield row | {"position_ids": numpy.concatenate(places)}


def fill_rows(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Best-fit decreasing: each conversation goes to the fullest row that it still fits in."""
    room: list[tuple[int, int]] = []  # free tokens and row number, sorted
    rows: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        at = bisect.bisect_left(room, (lengths[index], -1))
        if at < len(room):
            free, row = room.pop(at)
        else:
            free, row = context, len(rows)
            rows.append([])
        rows[row].append(index)
        bisect.insort(room, (free - lengths[index], row))
    return [sorted(row) for row in rows]


def write_rows(path: Path, rows: Iterable[Row], facts: dict[str, Any]) -> int:
    """Write the file under a temporary name and rename it, with `facts` in its schema."""
    names = [name for name in COLUMNS if facts["packed"] or name != "position_ids"]
    schema = pyarrow.schema(
        [(name, pyarrow.list_(COLUMNS[name])) for name in names],
        metadata={"tokenized": json.dumps(facts)},
    )
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    source, count = iter(rows), 0
    try:
        with pyarrow.ipc.new_file(partial, schema) as writer:
            while part := list(itertools.islice(source, ROWS_PER_BATCH)):
                columns = {name: [row[name] for row in part] for name in names}
                writer.write_batch(pyarrow.RecordBatch.from_pydict(columns, schema=schema))
                count += len(part)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


@dataclass
class TokenizedData:
    """The rows of a tokenised file; `batch` pads the chosen ones to tensors, `joined` puts them in a row."""

    table: pyarrow.Table
    facts: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> TokenizedData:
        try:
            table = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()
        except pyarrow.ArrowInvalid as error:
            raise RecipeError(f"{path}: not a tokenised file; make one with dataset_tokenize.py") from error
        facts = json.loads((table.schema.metadata or {}).get(b"tokenized", b"{}"))
        if not facts or not table.num_rows:
            raise RecipeError(f"{path}: not written by dataset_tokenize.py, or without rows")
        return cls(table, facts)

    def __len__(self) -> int:
        return self.table.num_rows

    def tokens(self, rows: Sequence[int]) -> int:
        """Count the tokens in these rows, without padding."""
        return sum(len(self.table["input_ids"][row]) for row in rows)

    def batch(self, rows: Sequence[int], pad_id: int) -> dict[str, torch.Tensor]:
        """Return one tensor per column, with all rows padded to the longest of them."""
        return pad_batch(self._rows(rows), pad_id)

    def joined(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the rows as one sequence, for a model with `separate_attention`."""
        return join_rows(self._rows(rows))

    def _rows(self, rows: Sequence[int]) -> list[Row]:
        names = self.table.column_names
        return [{name: self.table[name][row].values.to_numpy() for name in names} for row in rows]


def join_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Return all rows as one sequence without padding, with the bounds of its conversations."""
    ids, labels = (
        numpy.concatenate([row[name] for row in rows]).astype(numpy.int64) for name in ("input_ids", "labels")
    )
    places = [row.get("position_ids", numpy.arange(len(row["input_ids"]))) for row in rows]
    places = numpy.concatenate(places).astype(numpy.int64)
    bounds = numpy.append(numpy.flatnonzero(places == 0), len(places)).astype(numpy.int32)
    batch = {"input_ids": ids[None], "labels": labels[None], "position_ids": places[None]}
    return {name: torch.from_numpy(part) for name, part in {**batch, "cu_seq_lens_q": bounds}.items()}


def pad_batch(rows: Sequence[Mapping[str, Any]], pad_id: int) -> dict[str, torch.Tensor]:
    """Return rows as the model's inputs; padding has no label."""
    longest = max(len(row["input_ids"]) for row in rows)
    length = -(-longest // PAD_MULTIPLE) * PAD_MULTIPLE
    fill = {"input_ids": pad_id, "labels": IGNORED, "attention_mask": 0, "position_ids": 0}
    batch = {name: _padded([row[name] for row in rows], length, fill[name]) for name in rows[0]}
    if "position_ids" in batch:  # packed: which tokens see each other follows from the positions alone
        del batch["attention_mask"]
    return batch


def _padded(parts: list[Any], length: int, fill: int) -> torch.Tensor:
    padded = numpy.full((len(parts), length), fill, dtype=numpy.int64)
    for row, part in enumerate(parts):
        padded[row, : len(part)] = part
    return torch.from_numpy(padded)
