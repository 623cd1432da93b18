"""Output of a tenant's program is text on a terminal, and never a command to it."""

import ast
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import neocloud.cli
from neocloud.cli import terminal
from neocloud.cli.output import Format, fields_table, say, show, table, warn

TITLE, CLEAR, UP, C1, REVERSED = "\x1b]0;owned\x07", "\x1b[2J", "\x1b[1A\x1b[2K", "\x9b2J", "\u202egpj.exe"
HOSTILE = f"log {TITLE}{CLEAR}{UP}{C1}{REVERSED}\x08\x00\x7f"
OWN_TEXTS = {"main.py"}
"""Prints the version and the help alone."""


class Screen(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def looked_at() -> Iterator[Screen]:
    """Both streams are a terminal; set here and not in a fixture, after which pytest sets its own."""
    screen = Screen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", screen)
        patch.setattr("sys.stderr", screen)
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERM", "dumb")
        yield screen


def is_harmless(shown: str) -> bool:
    return not any(sign in shown for sign in "\x1b\x07\x08\x00\x7f\x9b\u202e") and "log" in shown


def test_controls_become_text() -> None:
    assert terminal.visible(f"a{CLEAR}b") == "a\\x1b[2Jb"
    assert terminal.visible(C1) == "\\x9b2J" and terminal.visible(REVERSED) == "\\u202egpj.exe"


def test_colours_go_and_lines_stay() -> None:
    assert terminal.visible("\x1b[1;31mred\x1b[0m\tnext\n") == "red\tnext\n"
    assert terminal.visible("one\r\ntwo\r\r\n10%\r20%\n") == "one\ntwo\n10%\n20%\n"


def test_lines_of_a_log_are_harmless() -> None:
    with looked_at() as screen:
        terminal.echo(HOSTILE)
    assert is_harmless(screen.shown)


def test_output_of_a_job_is_harmless() -> None:
    with looked_at() as screen:
        terminal.write_bytes(HOSTILE.encode() + b"\xff")
    assert is_harmless(screen.shown)


@pytest.mark.parametrize("output", list(Format))
def test_names_are_harmless_in_every_format(output: Format) -> None:
    with looked_at() as screen:
        show(output, {"name": HOSTILE}, fields_table([("Name", HOSTILE)]))
        show(output, {"name": HOSTILE}, table(["NAME"], [[HOSTILE]]))
    assert is_harmless(screen.shown)


def test_messages_of_the_cloud_are_harmless() -> None:
    with looked_at() as screen:
        say(HOSTILE)
        warn(HOSTILE)
    assert is_harmless(screen.shown)


def test_what_is_piped_is_left_as_it_is(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    terminal.write_bytes(HOSTILE.encode() + b"\xff")
    terminal.echo(HOSTILE)
    assert capfdbinary.readouterr().out == HOSTILE.encode() + b"\xff" + HOSTILE.encode() + b"\n"


def test_no_command_prints_past_it() -> None:
    folder = Path(neocloud.cli.__file__).parent
    found = []
    for file in sorted(folder.rglob("*.py")):
        if file.name in OWN_TEXTS or file == Path(terminal.__file__):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                *("print", "typer.echo", "typer.secho", "click.echo", "click.secho"),
                *("sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"),
            }:
                found.append(f"{file.relative_to(folder)}:{node.lineno}")
    assert found == []
