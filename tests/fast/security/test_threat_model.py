"""The page on security names tests that are there, and people find it."""

import ast
import re
from pathlib import Path

import pytest

from tests import ROOT

PAGE = ROOT / "docs" / "concepts" / "security.md"
TESTS = sorted({*re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())})
BORDERS = PAGE.read_text().partition("## Borders")[2].partition("## What remains")[0]
MOST_WORDS = 2200
"""Some three pages, tests' names counted."""


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_a_test_that_the_page_names_exists(file: str, name: str) -> None:
    found = ast.walk(ast.parse((ROOT / file).read_text()))
    assert name in {one.name for one in found if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_border_names_a_test() -> None:
    lines = BORDERS.splitlines()
    heads = {line for line, below in zip(lines, lines[1:], strict=False) if below.startswith("|---")}
    rows = [line for line in lines if line.startswith("| ") and line not in heads]
    assert len(rows) >= 12
    assert not [row for row in rows if "::test_" not in row]


def test_the_page_stays_short() -> None:
    assert len(PAGE.read_text().split()) < MOST_WORDS


@pytest.mark.parametrize("file", [PAGE, ROOT / "SECURITY.md"])
def test_links_lead_somewhere(file: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", file.read_text())
    assert links
    assert not [link for link in links if not (file.parent / link).exists()]


def test_the_readme_leads_to_both() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "(docs/concepts/security.md)" in readme and "(SECURITY.md)" in readme
