"""Read CSV as spreadsheets and databases write it: separated by commas, semicolons, tabs or bars.

The separator is the one that splits the header. Where several do, it is the one with which every record of
the file has as many fields as the header; a file that this leaves open is refused. A quote inside a quoted
field is written twice.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from chat_messages import BadRecordError
from recipe_errors import RecipeError
from text_files import not_text, text_lines

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
LONGEST_FIELD = 2**31 - 1
_SEPARATOR_LINE = re.compile(
    r'"?sep=([,;\t|])"?\s*$', re.IGNORECASE
)  # spreadsheets write it above the header

Record = tuple[int, list[str], BadRecordError | None]
"""The line where it begins, its fields, and what is wrong with it."""


def csv_records(path: Path) -> Iterator[Record]:
    """Yield the header, then the records. Raises RecipeError where the separator cannot be determined."""
    csv.field_size_limit(LONGEST_FIELD)  # transcripts are longer than the limit of Python
    separator, skipped = _separator(path)
    records = _records(path, separator, skipped)
    first = next(records, None)
    if first is None:
        return
    line, header, error = first
    if error is not None:
        raise RecipeError(str(error))
    header = [name.strip() or f"column {number}" for number, name in enumerate(header, start=1)]
    if twice := [name for name in dict.fromkeys(header) if header.count(name) > 1]:
        raise RecipeError(f"{path}: line {line}: the header names {twice[0]!r} twice; rename one")
    yield line, header, None
    for line, fields, error in records:
        if error is None and len(fields) != len(header):
            error = BadRecordError(
                f"{path}: line {line}: {len(fields)} fields, but the header names {len(header)},"
                f" separated by {SEPARATORS[separator]}s"
            )
        yield line, fields, error


def _separator(path: Path) -> tuple[str, int]:
    """Return the separator, and how many lines are above the header."""
    first = next(iter(text_lines(path, "")), "")
    if named := _SEPARATOR_LINE.match(first):
        return named[1], 1
    splits = [each for each in SEPARATORS if len(next(_records(path, each, 0), (0, [], None))[1]) > 1]
    if len(splits) < 2:
        return (splits or [","])[0], 0
    fitting = [each for each in splits if _fits(path, each)]
    if len(fitting) != 1:
        names = " and ".join(SEPARATORS[each] for each in splits)
        which = "more than one of them fits" if fitting else "none of them fits"
        raise RecipeError(
            f"{path}: {names} are in the header, and {which} the rows; quote the fields, or save with one"
        )
    return fitting[0], 0


def _fits(path: Path, separator: str) -> bool:
    """Return whether all records have as many fields as the header."""
    counts = {len(fields) if error is None else 0 for _, fields, error in _records(path, separator, 0)}
    return len(counts) == 1


def _records(path: Path, separator: str, skipped: int) -> Iterator[Record]:
    """Yield the records that are not empty."""
    lines = itertools.islice(text_lines(path, ""), skipped, None)
    reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=True)
    while True:
        line = skipped + reader.line_num + 1  # a quoted field may run over many lines
        fields: list[str] = []
        error = None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as broken:
            error = BadRecordError(f"{path}: line {line}: broken CSV ({_said(broken)})")
        wrong = next((wrong for field in fields if (wrong := not_text(field))), "")
        if wrong:
            error = BadRecordError(f"{path}: line {line}: {wrong}")
        if error or any(field.strip() for field in fields):
            yield line, fields, error


def _said(error: csv.Error) -> str:
    """Return what is broken in words for users."""
    text = str(error)
    if "unexpected end of data" in text:
        return "a quoted field begins and does not end"
    if "expected after" in text:
        return "text after the end of a quoted field; a quote inside one is written twice"
    return text
