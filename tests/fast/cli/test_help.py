"""Help teaches: every command says what it does and shows an example that is a real command line."""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer

from neocloud.cli.lazy import LazyGroup
from neocloud.cli.main import NOUNS, NeoGroup, app
from neocloud.cli.output import confirm


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, LazyGroup):
        for name in command.entries:
            command.load(name)
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*path, name))


@cache
def commands() -> dict[tuple[str, ...], Any]:
    """Return all commands by path: building them takes seconds, so no process does at import."""
    return dict(walk(typer.main.get_command(app), ("neo",)))


def examples_of(command: Any) -> list[list[str]]:
    lines = [line.strip() for line in command.help.splitlines() if line.startswith("  neo ")]
    return [shlex.split(line.split(" > ")[0].split(" >> ")[0], comments=True) for line in lines]


def test_every_command_has_help_with_an_example_of_itself() -> None:
    without = [path for path, command in commands().items() if not _shows_itself(path, command)]
    assert without == []


def _shows_itself(path: tuple[str, ...], command: Any) -> bool:
    is_shown = any(
        tuple(example[: len(path)]) == path or example[:2] == ["neo", "--profile"]
        for example in examples_of(command)
    )
    return is_shown and bool(command.help.splitlines()[0].strip())


def test_examples_in_help_are_command_lines_that_exist() -> None:
    examples = [(path, example) for path, command in commands().items() for example in examples_of(command)]
    assert len(examples) > 400
    assert [(path, example) for path, example in examples if not _exists(example)] == []


def _exists(example: list[str]) -> bool:
    words = [word for word in example if not word.startswith("-")]
    if "--profile" in example:
        words.remove(example[example.index("--profile") + 1])
    command, depth = commands()[("neo",)], 1
    while hasattr(command, "commands") and depth < len(words):
        if words[depth] not in command.commands:
            return False
        command = command.commands[words[depth]]
        depth += 1
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    before_arguments_of_others = example[: example.index("--")] if "--" in example else example
    options = {word for word in before_arguments_of_others[depth:] if word.startswith("--")}
    return options <= known | {"--help", "--profile"}


def test_no_name_is_cut_in_help_at_80_columns(neo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FI-39: `--registry-crede…` stood there three times."""
    monkeypatch.setenv("COLUMNS", "80")
    longest = sorted(
        commands(), key=lambda path: max((len(each.opts[0]) for each in commands()[path].params), default=0)
    )
    for path in longest[-40:]:
        ran = neo(*path[1:], "--help")
        assert ran.code == 0 and not re.search(r"--[\w-]*…", ran.out), ran.out


def test_the_texts_of_the_lazy_table_are_those_of_the_commands() -> None:
    for name, entry in NeoGroup.entries.items():
        first_paragraph = commands()[("neo", name)].help.split("\n\n")[0]
        assert first_paragraph.split(". ")[0].rstrip(".").startswith(entry.help.rstrip(".")[:20])


def test_help_of_neo_imports_nothing_that_a_command_needs() -> None:
    """Start-up stays quick because grpc, the contract and HTTP are not loaded to print help."""
    heavy = "{'grpc', 'neocloud.core.contract', 'httpx', 'yaml', 'jwt'}"
    script = (
        "import sys; from neocloud.cli.main import run; run(['--help']);"
        f"sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_a_wrong_command_suggests_the_right_one(neo: Any) -> None:
    ran = neo("slrum")
    assert ran.code == 2
    assert ran.out == ""
    assert "Did you mean 'slurm'?" in ran.err
    assert ran.err.startswith("neo: ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("cluster list", "slurm cluster list"),
        ("bucket create x", "storage bucket create"),
        ("endpoint", "ai endpoint"),
    ],
)
def test_a_noun_without_its_product_names_the_whole_command(neo: Any, words: str, meant: str) -> None:
    """FI-48: `neo cluster list` was answered with "Did you mean 'user'?"."""
    ran = neo(*words.split())
    assert ran.code == 2 and f"Did you mean 'neo {meant}'?" in ran.err


def test_nouns_that_are_named_alone_are_no_commands_and_exist() -> None:
    for noun, product in NOUNS.items():
        assert ("neo", noun) not in commands() and ("neo", product, noun) in commands()


def test_the_question_ends_its_line_when_nobody_answers(neo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = io.StringIO()
    monkeypatch.setattr("sys.stderr", said)
    with pytest.raises(typer.Abort):
        confirm("bucket n-data", yes=False)
    assert said.getvalue().endswith("\n")


def test_a_wrong_option_is_misuse_and_names_the_help(neo: Any) -> None:
    ran = neo("slurm", "cluster", "list", "--nonsense")
    assert ran.code == 2
    assert "See `neo slurm cluster list --help`." in ran.err


def test_completion_is_offered_for_bash(neo: Any) -> None:
    environment = {
        "_NEO_COMPLETE": "complete_bash",
        "COMP_WORDS": "neo sl",
        "COMP_CWORD": "1",
        "PATH": "/usr/bin:/bin",
    }
    ran = subprocess.run(
        [sys.executable, "-c", "from neocloud.cli.main import main; main()"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "slurm" in ran.stdout.split()


def test_every_option_says_what_it_is_for() -> None:
    """FI-39: 21 of 31 options of `neo ai endpoint create` had no description."""
    options = [
        (path, option)
        for path, command in commands().items()
        for option in command.params
        if not getattr(option, "hidden", False)
    ]
    assert len(options) > 1_000
    assert [
        (path, option.opts[0])
        for path, option in options
        if not (getattr(option, "help", None) or "").strip()
    ] == []
