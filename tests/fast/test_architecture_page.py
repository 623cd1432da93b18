"""docs/concepts/architecture.md has a paragraph for each package, and the files that it names exist."""

import re
from pathlib import Path

from tests import ROOT

SOURCE = ROOT / "src" / "neocloud"
PAGE = (ROOT / "docs" / "concepts" / "architecture.md").read_text()
PARAGRAPHS = dict(re.findall(r"^### `(\w+)`\n((?:.+\n)+)", PAGE, re.MULTILINE))
ROOMS_OF = ("fleet", "services")
"""Packages whose paragraphs name each package inside them."""
WORDS_OF_A_PARAGRAPH = 25


def packages(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if any(path.glob("*.py"))}


def test_each_package_has_its_paragraph() -> None:
    assert PARAGRAPHS.keys() == packages(SOURCE)
    short = [name for name, text in PARAGRAPHS.items() if len(text.split()) < WORDS_OF_A_PARAGRAPH]
    assert not short


def test_paragraphs_of_large_packages_name_their_rooms() -> None:
    for name in ROOMS_OF:
        missing = {room for room in packages(SOURCE / name) if f"`{room}`" not in PARAGRAPHS[name]}
        assert not missing, f"The paragraph of {name} does not name {missing}."


def test_files_and_folders_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(\w+/[\w/]+(?:\.py)?)`", PAGE))
    missing = [name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()]
    assert named and not missing
