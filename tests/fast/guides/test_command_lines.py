"""Every `neo` command that a page, a message, a help text or a script names exists (IAC-03)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fast.guides.blocks import GUIDES, HOWTOS, ROOT, blocks_of, inline_code
from tests.fast.guides.command_line import fault_of, neo_lines

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *GUIDES,
    *HOWTOS,
    *sorted((ROOT / "docs").glob("*.md")),
    *(
        page
        for folder in ("concepts", "reference", "rfd")
        for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    ),
    *(
        page
        for folder in ("src", "recipes", "images", "bench")
        for page in sorted((ROOT / folder).rglob("*.md"))
    ),
]
SCRIPTS = sorted((ROOT / "runs").glob("*.sh"))
SOURCES = [
    file
    for folder in ("src", "recipes", "images", "scripts", "bench")
    for file in sorted((ROOT / folder).rglob("*"))
    if file.suffix in (".py", ".js", ".html", ".yaml", ".proto") and ".work" not in file.parts
]
_QUOTED = re.compile(r"`(neo [^`]+)`")
_YAML_STEP = re.compile(r"^\s*- run: (.*)$", re.MULTILINE)


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_of_a_page_exist(page: Path) -> None:
    faults = []
    for block in blocks_of(page):
        scripts = {"sh": [block.text], "yaml": _YAML_STEP.findall(block.text)}.get(block.language, [])
        lines = [line for script in scripts for line in neo_lines(script)]
        faults += [f"{block.place}: {fault}" for line in lines if (fault := fault_of(line, is_whole=True))]
    faults += _faults_in_spans(text for text in inline_code(page.read_text()) if text.startswith("neo "))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("script", SCRIPTS, ids=_name)
def test_commands_of_a_script_exist(script: Path) -> None:
    lines = list(neo_lines(script.read_text()))
    assert lines
    assert not [fault for line in lines if (fault := fault_of(line, is_whole=True))]


def test_commands_that_messages_and_help_texts_name_exist() -> None:
    spans = {(file, span) for file in SOURCES for text in _texts(file) for span in _QUOTED.findall(text)}
    assert len(spans) > 100
    faults = [f"{_name(file)}: {fault}" for file, span in sorted(spans) for fault in _faults_in_spans([span])]
    assert not faults, "\n".join(faults)


def _faults_in_spans(spans: Iterator[str] | list[str]) -> list[str]:
    """Return what is wrong with commands in running text, which need not be whole."""
    lines = [line for span in spans for line in neo_lines(" ".join(span.split()))]
    return [fault for line in lines if (fault := fault_of(line, is_whole=False))]


def _texts(file: Path) -> Iterator[str]:
    """Yield the texts of a file. Of Python: strings, with … for what an f-string fills in, and comments."""
    text = file.read_text()
    if file.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            yield "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    comments = (line.strip() for line in text.splitlines() if line.strip().startswith("#"))
    yield " ".join(comment.lstrip("# ") for comment in comments)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("neo compute instance create web --public-ip", ""),
        ("neo --profile alice whoami", ""),
        ("neo compute instances list", "there is no command 'instances'"),
        ("neo compute instance create web --public", "No such option"),
        ("neo compute instance get", "TARGET is missing"),
        ("neo compute instance stop web db", "is too much"),
        ("neo compute disk create data --size-gibibytes ten --type NETWORK_SSD", "--size-gibibytes"),
        ("neo slurm", "is a group"),
    ],
)
def test_what_does_not_parse_is_found(line: str, fault: str) -> None:
    (words,) = neo_lines(line)
    found = fault_of(words, is_whole=True)
    assert fault in found if fault else not found


def test_commands_are_found_in_a_script() -> None:
    script = """
        export KEY=$(neo session token) && neo up --emulator > log 2>&1
        for n in 1 2; do neo ps | head -"$n"; done
        prefix="$(neo status -o json | jq .home)/log"
        cat > job <<'END'
        neo is only a word here
        END
        neo compute instance update web \\
            --labels '{"a": "b"}'     # a comment
        echo 'neo quoted'
    """
    found = [" ".join(words) for words in neo_lines(script.replace("        ", ""))]
    assert found == [
        "neo session token",
        "neo up --emulator",
        "neo ps",
        "neo status -o json",
        'neo compute instance update web --labels {"a": "b"}',
    ]
