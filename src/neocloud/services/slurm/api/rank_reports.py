"""The reports of a job's ranks, as the probe prints them (`probes/ranks.py`). Pure.

The probe runs as the job's user, whose programs may print anything in its place: sizes, counts, types and
characters are checked, and what does not fit is not a report. Names are cut, and have no control characters.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from neocloud.services.slurm.api.findings import BadReport, shown

MOST_NODES = 256
MOST_LINE_BYTES = 256 * 1024
"""Limit of one node. The probe keeps to it."""
MOST_OUTPUT_BYTES = 16 * 1024 * 1024
MOST_RANKS_OF_NODE = 64
MOST_RANK = 10**7
MOST_STEPS = 200
MOST_STACKS = 8
MOST_FRAMES = 24
MOST_NAME = 120
MOST_STEP = 10**12
MOST_SECONDS = 10**7
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    file: str
    """The last parts of its path."""
    line: Annotated[int, msgspec.Meta(ge=0, le=MOST_RANK)]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", shown(self.name, MOST_NAME))
        msgspec.structs.force_setattr(self, "file", shown(self.file, MOST_NAME))

    @property
    def place(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


class StepTime(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    step: Annotated[int, msgspec.Meta(ge=0, le=MOST_STEP)]
    seconds: _Seconds
    waited: _Seconds | None
    """The part of it in which the rank waited for others."""

    def __post_init__(self) -> None:
        if self.waited is not None and self.waited > self.seconds:
            raise ValueError("a rank waited longer than its step took")

    @property
    def own(self) -> float | None:
        return None if self.waited is None else self.seconds - self.waited


Stack = Annotated[tuple[Frame, ...], msgspec.Meta(max_length=MOST_FRAMES)]
"""Innermost function first."""


class RankReport(msgspec.Struct, frozen=True):
    rank: Annotated[int, msgspec.Meta(ge=0, le=MOST_RANK)]
    times: Annotated[tuple[StepTime, ...], msgspec.Meta(max_length=MOST_STEPS)]
    stacks: Annotated[tuple[Stack, ...], msgspec.Meta(max_length=MOST_STACKS)]
    """Stacks of its main thread, oldest first."""
    why: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)]
    """Data that could not be read."""
    moved: bool | None = None
    """Whether it ended a step while it was looked at; None where it writes no step times."""
    node: str = ""
    """Name of the node, from its line; the probe does not write it."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "why", tuple(shown(each, MOST_NAME) for each in self.why))


class _NodeReport(msgspec.Struct):
    node: str
    ranks: Annotated[list[RankReport], msgspec.Meta(max_length=MOST_RANKS_OF_NODE)]


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
        try:
            row = msgspec.json.decode(line, type=_NodeReport)
        except (ValueError, RecursionError) as error:  # those of msgspec are ValueErrors
            raise BadReport(shown(str(error))) from None
        if row.node not in nodes or row.node in seen:
            raise BadReport('"node" is not a node of the job, or is there twice')
        seen.add(row.node)
        for report in row.ranks:
            if report.rank in found:
                raise BadReport(f"rank {report.rank} is there twice")
            found[report.rank] = msgspec.structs.replace(report, node=row.node)
    return [found[rank] for rank in sorted(found)]
