"""No list and no report cuts a cell, in a terminal of any width. They are found in the tree of commands."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from neocloud.cli import output
from neocloud.cli.table_layout import GAP, SHORTEST_FOLDED, Layout, View
from tests.fast.cli.conftest import Neo, Ran
from tests.fast.cli.fake_control_plane import FakeServer
from tests.fast.cli.sample_answers import HOSTILE, answer_everything
from tests.fast.cli.screen import on_screen
from tests.fast.cli.test_help import commands
from tests.fast.cli.test_table_layout import part, squeezed

WIDTHS = (60, 80, 200)
_VERBS = (
    "create update delete activate deactivate block unblock start stop restart wake cancel pause resume purge"
    " undelete issue revoke add push set-client-secret submit cp mv sync invite backup restore"
    " deploy tune evaluate create-default export inject override-gate promote roll-back rebuild"
)
CHANGES = frozenset(_VERBS.split())
"""Verbs of commands that change something; what they print is a page of what they made, as `get` does."""
NODE = "bank/research-training-n11"
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "capacity": ["--all"],
    "top": ["--once"],
    "fleet top": ["--once"],
    "config list": ["--home", "no-cloud"],
    "fleet explain xid": ["79"],
    "fleet explain sxid": ["12028"],
    "fleet explain log": ["kernel.log"],
    "fleet node get": [NODE],
    "fleet node events": [NODE],
    "fleet checks get": [NODE],
    "fleet verdict list": ["--all"],
    "fleet simulate": ["--gpus", "64", "--days", "2"],
    "slurm job diagnose": ["lab", "7"],
    "quota get": ["research-training-n11"],
}
KERNEL_LOG = "[ 12.5] NVRM: Xid (PCI:0000:41:00): 79, pid=1234, GPU has fallen off the bus.\n"
NOT_SHOWN: Mapping[str, str] = {
    **dict.fromkeys(
        ("logs", "compute machine read-serial-log", "inference deployment read-log", "tuning job read-log"),
        "prints lines of a log, and no table",
    ),
    "model lineage": "prints a tree: see test_lineage.py",
    "embed": "asks the model gateway: see test_embed.py",
    "model verify": "asks the model gateway: see test_model_quality.py",
    "inference feedback list": "asks the model gateway: see test_feedback.py",
    "tuning file list": "asks the model gateway: see test_lineage.py",
    **dict.fromkeys(
        ("vector-store list", "vector-store get", "vector-store search"),
        "asks the model gateway: see test_vector_store.py",
    ),
    "storage ls": "reads a bucket: see test_storage_lists.py",
    "storage verify": "reads the disks of a cloud on this machine: see test_storage.py",
    "storage mounts": "shows the mounts of this machine: see test_storage_mount.py",
}

EXIT_CODES = {"status": {5}, "fleet check": {0, 1}}
"""Exit codes of commands that do not show success: this host has no cloud, and its own checks may fail."""

LISTS = {
    " ".join(path[1:]): command
    for path, command in commands().items()
    if any(parameter.name == "output" for parameter in command.params)
    and not hasattr(command, "commands")
    and path[-1] not in CHANGES
    and path[1:] != ("config", "get")  # prints a value alone
}


def arguments_of(name: str) -> list[str]:
    given = list(ARGUMENTS.get(name, ()))
    if name in ARGUMENTS:
        return [*name.split(), *given]
    for parameter in LISTS[name].params:
        if not parameter.required:
            continue
        given += [parameter.opts[0], "sample"] if parameter.opts[0].startswith("-") else ["sample"]
    return [*name.split(), *given]


class Recorder:
    """Records the tables that a command arranges."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[View, Layout]] = []
        fit = output.fit

        def recorded(view: View, width: int) -> Layout:
            layout = fit(view, width)
            self.found.append((view, layout))
            return layout

        patch.setattr(output, "fit", recorded)


def cut_cells(view: View, layout: Layout, screen: list[str]) -> list[str]:
    """Return the cells of a table that cannot be read on the screen; removes its lines from it."""
    kept = [at for at, header in enumerate(view.headers) if header not in layout.left_out]
    cut = [header for header in layout.left_out if not header.endswith("ID") and header not in layout.note()]
    del screen[: len(layout.header)]
    for row, block in zip(view.rows, layout.blocks(), strict=True):
        lines, screen[:] = screen[: len(block)], screen[len(block) :]
        cut += [line for line in lines if cell_len(line) > layout.width]
        cells = [row[at] for at in kept] if view.headers else list(row)
        start = 0
        for at, cell in enumerate(cells):
            width = layout.columns[at] if layout.columns else 0
            texts = [part(line, start, width) for line in lines] if width else lines
            is_number = bool(view.headers) and view.headers[kept[at]] in view.right
            start += width + GAP
            if is_number or cell_len(cell) <= SHORTEST_FOLDED:
                found = any(re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", text) for text in texts)
            else:
                found = squeezed(cell) in squeezed("".join(texts))
            cut += [] if found else [cell]
    return cut


@pytest.fixture
def run_of(
    signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str, str], Ran]:
    """Return how to run a list or report; the second argument is added to each text that it shows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.log").write_text(KERNEL_LOG)

    def run(name: str, hostile: str = "") -> Ran:
        if name in NOT_SHOWN:
            pytest.skip(NOT_SHOWN[name])
        answer_everything(cloud, hostile)
        ran = signed_in(*arguments_of(name))
        assert ran.code in EXIT_CODES.get(name, {0}), ran
        return ran

    return run


@pytest.mark.parametrize("name", LISTS)
def test_no_cell_is_cut(name: str, run_of: Callable[..., Ran], record_property: Any) -> None:
    cells = 0
    for width in WIDTHS:
        with pytest.MonkeyPatch.context() as patch:
            recorder = Recorder(patch)
            screen = on_screen(width, lambda: run_of(name))
        assert recorder.found, screen
        lines = screen.split("\n")
        cut = []
        for view, layout in recorder.found:
            top = [line.plain for line in [*layout.header, *next(layout.blocks())]][0]
            while lines and lines[0] != top:
                del lines[0]
            cut += cut_cells(view, layout, lines)
            cells += sum(map(len, view.rows))
        assert not cut, f"{len(cut)} cells are cut at {width} columns: {cut[:5]}\n{screen}"
    record_property("cells", cells)


@pytest.mark.parametrize("name", LISTS)
def test_what_a_tenant_wrote_adds_no_line_to_a_pipe(name: str, run_of: Callable[..., Ran]) -> None:
    """SEC-L5: neither rows nor commands to the terminal that shows the pipe's end later."""
    ran = run_of(name, HOSTILE)
    assert not [line for line in ran.out.splitlines() if line.startswith("FORGED")]
    assert not {"\x1b", "\r", "\u2028"} & set(ran.out)
