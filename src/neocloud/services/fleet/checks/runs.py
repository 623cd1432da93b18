"""Results of active checks, folded from a log of runs beside the log of each pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Page, Store, Transaction
from neocloud.fleet import active, agent
from neocloud.fleet.active.catalogue import ActiveCheck, catalogue
from neocloud.fleet.active.cohort import LAST, CohortResult, Comparison, compare
from neocloud.fleet.active.judge import CheckMeasurement, is_busy
from neocloud.fleet.active.pairing import Meeting
from neocloud.fleet.active.report import Report
from neocloud.fleet.active.schedule import PROMISE, CheckHistory
from neocloud.fleet.agent.document import NotRun
from neocloud.fleet.control import fold_json
from neocloud.fleet.nodes.events import Status, Verdict
from neocloud.services.fleet.checks.pairs import PairRun, PairRuns, Result
from neocloud.services.fleet.checks.run_record import Run, decode_run, encode_run, log_of
from neocloud.services.fleet.logs.log_folds import Form, LogFolds
from neocloud.services.fleet.types import limits_of
from neocloud.services.slurm.public import NODE_POOL

PAGE = 200
OTHERS_SECONDS = 60.0
UNITS = {each.name: each.unit for each in catalogue()}


@dataclass
class NodeRuns:
    """The state of one node."""

    boot: str = ""
    hardware: str = ""
    tried_at: float = float("-inf")
    unfinished: int = 0
    problem: str = ""
    answered: dict[str, float] = field(default_factory=dict[str, float])
    said: dict[str, tuple[Verdict | NotRun, float, str]] = field(
        default_factory=dict[str, tuple[Verdict | NotRun, float, str]]
    )
    """The last answer of each check, its time, and the boot."""
    values: dict[tuple[str, str, str], list[float]] = field(
        default_factory=dict[tuple[str, str, str], list[float]]
    )
    """The last values by check, device and unit, newest last."""

    def take(self, run: Run) -> None:
        if run.hardware != self.hardware:
            self.values.clear()
        self.boot, self.tried_at, self.hardware = run.boot, run.at, run.hardware
        self.problem = run.problem or (run.report.preempted if run.report else "")
        has_unknown = False
        if run.report is not None:
            for each in (*run.report.document.verdicts, *run.report.document.not_run):
                if isinstance(each, NotRun) and _is_cut_short(each, run.report):
                    continue
                if isinstance(each, NotRun) and is_busy(each):
                    self.problem = self.problem or f"{each.check}: {each.why}"
                    continue
                self.said[each.check] = (each, run.at, run.boot)
                if isinstance(each, Verdict) and each.status is Status.UNKNOWN:
                    has_unknown = True
                else:
                    self.answered[each.check] = run.at
            self._take_values(run.report.measured)
        self.unfinished = self.unfinished + 1 if self.problem or has_unknown else 0

    def _take_values(self, measured: Sequence[CheckMeasurement]) -> None:
        for each in measured[:64]:
            key = (each.check, each.device, each.unit)
            known = self.values.setdefault(key, [])
            known.append(each.value)
            del known[:-LAST]
        for key in list(self.values)[:-128]:  # of devices that have other names now
            del self.values[key]


def _is_cut_short(left_out: NotRun, report: Report) -> bool:
    return bool(report.preempted) and left_out.why.endswith(report.preempted)


@dataclass(frozen=True)
class LikeValues:
    """The newest values of nodes of other pools: those of the same tenant, and those of each other one."""

    own: Mapping[tuple[str, str], Sequence[float]] = field(
        default_factory=dict[tuple[str, str], Sequence[float]]
    )
    """Values by check and hardware."""
    others: Sequence[Mapping[tuple[str, str], Sequence[float]]] = ()

    def of(self, check: ActiveCheck, hardware: str) -> tuple[Sequence[float], Sequence[Sequence[float]]]:
        key = (check.name, hardware)
        if not hardware:
            return (), ()
        return self.own.get(key, ()), [values for each in self.others if (values := each.get(key))]

    @property
    def has_others(self) -> bool:
        return bool(self.others)


@dataclass
class PoolRuns:
    """The fold over one log."""

    id: str
    """Name of the log."""
    nodes: dict[str, NodeRuns] = field(default_factory=dict[str, NodeRuns])
    position: int = 0
    runs: int = 0
    preempted: int = 0
    longest_preemption_s: float = 0.0
    pairs: PairRuns = field(default_factory=PairRuns)
    like: LikeValues = field(default_factory=LikeValues)
    """Values of the other pools."""
    like_at: float = float("-inf")
    _compared: Mapping[str, Comparison] | None = None

    def take(self, found: Sequence[LogEvent]) -> None:
        for each in found:
            if each.position != self.position + 1:
                continue  # taken in by another call meanwhile
            self.position = each.position
            run = decode_run(each)
            if run.partner:
                first, second = sorted(((run.node, run.boot), (run.partner, run.partner_boot)))
                names, boots = (first[0], second[0]), (first[1], second[1])
                self.pairs.take(PairRun(names, boots, run.at, None if run.problem else run.report))
            else:
                self.nodes.setdefault(run.node, NodeRuns()).take(run)
            self.runs += 1
            if run.report is not None and run.report.preempted:
                self.preempted += 1
                self.longest_preemption_s = max(self.longest_preemption_s, run.report.preempted_after_s)
            self._compared = None

    def stored(self) -> "PoolRuns":
        """Return it without what is known of other pools, and what was computed from the runs."""
        return PoolRuns(
            *(self.id, self.nodes, self.position, self.runs, self.preempted, self.longest_preemption_s),
            pairs=self.pairs.stored(),
        )

    def know(self, like: LikeValues, now: float) -> None:
        """Take in the newest values of the other pools."""
        self.like_at = now
        if like != self.like:
            self.like, self._compared = like, None

    def compared(self) -> Mapping[str, Comparison]:
        """Return what the nodes with the same hardware say by check. Members are "NODE\\tDEVICE\\tUNIT"."""
        if self._compared is None:
            self._compared = {check.name: self._compare(check) for check in catalogue()}
        return self._compared

    def _compare(self, check: ActiveCheck) -> Comparison:
        found, incidents = dict[str, CohortResult](), list[str]()
        for hardware in sorted({node.hardware for node in self.nodes.values()}):
            own = {
                f"{name}\t{device}\t{unit}": values
                for name, node in self.nodes.items()
                for (of, device, unit), values in node.values.items()
                if node.hardware == hardware and of == check.name and (unit == check.unit or not check.unit)
            }
            said = compare(check, own, *self.like.of(check, hardware))
            found.update(said.members)
            incidents += [said.incident] if said.incident else []
        return Comparison(found, "; ".join(incidents))

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


_SERVICE = Path(__file__).parents[1]
_FOLDED_BY = ("checks/runs.py", "checks/run_record.py", "checks/pairs.py", "logs/log_folds.py", "types.py")
RUNS = Form(
    begin=PoolRuns,
    limits=limits_of,
    version=fold_json.code_version(
        *(_SERVICE / name for name in _FOLDED_BY),
        *(each for each in sorted(Path(active.__file__).parent.iterdir()) if each.is_file()),
        *sorted(Path(agent.__file__).parent.glob("*.py")),
    ),
    classes=(PoolRuns, NodeRuns, LikeValues, NotRun, PairRuns, Result, Meeting),
    page=PAGE,
)


class CheckRuns:
    """The logs of all pools, folded and kept between calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folds = LogFolds(store, RUNS)
        self._tenants: Mapping[str, str] = {}
        """Tenant of each pool of the cloud."""
        self._looked_at = float("-inf")

    async def read(self, pool_id: str) -> PoolRuns:
        return await self._folds.read(log_of(pool_id))

    async def read_among_like(self, pool_id: str, now: float) -> PoolRuns:
        """Return the runs of a pool, with what those of the others are compared with. The others are read
        once a minute."""
        if now - self._looked_at >= OTHERS_SECONDS or pool_id not in self._tenants:
            self._looked_at = now
            self._tenants = await self._store.read(tenants_of_pools)
            for other in self._tenants:
                await self.read(other)
        known = await self.read(pool_id)
        if now - known.like_at >= OTHERS_SECONDS:
            pools = {
                other: runs
                for other in self._tenants
                if (runs := self._folds.known(log_of(other))) is not None
            }
            known.know(like_values(pool_id, pools, self._tenants, now), now)
        return known

    async def append(self, pool_id: str, run: Run) -> None:
        event = LogEvent(run.node, datetime.fromtimestamp(run.at, UTC), encode_run(run))

        def append(tx: Transaction) -> None:
            tx.append_event(log_of(pool_id), event)

        await self._store.write(append)

    def forget(self, pool_id: str) -> None:
        self._folds.forget(log_of(pool_id))


def tenants_of_pools(tx: Transaction) -> dict[str, str]:
    """Return the tenant of each pool."""
    found, page = dict[str, str](), Page()
    while True:
        rows, after = tx.list(NODE_POOL, page=page)
        for row in rows:
            project = tx.get(row.parent_id)
            found[row.id] = project.parent_id if project else row.parent_id
        if not after:
            return found
        page = Page(after=after)


def like_values(
    pool_id: str, pools: Mapping[str, PoolRuns], tenants: Mapping[str, str], now: float
) -> LikeValues:
    """Return the values of the other pools that are not older than the promise of a test."""
    by_tenant = dict[str, dict[tuple[str, str], list[float]]]()
    for other, known in pools.items():
        if other == pool_id:
            continue
        values = by_tenant.setdefault(tenants[other], {})
        for node in known.nodes.values():
            for (check, _, unit), last in node.values.items():
                if node.hardware and now - node.tried_at <= PROMISE and unit == UNITS.get(check):
                    values.setdefault((check, node.hardware), []).append(last[-1])
    own = by_tenant.pop(tenants.get(pool_id, ""), {})
    return LikeValues(own, [by_tenant[each] for each in sorted(by_tenant)])
