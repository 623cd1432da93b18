"""What commands show: tables for people, JSON and YAML for programs, and the question before a deletion.

Results go to stdout, everything else to stderr. Without a terminal there are no escape codes and lines are
not cut or wrapped, so that `grep` and `awk` see whole rows.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neocloud.cli.terminal import visible, write

JsonObject = dict[str, Any]
"""A decoded JSON object; its keys and their types are the API's."""
UNBOUNDED_WIDTH = 10_000
GAP = 3
WORDS_BY_STYLE = {
    "green": "READY RUNNING ACTIVE COMPLETED IDLE MIXED ALLOCATED pass running ok",
    "red": "ERROR FAILED DOWN TIMEOUT OUT_OF_MEMORY NODE_FAIL fail failed",
    "yellow": "CREATING UPDATING DELETING PENDING DRAIN DRAINED DRAINING CANCELLED"
    " not_run not_enforced stopped waiting",
}
STYLES = {word: style for style, words in WORDS_BY_STYLE.items() for word in words.split()}
LONGEST_UNBROKEN = 40
"""Columns with cells up to this long are not wrapped, because they are copied: names, states, addresses."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    Format,
    typer.Option("--output", "-o", help="Format of the result: table for people; json or yaml for programs."),
]


@dataclass(frozen=True)
class View:
    """Rows of text for people. Without headers, a list of names and values."""

    rows: Sequence[Sequence[str]]
    headers: Sequence[str] = ()
    right: frozenset[str] = frozenset()
    """Headers of right-aligned columns, which hold numbers."""


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> View:
    return View([[_text(value) for value in row] for row in rows], headers, frozenset(right))


def fields_table(pairs: Iterable[tuple[str, object]]) -> View:
    """Return the view of one item, a name and a value per line."""
    return View([[name, _text(value)] for name, value in pairs])


def size_text(number: int) -> str:
    """ "15.3 GiB"; "" for nothing."""
    for unit, each in (("GiB", 1024**3), ("MiB", 1024**2)):
        if number >= each:
            return f"{number / each:.1f} {unit}"
    return f"{number / 1024:.0f} KiB" if number else ""


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
    console(sys.stderr).print(Text(f"Error: {visible(text)}", style="red"))


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
        return dumper.represent_scalar("tag:yaml.org,2002:int", value)

    Dumper.add_representer(contract.Int64, represent)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def print_view(view: View) -> None:
    screen = console()
    if screen.is_terminal:
        fitted = without_ids(view, screen.width)
        screen.print(styled(fitted))
        if fitted is not view:
            screen.print(
                Text("Ids do not fit here; a wider terminal or --output json shows them.", style="dim")
            )
    else:
        write("".join(f"{line}\n" for line in _lines(view)))


def without_ids(view: View, width: int) -> View:
    """Leave the column ID out where the table is wider than the terminal: a name does for every command."""
    headers = list(view.headers)
    if not {"NAME", "ID"} <= set(headers) or any(row[headers.index("NAME")] == "-" for row in view.rows):
        return view
    columns = zip(headers, *view.rows, strict=True)
    if sum(max(map(len, column)) + GAP for column in columns) - GAP <= width:
        return view
    at = headers.index("ID")
    rows = [[cell for number, cell in enumerate(row) if number != at] for row in view.rows]
    return View(rows, [header for header in headers if header != "ID"], view.right)


def _text(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _lines(view: View) -> Iterable[str]:
    """Return plain text with aligned columns and no trailing blanks."""
    rows = [view.headers, *view.rows] if view.headers else view.rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_right = [header in view.right for header in view.headers] or [False] * len(widths)
    for row in rows:
        cells = zip(row, widths, is_right, strict=True)
        padded = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells)
        yield (" " * GAP).join(padded).rstrip()


def styled(view: View, *, one_line: bool = False) -> Table:
    """Return a table for a terminal, with the names of states coloured.

    With `one_line`, every row takes one line: the widest columns are shortened to fit.
    """
    result = Table(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_header=bool(view.headers)
    )
    for number, header in enumerate(view.headers):
        longest = max((len(row[number]) for row in view.rows), default=0)
        is_whole = longest <= LONGEST_UNBROKEN if header != "ID" else True
        justify = "right" if header in view.right else "left"
        result.add_column(
            _cell(header, one_line=one_line),
            justify=justify,
            overflow="ellipsis" if one_line else "fold",
            no_wrap=is_whole and not one_line,
        )
    if not view.headers:
        result.add_column(style="bold", no_wrap=True)
        result.add_column(overflow="fold")
    for row in view.rows:
        result.add_row(*(_cell(text, one_line=one_line) for text in row))
    return result


def _cell(text: str, *, one_line: bool) -> Text:
    """Return a cell, coloured if it is the name of a state."""
    style = next((STYLES[word] for word in text.split("+") if word in STYLES), "")
    return Text(visible(text.replace("\n", " ") if one_line else text), style, no_wrap=one_line or None)


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking, as scripts do.")]


def confirm(what: str, *, yes: bool, is_new: bool = False) -> None:
    """Ask before `what` is deleted, unless --yes was given. Raises Abort for no, and where nobody can answer.

    `is_new`: the command did not ask before, so scripts without --yes go on working in this release.
    """
    if yes:
        return
    if is_new and not sys.stdin.isatty():
        say(
            f"Deleting {what} without asking, because standard input is not a terminal. Add --yes:"
            " the next release deletes nothing without it."
        )
        return
    if not typer.confirm(f"Delete {what}?", err=True):
        raise typer.Abort
