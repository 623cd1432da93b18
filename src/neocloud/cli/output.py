"""Output of commands: tables for people, JSON and YAML for programs, and the question before a deletion.

Results go to stdout, everything else to stderr. Without a terminal there are no escape codes and lines are
not cut or wrapped, so that `grep` and `awk` see whole rows.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, TextIO

import typer
import yaml
from rich.console import Console
from rich.text import Text

from neocloud.cli.table_layout import UNBOUNDED_WIDTH, View, fit, plain_lines
from neocloud.cli.terminal import one_line, visible, write

JsonObject = dict[str, Any]
"""A decoded JSON object; its keys and their types are the API's."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    Format,
    typer.Option("--output", "-o", help="Format of the result: table for people; json or yaml for programs."),
]


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    minor: Sequence[str] = (),
) -> View:
    return View(
        [[_text(value) for value in row] for row in rows], headers, frozenset(right), frozenset(minor)
    )


def fields_table(pairs: Iterable[tuple[str, object]]) -> View:
    """Return the view of one item, a name and a value per line."""
    return View([[one_line(name), _text(value)] for name, value in pairs])


def size_text(number: int) -> str:
    """ "15.3 GiB", "12 KiB", "6 B"; "" for nothing."""
    for unit, each in (("GiB", 1024**3), ("MiB", 1024**2)):
        if number >= each:
            return f"{number / each:.1f} {unit}"
    if number >= 1024:
        return f"{number / 1024:.0f} KiB"
    return f"{number} B" if number else ""


def counted(number: int, noun: str) -> str:
    """ "1 worker", "2 workers"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def console(file: TextIO | None = None) -> Console:
    """Return a console that does not cut lines unless it writes to a terminal."""
    target = sys.stdout if file is None else file
    is_terminal = target.isatty()
    width = None if is_terminal else UNBOUNDED_WIDTH
    return Console(file=target, width=width, highlight=False, soft_wrap=not is_terminal)


def say(text: str = "") -> None:
    """Print a message for the user to stderr."""
    write(f"{text}\n", sys.stderr)


def warn(text: str) -> None:
    console(sys.stderr).print(Text(f"Warning: {visible(text)}", style="yellow"))


def warn_of_error(text: str) -> None:
    """Print an error that does not end the command."""
    console(sys.stderr).print(Text(f"neo: {visible(text)}", style="red"))


def show(output: Format, data: object, view: View, *, empty: str = "") -> None:
    """Print `data` in the chosen format; `view` is the table, `empty` the message when it has no rows."""
    if output is Format.JSON:
        write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    elif output is Format.YAML:
        write(_yaml(data))
    elif view.rows:
        print_view(view)
    else:
        say(empty)


def _yaml(data: object) -> str:
    """Return the data as YAML, with 64-bit integers as numbers."""
    from neocloud.core import contract  # noqa: PLC0415 - slow to load, and only this needs it

    class Dumper(yaml.SafeDumper):
        """Knows the contract's integers."""

    def represent(dumper: yaml.SafeDumper, value: contract.Int64) -> yaml.Node:
        return yaml.ScalarNode("tag:yaml.org,2002:int", str(value))

    Dumper.add_representer(contract.Int64, represent)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def print_view(view: View) -> None:
    screen = console()
    if not screen.is_terminal:
        write("".join(f"{line}\n" for line in plain_lines(view)))
        return
    layout = fit(view, screen.width)
    lines = [*layout.header, *chain.from_iterable(layout.blocks())]
    screen.print(Text("\n").join(lines), soft_wrap=True)
    if layout.left_out:
        screen.print(Text(layout.note(), style="dim"))


def _text(value: object) -> str:
    """Return the text of a cell, which is one line whatever it holds: what a tenant wrote forges no row."""
    return "-" if value is None or value == "" else one_line(str(value))


DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check the request and show what it would cost; create nothing.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking, as scripts do.")]


def confirm(what: str, *, yes: bool, is_new: bool = False) -> None:
    """Ask before `what` is deleted, unless --yes was given. Raises Abort for no, and where nobody can answer.

    `is_new`: the command did not ask before, so scripts without --yes keep working in this release.
    """
    if yes:
        return
    if is_new and not sys.stdin.isatty():
        say(
            f"Deleting {what} without asking, because standard input is not a terminal. Add --yes:"
            " the next release deletes nothing without it."
        )
        return
    try:
        is_agreed = typer.confirm(f"Delete {what}?", err=True)
    except typer.Abort:  # Ctrl-C or the end of the input, which end no line
        say()
        raise
    if not is_agreed:
        raise typer.Abort
