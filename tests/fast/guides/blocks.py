"""Fenced code blocks and inline code of the documentation's Markdown pages."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tests import ROOT

GUIDES = sorted((ROOT / "docs" / "guides").rglob("*.md"))
HOWTOS = sorted((ROOT / "docs" / "howto").rglob("*.md"))


@dataclass(frozen=True)
class Block:
    """A fenced code block of a page."""

    page: Path
    line: int
    """Line of its opening fence, counted from 1."""
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page in order. A block without a language is a block of shell commands."""
    return [
        Block(page, token.map[0] + 1 if token.map else 0, token.info.strip() or "sh", token.content)
        for token in MarkdownIt().parse(page.read_text())
        if token.type == "fence"
    ]


def inline_code(text: str) -> Iterator[str]:
    """Yield the spans of inline code in a Markdown text, tables included."""
    for token in MarkdownIt().enable("table").parse(text):
        for child in token.children or ():
            if child.type == "code_inline":
                yield child.content
