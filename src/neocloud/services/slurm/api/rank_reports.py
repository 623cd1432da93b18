# pyright: strict
"""The reports of a job's ranks, as the probe prints them (`probes/ranks.py`). Pure.

The probe runs as the job's user, whose programs may print anything in its place: sizes, counts, types and
characters are checked, and what does not fit is no report. Names are cut, and have no control characters.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from neocloud.core.json_values import is_list, is_object
from neocloud.services.slurm.api.findings import BadReport

MOST_NODES = 256
MOST_LINE_BYTES = 256 * 1024
"""Of one node. The probe keeps to it."""
MOST_OUTPUT_BYTES = 16 * 1024 * 1024
MOST_RANKS_OF_NODE = 64
MOST_RANK = 10**7
MOST_STEPS = 200
MOST_STACKS = 8
MOST_FRAMES = 24
MOST_NAME = 120
MOST_STEP = 10**12
MOST_SECONDS = 10**7


@dataclass(frozen=True)
class Frame:
    name: str
    file: str
    """The last parts of its path."""
    line: int

    @property
    def place(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True)
class StepTime:
    step: int
    seconds: float
    waited: float | None
    """The part of it in which the rank waited for others."""

    @property
    def own(self) -> float | None:
        return None if self.waited is None else self.seconds - self.waited


Stack = tuple[Frame, ...]
"""Innermost function first."""


@dataclass(frozen=True)
class RankReport:
    rank: int
    node: str
    times: Sequence[StepTime] = ()
    stacks: Sequence[Stack] = ()
    """Of its main thread, oldest first."""
    why: Sequence[str] = ()
    """What could not be read."""
    moved: bool | None = None
    """Whether it ended a step while it was looked at; None where it writes no step times."""


def rank_reports(output: bytes, nodes: Sequence[str]) -> list[RankReport]:
    """Read one line for each node, in any order; ranks in theirs. Raises BadReport.

    Lines that are longer than the probe writes them, of other nodes, or of a node or rank that was there
    already are refused: of two answers for one rank, none can be believed.
    """
    found: dict[int, RankReport] = {}
    seen: set[str] = set()
    for line in output.splitlines():
        if len(line) > MOST_LINE_BYTES or len(seen) >= MOST_NODES:
            raise BadReport("it is too long")
        row = _row(_parsed(line))
        node = row.get("node")
        if not isinstance(node, str) or node not in nodes or node in seen:
            raise BadReport('"node" is not a node of the job, or is there twice')
        seen.add(node)
        for each in _list(row, "ranks", MOST_RANKS_OF_NODE):
            report = _rank(_row(each), node)
            if report.rank in found:
                raise BadReport(f"rank {report.rank} is there twice")
            found[report.rank] = report
    return [found[rank] for rank in sorted(found)]


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise BadReport("a line is no JSON") from None


def _rank(row: dict[str, object], node: str) -> RankReport:
    times = [_step_time(each) for each in _list(row, "times", MOST_STEPS)]
    stacks: list[Stack] = []
    for stack in _list(row, "stacks", MOST_STACKS):
        stacks.append(tuple(_frame(each) for each in _items(stack, "a stack", MOST_FRAMES)))
    why = [_text(each) for each in _list(row, "why", 8)]
    moved = row.get("moved")
    if moved is not None and not isinstance(moved, bool):
        raise BadReport('"moved" is neither true nor false')
    return RankReport(_integer(row.get("rank"), "rank", MOST_RANK), node, times, stacks, why, moved)


def _step_time(value: object) -> StepTime:
    parts = _items(value, "a step time", 3)
    if len(parts) != 3:
        raise BadReport("a step time has three parts")
    seconds = _seconds(parts[1])
    waited = None if parts[2] is None else _seconds(parts[2])
    if waited is not None and waited > seconds:
        raise BadReport("a rank waited longer than its step took")
    return StepTime(_integer(parts[0], "step", MOST_STEP), seconds, waited)


def _frame(value: object) -> Frame:
    parts = _items(value, "a frame", 3)
    if len(parts) != 3:
        raise BadReport("a frame has three parts")
    return Frame(_text(parts[0]), _text(parts[1]), _integer(parts[2], "line", MOST_RANK))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadReport("a name is no text")
    return "".join(letter if letter.isprintable() else "?" for letter in value[:MOST_NAME])


def _integer(value: object, name: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise BadReport(f'"{name}" is not a number from 0 to {most:,}')
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
        raise BadReport("a time is not a number of seconds")
    return float(value)


def _row(value: object) -> dict[str, object]:
    if not is_object(value):
        raise BadReport("it is no JSON object")
    return value


def _list(row: dict[str, object], name: str, most: int) -> list[object]:
    return _items(row.get(name), f'"{name}"', most)


def _items(value: object, name: str, most: int) -> list[object]:
    if not is_list(value):
        raise BadReport(f"{name} is no list")
    if len(value) > most:
        raise BadReport(f"{name} has more than {most} items")
    return value
