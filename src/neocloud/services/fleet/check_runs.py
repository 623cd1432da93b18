"""What active checks found, folded from a log of runs beside the log of each pool."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Store
from neocloud.fleet.active.catalogue import catalogue
from neocloud.fleet.active.cohort import LAST, Comparison, compare
from neocloud.fleet.active.judge import Measured
from neocloud.fleet.active.report import Report, decode
from neocloud.fleet.active.report import encode as encode_report
from neocloud.fleet.active.schedule import CheckHistory
from neocloud.fleet.agent.document import DocumentError, NotRun
from neocloud.fleet.events import Status, Verdict

FORMAT = 1
PAGE = 200


@dataclass(frozen=True)
class Run:
    """One run of checks on a node: its report, or why there is none."""

    node: str
    boot: str
    at: float
    report: Report | None
    problem: str = ""


@dataclass
class NodeRuns:
    """What is known of one node."""

    boot: str = ""
    tried_at: float = float("-inf")
    unfinished: int = 0
    problem: str = ""
    answered: dict[str, float] = field(default_factory=dict[str, float])
    said: dict[str, tuple[Verdict | NotRun, float, str]] = field(
        default_factory=dict[str, tuple[Verdict | NotRun, float, str]]
    )
    """By check: what it said last, when, and the boot."""
    values: dict[tuple[str, str, str], list[float]] = field(
        default_factory=dict[tuple[str, str, str], list[float]]
    )
    """The last values by check, device and unit, newest last."""

    def take(self, run: Run) -> None:
        self.boot, self.tried_at = run.boot, run.at
        self.problem = run.problem or (run.report.preempted if run.report else "")
        has_unknown = False
        if run.report is not None:
            for each in (*run.report.document.verdicts, *run.report.document.not_run):
                if isinstance(each, NotRun) and _is_cut_short(each, run.report):
                    continue
                self.said[each.check] = (each, run.at, run.boot)
                if isinstance(each, Verdict) and each.status is Status.UNKNOWN:
                    has_unknown = True
                else:
                    self.answered[each.check] = run.at
            self._take_values(run.report.measured)
        self.unfinished = self.unfinished + 1 if self.problem or has_unknown else 0

    def _take_values(self, measured: Sequence[Measured]) -> None:
        for each in measured[:64]:
            key = (each.check, each.device, each.unit)
            known = self.values.setdefault(key, [])
            known.append(each.value)
            del known[:-LAST]
        for key in list(self.values)[:-128]:  # of devices that have other names now
            del self.values[key]


def _is_cut_short(left_out: NotRun, report: Report) -> bool:
    return bool(report.preempted) and left_out.why.endswith(report.preempted)


@dataclass
class PoolRuns:
    """The fold over one log."""

    log: str
    nodes: dict[str, NodeRuns] = field(default_factory=dict[str, NodeRuns])
    position: int = 0
    runs: int = 0
    preempted: int = 0
    longest_preemption_s: float = 0.0
    _compared: Mapping[str, Comparison] | None = None

    def take(self, found: Sequence[LogEvent]) -> None:
        for each in found:
            if each.position != self.position + 1:
                continue  # taken in by another call meanwhile
            self.position = each.position
            run = decode_run(each)
            self.nodes.setdefault(run.node, NodeRuns()).take(run)
            self.runs += 1
            if run.report is not None and run.report.preempted:
                self.preempted += 1
                self.longest_preemption_s = max(self.longest_preemption_s, run.report.preempted_after_s)
            self._compared = None

    def compared(self) -> Mapping[str, Comparison]:
        """Return what the cohort, which is the pool, says by check. Members are "NODE\\tDEVICE\\tUNIT"."""
        if self._compared is None:
            self._compared = {
                check.name: compare(
                    check,
                    {
                        f"{name}\t{device}\t{unit}": values
                        for name, node in self.nodes.items()
                        for (of, device, unit), values in node.values.items()
                        if of == check.name and (unit == check.unit or not check.unit)
                    },
                )
                for check in catalogue()
            }
        return self._compared

    def history(self, name: str, boot: str = "") -> CheckHistory:
        """Return what is known of a node. A failure in an earlier start than `boot` is no answer: whether the
        repair has helped is found by the next run."""
        node = self.nodes.get(name, NodeRuns())
        failed_before = {
            check
            for check, (said, _, of) in node.said.items()
            if boot and of != boot and isinstance(said, Verdict) and said.status is Status.FAIL
        }
        repeats = {
            check
            for check, comparison in self.compared().items()
            for member, found in comparison.members.items()
            if found.wants_repeat and member.partition("\t")[0] == name
        }
        return CheckHistory(
            name,
            answered={check: at for check, at in node.answered.items() if check not in failed_before},
            tried_at=node.tried_at,
            unfinished=node.unfinished,
            repeats=frozenset(repeats),
        )


class CheckRuns:
    """The logs of all pools, folded and kept between calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, PoolRuns] = {}

    async def read(self, pool_id: str) -> PoolRuns:
        known = self._known.setdefault(pool_id, PoolRuns(log_of(pool_id)))
        while True:
            after = known.position
            found = await self._store.read(
                lambda tx, after=after: tx.events(known.log, after=after, limit=PAGE)
            )
            known.take(found)
            if len(found) < PAGE:
                return known

    async def append(self, pool_id: str, run: Run) -> None:
        event = LogEvent(run.node, datetime.fromtimestamp(run.at, UTC), encode_run(run))

        def append(tx) -> None:
            tx.append_event(log_of(pool_id), event)

        await self._store.write(append)

    def forget(self, pool_id: str) -> None:
        self._known.pop(pool_id, None)


def log_of(pool_id: str) -> str:
    return f"{pool_id}/checks"


def encode_run(run: Run) -> bytes:
    report = json.loads(encode_report(run.report)) if run.report else None
    content = {"format": FORMAT, "boot": run.boot, "problem": run.problem, "report": report}
    return json.dumps(content, separators=(",", ":")).encode()


def decode_run(event: LogEvent) -> Run:
    """Return a run of the log. One that cannot be read counts as a run without a result."""
    at = event.at.timestamp()
    try:
        given = json.loads(event.body)
        if given["format"] != FORMAT:
            return Run(event.subject, "", at, None, "it was written by another release")
        report = given["report"]
        read = decode(json.dumps(report).encode(), at=at) if report else None
        return Run(event.subject, given["boot"], at, read, given["problem"])
    except (ValueError, KeyError, TypeError, DocumentError) as error:
        return Run(event.subject, "", at, None, f"its record cannot be read: {error}"[:200])
