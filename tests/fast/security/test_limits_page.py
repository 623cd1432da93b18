"""The page of limits says what the code does: each row is compared with the constant or setting it names."""

import importlib
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests import ROOT

PAGE = ROOT / "docs" / "reference" / "limits.md"
HEAD = ["limit", "default", "constant", "what a caller sees"]
UNITS = {
    "": 1,
    "bytes": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "s": 1,
    "min": 60,
    "h": 3600,
    "days": 86400,
    "per s": 1,
}
DEFAULT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(.*)")
CONSTANT = re.compile(r"`(neocloud[\w.]*):(\w+(?:\.\w+)*)`")


@dataclass(frozen=True)
class Row:
    limit: str
    default: str
    constant: str
    seen: str


def rows() -> list[Row]:
    """Return the rows of all tables on the page."""
    lines = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    found = [line for line in cells if line != HEAD and not set("".join(line)) <= {"-"}]
    assert all(len(line) == len(HEAD) for line in found), "a row has another number of columns"
    return [Row(*line) for line in found]


def written(text: str) -> float:
    """The number that a default stands for: bytes, seconds or a count."""
    match = DEFAULT.fullmatch(text)
    assert match and match[2] in UNITS, f"{text!r} is no number with one of the units {', '.join(UNITS)}"
    return float(match[1]) * UNITS[match[2]]


def held(constant: str) -> Any:
    """The value of `module:NAME`, where NAME may be the attribute of a class, such as a setting's default."""
    match = CONSTANT.fullmatch(constant)
    assert match, f"{constant} is not written as `neocloud.module:NAME`"
    found: Any = importlib.import_module(match[1])
    for name in match[2].split("."):
        found = getattr(found, name)
    return found.total_seconds() if isinstance(found, timedelta) else found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.constant.strip("`"))
def test_the_default_of_a_limit_is_the_one_in_the_code(row: Row) -> None:
    assert row.limit and row.seen, "a row says what is limited and what a caller sees"
    assert held(row.constant) == written(row.default)


def test_the_page_has_its_tables() -> None:
    assert len(rows()) > 10
