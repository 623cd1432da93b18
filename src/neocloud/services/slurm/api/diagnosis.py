"""Find the ranks of a job that are slow, or keep the others waiting. Pure.

Ranks that work in step take the same time for a step, even if one is slow: the others wait. So ranks are
compared by the time in which they did not wait; without it step times can show that they agree, and
nothing else.

All of this is what a user's program says. It names ranks, and the nodes that they are on, to look there; it
is never evidence against a node, since data, code and settings differ by rank as well.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from neocloud.services.slurm.api.rank_reports import Frame, RankReport, Stack

SLOW_Z = 4.0
SLOW_SHARE = 0.10
"""How much longer than the median a slow rank takes: a sure difference may still be too small to matter."""
FLOOR_SHARE = 0.005
"""The least spread that counts, of the median: ranks that agree to the microsecond have no outliers."""
FEWEST_FOR_Z = 4
FEW_RATIO = 1.5
"""Among fewer ranks there is no meaningful spread: one must take this much longer than the fastest."""
FEWEST_STEPS = 5
SHOWN_FRAMES = 8
COLLECTIVES = frozenset(
    (
        *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_object"),
        *("all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "broadcast"),
        *("broadcast_object_list", "gather", "gather_object", "reduce", "reduce_scatter"),
        *("reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "recv", "batch_isend_irecv"),
        *("allreduce", "allgather", "alltoall", "bcast"),
    )
)
COLLECTIVE_FILES = (
    "torch/distributed/",
    "distributed/distributed_c10d.py",
    "horovod/",
    "deepspeed/comm",
)
"""A function of the user that is called `gather` is not a collective operation."""


@dataclass(frozen=True)
class DiagnosisFinding:
    kind: str
    ranks: Sequence[int]
    nodes: Sequence[str]
    message: str


@dataclass(frozen=True)
class RankView:
    """The view of a rank."""

    report: RankReport
    step_seconds: float = 0.0
    own_seconds: float = 0.0
    z: float = 0.0

    @property
    def stack(self) -> Stack:
        return self.report.stacks[-1] if self.report.stacks else ()

    @property
    def collective(self) -> str:
        """The collective operation that it was in each time that it was looked at."""
        names = {collective_of(stack) for stack in self.report.stacks}
        return names.pop() if len(names) == 1 else ""

    @property
    def is_still(self) -> bool:
        stacks = self.report.stacks
        return len(stacks) > 1 and len(set(stacks)) == 1

    @property
    def place(self) -> str:
        frame = place_of(self.stack)
        return frame.place if frame else ""

    @property
    def last_step(self) -> int:
        return self.report.times[-1].step if self.report.times else 0


@dataclass(frozen=True)
class Diagnosis:
    ranks: Sequence[RankView] = ()
    findings: Sequence[DiagnosisFinding] = ()
    not_run: Sequence[str] = field(default_factory=list[str])


def diagnose(reports: Sequence[RankReport], suspect_nodes: Mapping[str, str]) -> Diagnosis:
    """Compare the ranks; `suspect_nodes` has what the cloud itself holds against nodes of the job."""
    if not reports:
        return Diagnosis(
            not_run=[
                "No rank was found: the job started no tasks, or they set neither RANK nor SLURM_PROCID."
            ]
        )
    views, findings, not_run = _compare_times(reports)
    stacked, unread = _compare_stacks(views)
    found = [*findings, *stacked]
    return Diagnosis(
        views, [_with_nodes(each, reports, suspect_nodes) for each in found], [*not_run, *unread]
    )


def collective_of(stack: Stack) -> str:
    """Return the outermost collective operation in a stack; none is empty."""
    for frame in reversed(stack):
        if frame.name in COLLECTIVES and any(part in frame.file for part in COLLECTIVE_FILES):
            return frame.name
    return ""


def place_of(stack: Stack) -> Frame | None:
    """Return the innermost function; in a collective operation, the one that called it."""
    inner = 0
    for number, frame in enumerate(stack):
        if any(part in frame.file for part in COLLECTIVE_FILES):
            inner = number + 1
    return stack[min(inner, len(stack) - 1)] if stack else None


def _compare_times(reports: Sequence[RankReport]) -> tuple[list[RankView], list[DiagnosisFinding], list[str]]:
    plain = [RankView(each) for each in reports]
    timed = [each for each in reports if each.times]
    if len(timed) < len(reports) or len(reports) < 2:
        missing = [each.rank for each in reports if not each.times]
        why = f"Step times: {_ranks(missing)} wrote none" if missing else "Step times: there is one rank"
        return (
            plain,
            _behind(plain) if not missing else [],
            [f"{why}; a comparison needs all, of two ranks or more."],
        )
    written = [{time.step for time in each.times} for each in reports]
    common = written[0].intersection(*written[1:])
    if len(common) < FEWEST_STEPS:
        text = (
            f"Step times: {len(common)} steps were written by all ranks; a comparison needs {FEWEST_STEPS}."
        )
        return plain, _behind(plain), [text]
    whole: dict[int, float] = {}
    own: dict[int, float] = {}
    for each in reports:
        times = [time for time in each.times if time.step in common]
        whole[each.rank] = median(time.seconds for time in times)
        parts = [time.own for time in times]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            own[each.rank] = median(known)
    has_own = len(own) == len(reports)
    scores = robust_z(own if has_own else whole)
    views = [RankView(each, whole[each.rank], own.get(each.rank, 0.0), scores[each.rank]) for each in reports]
    slow, unsure = _slow(own if has_own else whole, scores, len(common), is_own=has_own)
    return views, [*slow, *_behind(views)], unsure


def robust_z(values: Mapping[int, float]) -> dict[int, float]:
    """Return how far each value is above the median, in spreads of the others that outliers do not widen."""
    middle = median(values.values())
    spread = 1.4826 * median(abs(value - middle) for value in values.values())
    spread = max(spread, FLOOR_SHARE * middle, 1e-9)
    return {rank: (value - middle) / spread for rank, value in values.items()}


def _slow(
    values: Mapping[int, float], scores: Mapping[int, float], steps: int, *, is_own: bool
) -> tuple[list[DiagnosisFinding], list[str]]:
    middle, fastest = median(values.values()), min(values.values())
    if len(values) >= FEWEST_FOR_Z:
        found = [r for r, v in values.items() if scores[r] > SLOW_Z and v > middle * (1 + SLOW_SHARE)]
        reference, compared = middle, "the median"
    else:
        found = [r for r, v in values.items() if v > fastest * FEW_RATIO and v > 0]
        reference, compared = fastest, "the fastest"
    what = "outside collective operations" if is_own else "for a step"
    if found:
        worst = max(values[rank] for rank in found)
        text = f"{_ranks(found)} took up to {worst:.3g} s {what}, {compared} {reference:.3g} s"
        text += f", over {steps} steps."
        if len(values) < FEWEST_FOR_Z:
            text += f" With {len(values)} ranks that is a ratio, not an outlier."
        return [DiagnosisFinding("slow", found, (), text)], []
    if is_own:
        return [
            DiagnosisFinding("same_speed", (), (), f"No rank is slower than the others, over {steps} steps.")
        ], []
    text = "Slow ranks: all take the same time for a step, as ranks do that wait for each other"
    return [], [f"{text}; it takes `waited` to compare them."]


def _behind(views: Sequence[RankView]) -> list[DiagnosisFinding]:
    steps = [view.last_step for view in views if view.report.times]
    if len(steps) < len(views):
        return []
    least_gap = 2 if any(view.report.moved for view in views) else 1  # not all are read in the same moment
    behind = [view.report.rank for view in views if view.last_step <= max(steps) - least_gap]
    if not behind or len(behind) * 2 > len(views):
        return []
    text = f"{_ranks(behind)} had ended step {min(steps)} when others had ended step {max(steps)}."
    return [DiagnosisFinding("behind", behind, (), text)]


def _compare_stacks(views: Sequence[RankView]) -> tuple[list[DiagnosisFinding], list[str]]:
    unread = [view.report.rank for view in views if not view.report.stacks]
    reasons = sorted({why for view in views for why in view.report.why})
    notes = [f"Stacks: none of {_ranks(unread)[:1].lower()}{_ranks(unread)[1:]}."] if unread else []
    notes += [f"{reason}." for reason in reasons if reason]
    read = [view for view in views if view.report.stacks]
    if len(read) < 2 or any(view.report.moved for view in views):
        return [], notes  # where steps end, each rank waits at times, and none of them for long
    waiting = [view for view in read if view.collective]
    others = [view for view in read if not view.collective]
    kinds = Counter(view.collective for view in waiting)
    found: list[DiagnosisFinding] = []
    if len(kinds) > 1:
        rare = min(kinds.values())
        odd = [view.report.rank for view in waiting if kinds[view.collective] == rare]
        each = ", ".join(f"{count} in {name}" for name, count in sorted(kinds.items()))
        text = f"The ranks are in different collective operations ({each}): the program took different paths."
        found.append(DiagnosisFinding("different_collectives", odd, (), text))
    if others and len(waiting) * 2 >= len(read):
        places = Counter(view.place or "unknown" for view in others)
        where = "; ".join(f"{count} in {place}" for place, count in places.most_common(3))
        text = f"{len(waiting)} of {len(read)} ranks wait in {_names(kinds)}; of the others {where}."
        found.append(DiagnosisFinding("elsewhere", [view.report.rank for view in others], (), text))
    elif waiting and not unread and len(kinds) == 1 and all(view.is_still for view in read):
        text = (
            f"All ranks wait in {_names(kinds)}, and it does not end: look at the network between the nodes."
        )
        found.append(DiagnosisFinding("all_wait", (), (), text))
    elif not waiting:
        found += _odd_one_out(read)
    return found, notes


def _odd_one_out(read: Sequence[RankView]) -> list[DiagnosisFinding]:
    """Find ranks that stay in another place than most of the others, where no collective is known by name."""
    still = [view for view in read if view.is_still]
    places = Counter(_signature(view.stack) for view in still)
    if not places:
        return []
    ((most, count),) = places.most_common(1)
    if len(still) < len(read) or count * 2 <= len(read) or count == len(read):
        return []
    odd = [view for view in still if _signature(view.stack) != most]
    common = next(view.place for view in still if _signature(view.stack) == most)
    where = "; ".join(sorted({view.place for view in odd})[:3])
    text = f"{count} of {len(read)} ranks stay in {common}; the others in {where}."
    return [DiagnosisFinding("elsewhere", [view.report.rank for view in odd], (), text)]


def _signature(stack: Stack) -> tuple[tuple[str, str], ...]:
    return tuple((frame.name, frame.file) for frame in stack)


def _with_nodes(
    finding: DiagnosisFinding, reports: Sequence[RankReport], suspect_nodes: Mapping[str, str]
) -> DiagnosisFinding:
    """Name the nodes of the ranks, and say what is known of them apart from this job."""
    at = {each.rank: each.node for each in reports}
    nodes = sorted({at[rank] for rank in finding.ranks})
    text = finding.message
    if nodes and finding.kind in ("slow", "behind", "elsewhere"):
        known = [f"{node}: {suspect_nodes[node]}" for node in nodes if node in suspect_nodes]
        if known:
            text += f" The cloud has evidence of its own against {'; '.join(known)}."
        elif len(nodes) == 1 and len(set(at.values())) > 1:
            text += (
                f" All are on {nodes[0]}; whether the node is slow or what they work on, this cannot tell."
            )
    return DiagnosisFinding(finding.kind, finding.ranks, nodes, text)


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"Rank {shown}" if len(numbers) == 1 else f"Ranks {shown}"


def _names(kinds: Mapping[str, int]) -> str:
    return " and ".join(sorted(kinds))
