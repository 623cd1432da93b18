"""Guides teach commands that exist: every `neo` line of the README and the guides, word by word (IAC-03)."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_help import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").rglob("*.md"))]
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> list[str]:
    blocks = "".join(_BLOCK.findall(page.read_text())).replace("\\\n", " ")
    parts = [part.strip() for line in blocks.splitlines() for part in line.split("&&")]
    return [part for part in parts if part.startswith("neo ")]


def test_a_guide_has_commands_to_look_at() -> None:
    assert sum(len(command_lines(page)) for page in PAGES) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_guides_exist(page: Path) -> None:
    wrong = [line for line in command_lines(page) if not exists(line)]
    assert not wrong, f"{page.name} teaches what is not there"


def exists(line: str) -> bool:
    words = shlex.split(re.split(r" [>|] ", line)[0], comments=True)
    words = words[: words.index("--")] if "--" in words else words
    command: Any = COMMANDS[("neo",)]
    depth = 1
    while hasattr(command, "commands") and depth < len(words):
        if words[depth] not in command.commands:
            return False
        command, depth = command.commands[words[depth]], depth + 1
    known = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    return {word for word in words[depth:] if word.startswith("-")} <= known
