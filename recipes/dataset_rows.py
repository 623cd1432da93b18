"""Read rows from Parquet, CSV, JSON and JSONL files, each with its place in the file.

A row is a dict from column name to value; the place ("chats.csv: line 7") goes into messages
about it. This module knows file formats and nothing about conversations.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from conversations import BadRecordError, BadRecords, json_lines, numbered_lines
from recipe_errors import RecipeError

FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "jsonl"}

Row = tuple[str, dict[str, Any]]


def read_rows(path: Path, file_format: str | None, bad: BadRecords) -> tuple[list[str], list[Row]]:
    """Return column names and rows; a file without a single row is an error."""
    file_format = file_format or FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise RecipeError(
            f"{path}: cannot tell the format from the name; pass --format with one of"
            f" {', '.join(FORMATS.values())}"
        )
    if path.stat().st_size == 0:
        raise RecipeError(f"{path}: the file is empty; nothing to convert")
    reader = {"parquet": _parquet, "csv": _csv, "json": _json, "jsonl": _jsonl}[file_format]
    rows = list(reader(path, bad))
    if not rows:
        found = f"all {bad.count} records are bad" if bad.count else "there is no row in the file"
        raise RecipeError(f"{path}: {found}; nothing to convert")
    columns = dict.fromkeys(column for _, row in rows for column in row)
    return list(columns), rows


def _parquet(path: Path, bad: BadRecords) -> Iterator[Row]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
    except pyarrow.ArrowException as error:
        raise RecipeError(f"{path}: not a readable Parquet file ({error})") from error


def _csv(path: Path, bad: BadRecords) -> Iterator[Row]:
    lines = (line for _, line in numbered_lines(path, bad))
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while True:
        start = reader.line_num + 1  # a quoted field may run over many lines
        where = f"{path}: line {start}"
        try:
            fields = next(reader, None)
        except csv.Error as error:
            bad.add(BadRecordError(f"{where}: broken CSV ({error})"))
            continue
        if fields is None:
            return
        if header is None:
            header = fields
        elif fields and len(fields) != len(header):
            message = f"{where}: {len(fields)} fields, but the header names {len(header)}"
            bad.add(BadRecordError(message))
        elif fields:
            yield where, dict(zip(header, fields, strict=True))


def _jsonl(path: Path, bad: BadRecords) -> Iterator[Row]:
    for number, record in json_lines(path, bad):
        yield from _object(record, f"{path}: line {number}", bad)


def _json(path: Path, bad: BadRecords) -> Iterator[Row]:
    strict = BadRecords()  # a JSON document with a broken line is broken as a whole
    text = "".join(line for _, line in numbered_lines(path, strict))
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; if each line is an object of its own, pass --format jsonl"
        raise RecipeError(
            f"{path}: line {error.lineno}: broken JSON ({error.msg})"
            f"{hint if error.msg == 'Extra data' else ''}"
        ) from error
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list)]
        if len(lists) != 1:
            raise RecipeError(f"{path}: expected a list of rows, or an object holding just one")
        document = lists[0]
    if not isinstance(document, list):
        raise RecipeError(f"{path}: expected a list of rows, found {type(document).__name__}")
    for number, record in enumerate(document, start=1):
        yield from _object(record, f"{path}: row {number}", bad)


def _object(record: Any, where: str, bad: BadRecords) -> Iterator[Row]:
    if isinstance(record, dict):
        yield where, record
    else:
        bad.add(BadRecordError(f"{where}: not an object with named columns"))
