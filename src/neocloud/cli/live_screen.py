"""A screen of tables that fits the terminal and is drawn again and again until Ctrl-C."""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain

from rich.console import Console, Group, RenderableType
from rich.text import Text

from neocloud.cli.output import JsonObject, print_view, say
from neocloud.cli.table_layout import View, fit
from neocloud.cli.terminal import echo, one_line, visible
from neocloud.client.errors import ClientError

LONGEST_INTERVAL = 3600
PASSING = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"})
"""Codes of errors that may be over at the next refresh."""
_LINES_AROUND = 2
"""Lines around a table: the empty line before it, and its header. The end of the screen takes as many."""
_SHARE_OF_NOTES = 4
"""Notes take at most this part of the screen's height."""


def repeat(
    read: Callable[[], JsonObject], draw: Callable[[JsonObject], None], wait: Callable[[], None]
) -> None:
    """Read and draw again and again until Ctrl-C. An error that may pass does not end it."""
    document = None
    try:
        while True:
            try:
                document = read()
            except ClientError as error:
                if document is None or error.code not in PASSING:
                    raise
                document = {**document, "notes": [str(error)]}
            draw(document)
            wait()
    except KeyboardInterrupt:
        return


def print_once(heading: Sequence[str], notes: Sequence[str], tables: Sequence[View]) -> None:
    """Print a screen as it is, however long."""
    for line in heading:
        echo(one_line(line))
    for view in tables:
        echo()
        print_view(view)
    for note in notes:
        say(note)


def drawn(
    heading: Sequence[str], notes: Sequence[str], tables: Sequence[View], screen: Console
) -> RenderableType:
    """Return what fits on the screen: the notes below the heading, then the share of each table."""
    above, below = (
        [line for text in texts for line in Text(visible(text), style).wrap(screen, screen.width)]
        for texts, style in ((heading, ""), (notes, "yellow"))
    )
    shown = max(1, screen.height // _SHARE_OF_NOTES)
    parts: list[RenderableType] = [*above, *below[:shown]]
    free = screen.height - len(parts) - _LINES_AROUND * (len(tables) + 1)
    layouts = [fit(view, screen.width) for view in tables]
    blocks = [list(layout.blocks()) for layout in layouts]
    sizes = [sum(map(len, rows)) for rows in blocks]
    for layout, rows, size, lines in zip(layouts, blocks, sizes, shares(sizes, free), strict=True):
        fitting = len(rows) if size <= lines else _fitting(rows, lines - 1)
        parts += [Text(), *layout.header, *chain.from_iterable(rows[:fitting])]
        parts += [Text(f"... {len(rows) - fitting} more", style="dim")] if fitting < len(rows) else []
    return Group(*parts, Text("\nCtrl-C ends it.", style="dim"))


def _fitting(rows: Sequence[Sequence[Text]], lines: int) -> int:
    """Return how many of the rows fit in so many lines."""
    ends = accumulate(map(len, rows))
    return sum(end <= lines for end in ends)


def shares(wanted: Sequence[int], lines: int) -> list[int]:
    """Divide the lines evenly among tables that want so many; short ones leave lines to the others."""
    found = dict.fromkeys(range(len(wanted)), 0)
    for done, index in enumerate(sorted(found, key=wanted.__getitem__)):
        found[index] = max(1, min(wanted[index], lines // (len(wanted) - done)))
        lines -= found[index]
    return list(found.values())
