"""A table loses no number, name or state in a terminal of any width, whatever its cells hold."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, set_cell_size

from neocloud.cli.output import table
from neocloud.cli.table_layout import GAP, Layout, View, fit, plain_lines

ANY_TEXT = st.one_of(
    st.text(max_size=90),
    st.text("ab-_./:0123456789", max_size=90),
    st.sampled_from(
        ["RUNNING", "10000", "128 GiB", "日本語の名前", "a\nREADY", "\x1b[2J", "", "e\u0301", "👩‍💻"]
    ),
    st.lists(st.text("abcdefgh", min_size=1, max_size=12), max_size=20).map(" ".join),
)
HEADERS = ["NAME", "KIND", "STATE", "COUNT", "LIMIT", "WHY", "WHAT", "SUBNET ID", "ID"]


def lines_of(layout: Layout) -> list[str]:
    return [line.plain for line in [*layout.header, *(line for block in layout.blocks() for line in block)]]


def part(line: str, start: int, width: int) -> str:
    """Return the characters of a line in some of the cells of a terminal."""
    before = set_cell_size(line, start).rstrip("\0")
    return set_cell_size(line[len(before) :], width).rstrip()


def squeezed(text: str) -> str:
    return "".join(text.split())


def shown_cells(layout: Layout) -> list[list[str]]:
    """Return the cells as a reader finds them on the screen, without blanks."""
    found = []
    for block in layout.blocks():
        texts = [line.plain for line in block]
        starts = [sum(layout.columns[:at]) + GAP * at for at in range(len(layout.columns))]
        found.append(
            [
                squeezed("".join(part(text, start, width) for text in texts))
                for start, width in zip(starts, layout.columns, strict=True)
            ]
        )
    return found


@given(
    rows=st.lists(st.lists(ANY_TEXT, min_size=len(HEADERS), max_size=len(HEADERS)), min_size=1, max_size=6),
    chosen=st.sets(st.sampled_from(range(len(HEADERS))), min_size=1),
    width=st.integers(8, 220),
)
def test_every_cell_is_whole_or_its_column_is_named(
    rows: list[list[str]], chosen: set[int], width: int
) -> None:
    headers = [HEADERS[at] for at in sorted(chosen)]
    view = table(headers, [[row[at] for at in sorted(chosen)] for row in rows], right=["COUNT", "LIMIT"])
    layout = fit(view, width)
    assert all(cell_len(line) <= width for line in lines_of(layout))
    kept = [header for header in headers if header not in layout.left_out]
    assert list(layout.view.headers) == kept
    assert all(header in layout.note() or header.endswith("ID") for header in layout.left_out)
    if layout.columns:
        assert shown_cells(layout) == [[squeezed(cell) for cell in row] for row in layout.view.rows]
    else:
        assert not layout.left_out
        text = squeezed("".join(lines_of(layout)))
        assert text == squeezed(
            "".join(a + b for row in view.rows for a, b in zip(headers, row, strict=True))
        )


@given(rows=st.lists(st.lists(ANY_TEXT, min_size=3, max_size=3), min_size=1, max_size=6))
def test_what_is_piped_has_a_line_for_each_row(rows: list[list[str]]) -> None:
    view = table(["NAME", "COUNT", "STATE"], rows, right=["COUNT"])
    lines = list(plain_lines(view))
    assert len("\n".join(lines).splitlines()) == len(rows) + 1, "no cell adds a row"
    "\n".join(lines).encode()


@given(
    pairs=st.lists(
        st.tuples(st.sampled_from(["State", "A much longer name"]), ANY_TEXT), min_size=1, max_size=5
    ),
    width=st.integers(8, 120),
)
def test_names_and_values_are_whole(pairs: list[tuple[str, str]], width: int) -> None:
    view = table(["", ""], pairs)
    layout = fit(View(view.rows), width)
    assert all(cell_len(line) <= width for line in lines_of(layout))
    assert squeezed("".join(lines_of(layout))) == squeezed("".join(a + b for a, b in view.rows))


ID = "slurmcluster-e00a8pf1j9p1csvace2c14h"


def shown(
    headers: Sequence[str], rows: Sequence[Sequence[object]], width: int, right: Sequence[str] = ()
) -> str:
    layout = fit(table(headers, rows, right=right), width)
    return "\n".join([*lines_of(layout), layout.note()])


def test_ids_go_first() -> None:
    view = table(["NAME", "STATE", "PRIVATE IP", "ID"], [["web", "RUNNING", "10.128.120.96", ID]])
    assert fit(view, 120).view == view
    assert fit(view, 60).view.headers == ["NAME", "STATE", "PRIVATE IP"]
    assert fit(view, 60).note() == "Ids do not fit here; a wider terminal or --output json shows them."


def test_ids_stay_where_a_row_has_no_name() -> None:
    view = table(["NAME", "ID"], [["", ID]])
    assert fit(view, 30).view == view and ID in "".join(lines_of(fit(view, 44)))


def test_a_limit_of_10000_is_not_shown_as_100() -> None:
    """FI-1: at 80 columns the last digits were cut."""
    headers, right = ["NAME", "USED", "LIMIT", "%", "WHAT"], ["USED", "LIMIT", "%"]
    rows = [
        ["ai.job.count", 2, 10000, "0", "Jobs of containers in the project, whatever their state"],
        ["compute.filesystem.size.network-ssd", "128 GiB", "4 PiB", "3", "Size of all file systems"],
    ]
    for width in (60, 80, 200):
        text = shown(headers, rows, width, right)
        assert " 10000" in text and "128 GiB" in text and "4 PiB" in text
    assert shown(headers, rows, 60, right).endswith("WHAT does not fit here; a wider terminal shows it.")


def test_a_name_is_not_cut_to_a_letter() -> None:
    """FI-2 and FI-4: the state of each is read at 60 columns."""
    rows = [
        ["t2-lab", "Slurm cluster", "READY", "61 min", ID],
        ["ft-t1-080a705b", "fine-tuning job", "RUNNING", "1 h", ID],
    ]
    text = shown(["NAME", "KIND", "STATE", "AGE", "ID"], rows, 60, ["AGE"])
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["t2-lab", "ft-t1-080a705b"]
    assert "fine-tuning job   RUNNING" in text and "READY     61 min" in text


@pytest.mark.parametrize("width", [20, 40, 60])
def test_where_nothing_else_fits_each_row_is_a_list(width: int) -> None:
    headers = ["RESOURCE", "SKU", "QUANTITY", "UNIT", "PRICE", "COST"]
    row = ["trace-smol", "tokens.smol.input", "0.001597", "million-tokens", "-", "no price"]
    text = shown(headers, [row, row], width, ["QUANTITY", "PRICE", "COST"])
    assert text.count("0.001597") == 2 and text.count("trace-smol") == 2


def test_a_long_name_is_folded_and_pushes_nothing_away() -> None:
    """FI-5: the name of a replica's job has 67 characters."""
    name = "inferencedeployment-e00f9ycf1cwxgkhs24cqbe0.replica-0.c0a83ab61b8f"
    rows = [["7", name, "RUNNING", "worker-0"], ["8", "n-arr", "PENDING", "-"]]
    layout = fit(table(["JOB", "NAME", "STATE", "NODES"], rows, right=["JOB"]), 80)
    assert layout.columns and shown_cells(layout)[0][1] == name
    assert max(map(cell_len, lines_of(layout))) <= 80
