"""docs/concepts/request.md names files that exist, in the order in which they import each other."""

import ast
import re
from pathlib import Path

import pytest

from tests import ROOT

SOURCE = ROOT / "src"
PAGE = (ROOT / "docs" / "concepts" / "request.md").read_text()
LISTS = [
    re.findall(r"^\d+\. `([\w/]+\.py)`", part, re.MULTILINE)
    for part in re.split(r"^(?!\d+\. |   )\S.*$", PAGE, flags=re.MULTILINE)
]
WALKS = [walk for walk in LISTS if walk]


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, with those that it imports names of, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def module(name: str) -> str:
    return f"neocloud.{name.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"


def test_the_page_has_its_walks() -> None:
    assert len(WALKS) == 8 and all(len(walk) > 3 for walk in WALKS)


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk[0])
def test_each_file_is_imported_by_one_before_it(walk: list[str]) -> None:
    seen: set[str] = set()
    for place, name in enumerate(walk):
        assert place == 0 or module(name) in seen, f"{name} is imported by none of {walk[:place]}"
        seen |= imported(SOURCE / "neocloud" / name)
