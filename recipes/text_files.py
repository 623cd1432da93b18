"""Read text files in UTF-8, UTF-16 and UTF-32, and parse JSON strictly.

The encoding follows from the byte order mark or from the zeros in the first bytes. An encoding of one byte a
character cannot be told from another, so text that is not Unicode is an error that names its line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_errors import RecipeError


def text_lines(path: Path, newline: str = "\n") -> Iterator[str]:
    """Yield the lines; bytes that are not UTF-8 become lone surrogates, which `not_text` finds.

    Lines end at `newline`; "" stands for all three line ends of text files.
    """
    with path.open("rb") as file:
        encoding = json.detect_encoding(file.read(4))
    errors = "surrogateescape" if encoding.startswith("utf-8") else "strict"
    number = 0
    with path.open(encoding=encoding, errors=errors, newline=newline) as file:
        try:
            for number, line in enumerate(file, start=1):
                yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeError as error:
            raise RecipeError(
                f"{path}: after line {number}: not {encoding.upper()}, which the beginning of the file is"
                f" ({error})"
            ) from error


def not_text(text: str) -> str:
    """Return what is wrong with text of a file, "" for nothing."""
    if "\0" in text:
        return "holds a zero byte; convert the file with `iconv -f UTF-16LE -t UTF-8` if it is UTF-16"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        position = len(text[: error.start].encode("utf-8", "surrogateescape")) + 1
        return (
            f"not UTF-8 (byte 0x{ord(text[error.start]) & 0xFF:02x} at position {position}); save it as"
            f" UTF-8, with `iconv -f WINDOWS-1252 -t UTF-8` if it is of Windows or Latin-1"
        )
    return ""


@dataclass(frozen=True)
class Broken:
    """A value that JSON does not allow, found in a document."""

    reason: str


def parse_json(text: str, broken: list[Broken] | None = None) -> Any:
    """Return the value. Raises ValueError that says what is broken and where.

    Also refused: `NaN` and `Infinity`, which JSON has not, and a name twice in one object, of which the first
    value would be lost. With `broken`, these are collected in it and put where they were found.
    """

    def refuse(reason: str) -> Broken:
        if broken is None:
            raise ValueError(reason)
        broken.append(Broken(reason))
        return broken[-1]

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Broken:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        return refuse(f"the name {twice!r:.80} occurs twice in one object")

    def constant(name: str) -> Broken:
        return refuse(f"{name} is no JSON; write null where there is no value")

    try:
        return json.loads(text, parse_constant=constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError:
        raise ValueError("nested too deeply") from None


def find_broken(value: Any) -> Broken | None:
    """Return the first broken value inside a value."""
    values = [value]
    while values:
        each = values.pop()
        if isinstance(each, Broken):
            return each
        if isinstance(each, dict | list):
            values += each.values() if isinstance(each, dict) else each
    return None
