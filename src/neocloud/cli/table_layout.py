"""Fit a table to a terminal: no number, name or state is cut, however narrow the terminal is.

These are tried in order, and the first that fits is taken:

1. The columns of ids are left out, if each row begins with a name.
2. Texts of several words are wrapped.
3. The columns that explain, such as WHAT, or repeat what another says, are left out.
4. Long names are folded, all in a column at the same width.
5. Each row becomes a list of names and values, and nothing is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GAP = 3
LONGEST_UNBROKEN = 40
"""Cells up to this long are not wrapped, because they are copied: names, states, addresses."""
SHORTEST_WRAPPED = 24
"""A column of texts is not made narrower than this."""
SHORTEST_FOLDED = 16
"""A column of names is not made narrower than this."""
SHORTEST_VALUE = 20
"""In a list of names and values, a value has its own lines where fewer characters would be left beside its
name."""
INDENT = 2
UNBOUNDED_WIDTH = 10_000
EXPLANATIONS = frozenset({"WHAT", "TITLE", "DESCRIPTION"})
"""Headers of columns whose texts are the same whatever the state of the cloud."""
WORDS_BY_STYLE = {
    "green": "READY RUNNING ACTIVE COMPLETED IDLE MIXED ALLOCATED pass running ok",
    "red": "ERROR FAILED DOWN TIMEOUT OUT_OF_MEMORY NODE_FAIL fail failed",
    "yellow": "CREATING UPDATING DELETING PENDING DRAIN DRAINED DRAINING CANCELLED"
    " not_run not_enforced stopped waiting",
}
STYLES = {word: style for style, words in WORDS_BY_STYLE.items() for word in words.split()}


@dataclass(frozen=True)
class View:
    """Rows of text for people. Without headers, a list of names and values."""

    rows: Sequence[Sequence[str]]
    headers: Sequence[str] = ()
    right: frozenset[str] = frozenset()
    """Headers of right-aligned columns, which hold numbers."""
    minor: frozenset[str] = frozenset()
    """Headers of further columns that may be left out: another column says the same."""

    def without(self, headers: Sequence[str]) -> "View":
        """Return the view without some of its columns."""
        kept = [at for at, header in enumerate(self.headers) if header not in headers]
        rows = [[row[at] for at in kept] for row in self.rows]
        return View(rows, [self.headers[at] for at in kept], self.right, self.minor)


@dataclass(frozen=True)
class Layout:
    """A table arranged for the width of a terminal, or for a pipe."""

    view: View
    """The view that is shown."""
    width: int
    columns: tuple[int, ...] = ()
    """Widths of the columns; () where each row is a list of names and values."""
    left_out: tuple[str, ...] = ()
    """Headers of the columns that are not shown."""

    @property
    def header(self) -> list[Text]:
        """The lines above the rows."""
        return self._row([Text(header, "bold") for header in self.view.headers]) if self.columns else []

    def blocks(self) -> Iterator[list[Text]]:
        """Iterate over the rows, each as its lines."""
        headers, rows = self.view.headers, self.view.rows
        if self.columns:
            yield from (self._row([styled(cell) for cell in row]) for row in rows)
        elif not headers:
            longest = max((cell_len(row[0]) for row in rows), default=0)
            yield from (self._pair(name, value, longest) for name, value in rows)
        else:
            longest = max(map(cell_len, headers))
            for number, row in enumerate(rows):
                pairs = (self._pair(*pair, longest) for pair in zip(headers, row, strict=True))
                yield [*([Text()] if number else []), *chain.from_iterable(pairs)]

    def note(self) -> str:
        """Return the sentence about columns that are left out; "" if none is."""
        explained = [header for header in self.left_out if not _is_id(header)]
        has_ids = len(explained) < len(self.left_out)
        names = [*(["Ids"] if has_ids else []), *explained]
        verb, them = ("do", "them") if has_ids or len(explained) > 1 else ("does", "it")
        how = f"or --output json shows {them}" if has_ids and not explained else f"shows {them}"
        if not names:
            return ""
        listed = f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
        return f"{listed} {verb} not fit here; a wider terminal {how}."

    def _row(self, cells: Sequence[Text]) -> list[Text]:
        wrapped = [_wrapped(cell, width) for cell, width in zip(cells, self.columns, strict=True)]
        return [self._line(parts) for parts in zip_longest(*wrapped, fillvalue=Text())]

    def _line(self, parts: Sequence[Text]) -> Text:
        line = Text()
        for header, part, width in zip(self.view.headers, parts, self.columns, strict=True):
            padding = " " * (width - part.cell_len)
            ordered = (padding, part) if header in self.view.right else (part, padding)
            line.append(" " * GAP if line else "").append(ordered[0]).append(ordered[1])
        line.rstrip()
        return line

    def _pair(self, name: str, value: str, longest: int) -> list[Text]:
        """Return the lines of a name and its value. `longest` is the width of the longest name."""
        label, text, start = Text().append(name, "bold"), styled(value), longest + GAP
        if self.width - start < min(SHORTEST_VALUE, text.cell_len):
            below = _wrapped(text, self.width - INDENT)
            return [*_wrapped(label, self.width), *(Text(" " * INDENT).append(line) for line in below)]
        label.append(" " * (start - label.cell_len))
        lines = zip_longest([label], _wrapped(text, self.width - start), fillvalue=Text(" " * start))
        return [before.copy().append(line) for before, line in lines]


def fit(view: View, width: int) -> Layout:
    """Return the layout of a table in a terminal of this width."""
    ids = _ids(view)
    explained = [header for header in view.headers[1:] if header in EXPLANATIONS | view.minor]
    tries = (
        ((), UNBOUNDED_WIDTH),
        (ids, UNBOUNDED_WIDTH),
        (ids, LONGEST_UNBROKEN),
        ((*ids, *explained), LONGEST_UNBROKEN),
        ((*ids, *explained), SHORTEST_FOLDED),
    )
    for left_out, longest in tries if view.headers else ():
        shown = view.without(left_out)
        columns = _columns(shown, width, longest)
        if columns:
            return Layout(shown, width, columns, tuple(left_out))
    return Layout(view, width)


def plain_lines(view: View) -> Iterator[str]:
    """Iterate over the lines of a table of any width, without styles, for a pipe."""
    rows = [view.headers, *view.rows] if view.headers else view.rows
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    is_right = [header in view.right for header in view.headers] or [False] * len(widths)
    for row in rows:
        cells = ((cell, " " * (width - cell_len(cell))) for cell, width in zip(row, widths, strict=True))
        ordered = (
            pad + cell if right else cell + pad for (cell, pad), right in zip(cells, is_right, strict=True)
        )
        yield (" " * GAP).join(ordered).rstrip()


def styled(cell: str) -> Text:
    """Return the text of a cell, coloured if it is the name of a state."""
    return Text(cell, next((STYLES[word] for word in cell.split("+") if word in STYLES), ""))


def _ids(view: View) -> list[str]:
    """Return the headers of the ids that may be left out: a name does for every command."""
    is_named = all(row[0] not in ("", "-") for row in view.rows)
    return [each for each in view.headers[1:] if _is_id(each)] if is_named else []


def _is_id(header: str) -> bool:
    return header == "ID" or header.endswith(" ID")


def _columns(view: View, width: int, longest: int) -> tuple[int, ...]:
    """Return the widths of the columns; () if they do not fit. Cells longer than `longest` may be broken:
    those of several words or, where that is `SHORTEST_FOLDED`, all but numbers.
    """
    headers, is_folded = view.headers, longest == SHORTEST_FOLDED
    shortest = SHORTEST_FOLDED if is_folded else SHORTEST_WRAPPED
    cells = [[row[at] for row in view.rows] for at in range(len(headers))]
    whole = [max(map(cell_len, [header, *column])) for header, column in zip(headers, cells, strict=True)]
    least = [
        max(cell_len(header), shortest)
        if size > longest and header not in view.right and (is_folded or _is_prose(column))
        else size
        for header, column, size in zip(headers, cells, whole, strict=True)
    ]
    free = width - sum(least) - GAP * (len(least) - 1)
    if free < 0:
        return ()
    wanting = sorted((size - small, at) for at, (size, small) in enumerate(zip(whole, least, strict=True)))
    for number, (wanted, at) in enumerate(wanting):
        given = min(wanted, free // (len(wanting) - number))
        least[at] += given
        free -= given
    return tuple(least)


def _is_prose(cells: Sequence[str]) -> bool:
    """Return whether the longest cells are texts of several words."""
    return all(" " in cell for cell in cells if cell_len(cell) > LONGEST_UNBROKEN)


def _wrapped(text: Text, width: int) -> list[Text]:
    """Return the lines of a text, which is wrapped between words, and within those that are too long."""
    if text.cell_len <= width:
        return [text]
    return list(text.wrap(Console(width=width), max(2, width), overflow="fold"))
