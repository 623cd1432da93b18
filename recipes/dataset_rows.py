"""Read rows from Parquet, CSV, JSON and JSONL files, each with its place in the file.

A row is a dict from column name to value; the place ("chats.csv: line 7") goes into messages
about it. This module knows file formats and nothing about conversations. A file is read twice: for its
columns, then for its rows, so that a large one need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chat_messages import BadRecordError, is_empty
from conversations import BadRecords, json_lines
from csv_tables import csv_records
from recipe_errors import RecipeError
from text_files import Broken, find_broken, not_text, parse_json, text_lines

FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv",
    ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip

Row = tuple[str, dict[str, Any]]
Reader = Callable[[Path, BadRecords], Iterator[Row]]


@dataclass(frozen=True)
class Table:
    """The rows of a file, read again each time."""

    path: Path
    columns: list[str]
    reader: Reader
    count: int
    """The number of rows that can be read."""

    def rows(self, bad: BadRecords) -> Iterator[Row]:
        return self.reader(self.path, bad)


def open_table(path: Path, file_format: str | None, skip_bad: bool) -> Table:
    """Return the table of a file; a file without a single row is an error."""
    file_format = file_format or FORMATS.get(path.suffix.lower())
    kinds = dict.fromkeys(FORMATS.values())
    if file_format is None:
        raise RecipeError(
            f"{path}: cannot tell the format from the name; these are read: {', '.join(FORMATS)}",
            f"pass --format with one of {', '.join(kinds)}",
        )
    if path.stat().st_size == 0:
        raise RecipeError(f"{path}: the file is empty; nothing to convert")
    reader = {"parquet": _parquet, "csv": _csv, "json": _json, "jsonl": _jsonl}[file_format]
    bad = BadRecords(skip=True)
    columns: dict[str, None] = {}
    count = 0
    for count, (_, row) in enumerate(reader(path, bad), start=1):  # noqa: B007  whether there is one
        columns.update(dict.fromkeys(row))
    if bad.count and not skip_bad:
        raise RecipeError(bad.examples[0], BadRecords().advice)
    if not count:
        found = "there is no row in the file"
        if bad.count:
            found = f"all {bad.count} records are bad, the first: {bad.examples[0]}"
        raise RecipeError(f"{path}: {found}; nothing to convert")
    return Table(path, list(columns), reader, count)


def place_in(where: str, path: Path) -> str:
    """Return a place in a file without the file and the column: "line 7"."""
    return where.removeprefix(f"{path}: ").partition(": ")[0]


def _parquet(path: Path, bad: BadRecords) -> Iterator[Row]:
    try:  # it takes long to load, and other formats do without
        import pyarrow.parquet  # noqa: PLC0415
    except ModuleNotFoundError:
        raise RecipeError(f"{path}: the package pyarrow is not installed, which reads Parquet") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
                raise RecipeError(f"{path}: two columns have the name {twice[0]!r}; rename one")
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
    except (pyarrow.ArrowException, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise RecipeError(f"{path}: not a readable Parquet file ({error})") from error


def _csv(path: Path, bad: BadRecords) -> Iterator[Row]:
    records = csv_records(path)
    _, header, _ = next(records, (0, [], None))
    for line, fields, error in records:
        if error is not None:
            bad.add(error)
        else:
            yield f"{path}: line {line}", dict(zip(header, fields, strict=True))


def _jsonl(path: Path, bad: BadRecords) -> Iterator[Row]:
    for number, record in json_lines(path, bad):
        yield from _object(record, f"{path}: line {number}", bad)


def _json(path: Path, bad: BadRecords) -> Iterator[Row]:
    lines = list(text_lines(path))
    for number, line in enumerate(lines, start=1):  # a JSON document with a broken line is broken as a whole
        if wrong := not_text(line):
            raise RecipeError(f"{path}: line {number}: {wrong}")
    broken: list[Broken] = []
    try:
        document = parse_json("".join(lines), broken)
    except ValueError as error:
        is_lines = "Extra data" in str(error)
        hint = "; if each line is an object of its own, name the file .jsonl" if is_lines else ""
        advice = "pass --format jsonl" if is_lines else ""
        raise RecipeError(f"{path}: {_broken(error)}{hint}", advice) from error
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list)]
        if len(lists) != 1:
            raise RecipeError(f"{path}: expected a list of rows, or an object holding just one")
        for name in document:
            if document[name] is not lists[0] and not is_empty(document[name]):
                bad.remarks[f"value beside the rows is not used: {name!r:.80}"] = 1
        document = lists[0]
    if not isinstance(document, list):
        raise RecipeError(f"{path}: expected a list of rows, found {type(document).__name__}")
    for number, record in enumerate(document, start=1):
        where = f"{path}: row {number}"
        if broken and (found := find_broken(record)):
            bad.add(BadRecordError(f"{where}: broken JSON ({found.reason})"))
        else:
            yield from _object(record, where, bad)


def _broken(error: ValueError) -> str:
    """Return what is broken, beginning with the line where the parser knows it."""
    text, at, place = str(error).rpartition(" at line ")
    return f"line {place.split()[0]}: broken JSON ({text})" if at else f"broken JSON ({error})"


def _object(record: Any, where: str, bad: BadRecords) -> Iterator[Row]:
    if isinstance(record, dict):
        yield where, record
    else:
        bad.add(BadRecordError(f"{where}: not an object with named columns"))
