"""Links of the pages lead to files and headings that exist, and each decision that is cited has its page."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

DECISIONS = ROOT / "docs" / "rfd"
TEXTS = (".md", ".py", ".proto", ".yaml", ".json", ".toml", ".html", ".js", ".sh", "")
FOLDERS = ("docs", "src", "proto", "tests", "images", "recipes", "runs", "scripts", "bench", "monitoring")
GENERATED = ("requirements.lock", "docs/reference/sbom.cdx.json")
CITED = re.compile(r"(?:\bdocs/rfd/|\b(?:rfd|decision)s? )(\d{4})\b(?:-([a-z0-9-]+)\.md)?", re.IGNORECASE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!\w+:)([^)\s]+)\)")
LINES_OF_A_DECISION = 60
FIRST_OF_THEM = 31
"""Decisions from this number on keep to one page."""


def files() -> Iterator[Path]:
    """Yield the files that people wrote."""
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and not {".work", "__pycache__"} & {*path.parts}:
                yield path


FILES = [path for path in files() if str(path.relative_to(ROOT)) not in GENERATED]
PAGES = [file for file in FILES if file.suffix == ".md"]


@cache
def headings(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: Counter[str] = Counter()
    anchors = set()
    for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        anchors.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return frozenset(anchors)


def broken(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere, and why."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in headings(target):
            yield f"{link}: no such heading"


def test_links_lead_to_files_and_headings() -> None:
    faults = [f"{page.relative_to(ROOT)}: {fault}" for page in PAGES for fault in broken(page)]
    assert len(PAGES) > 100
    assert not faults, "\n".join(faults)


def test_each_cited_decision_has_its_page() -> None:
    pages = {page.name[:4]: page.stem[5:] for page in DECISIONS.glob("[0-9]*.md")}
    cited = [
        (file, *found)
        for file in FILES
        if file.suffix in TEXTS and not file.is_symlink()
        for found in CITED.findall(_text(file))
    ]
    assert len(cited) > 50
    missing = [
        f"{file.relative_to(ROOT)}: {number} {name}"
        for file, number, name in cited
        if number not in pages or (name and pages[number] != name)
    ]
    assert not missing, "\n".join(missing)


def test_decisions_have_numbers_of_their_own_and_are_in_the_index() -> None:
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    numbers = Counter(page.name[:4] for page in pages)
    assert max(numbers.values()) == 1
    index = (DECISIONS / "README.md").read_text()
    assert not [page.name for page in pages if f"({page.name})" not in index]
    long = [page.name for page in pages if _lines(page) > LINES_OF_A_DECISION]
    assert not [name for name in long if int(name[:4]) >= FIRST_OF_THEM]


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("## When to drain", "when-to-drain"),
        ("### `pin`, a rule", "pin-a-rule"),
    ],
)
def test_anchors_are_those_that_github_makes(title: str, anchor: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{title}\n\n{title}\n")
    assert headings(page) == {"page", anchor, f"{anchor}-1"}


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n[a](other.md), [b](#page), [c](#none), [d](https://x.example/y), `[e](none.md)`\n"
    )
    assert list(broken(page)) == ["other.md: no such file", "#none: no such heading"]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except UnicodeDecodeError:
        return ""


def _lines(page: Path) -> int:
    return len(page.read_text().splitlines())
