"""Snapshots of the fold of a pool: from any of them, the rest of the log leads to what the whole log does."""

import random
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from neocloud.core.store import LogEvent, Store, Transaction, open_store
from neocloud.core.store.event_log import Snapshot
from neocloud.fleet.active.catalogue import catalogue
from neocloud.fleet.active.judge import CheckMeasurement
from neocloud.fleet.active.report import Report
from neocloud.fleet.agent.document import Document, NotRun
from neocloud.fleet.control import failing, fold_json
from neocloud.fleet.control.controller import decide
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes import incidents
from neocloud.fleet.nodes.event_json import encode
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status
from neocloud.fleet.nodes.outages import Outages
from neocloud.fleet.nodes.repairs import Repairs
from neocloud.server.retention import archive_log
from neocloud.services.fleet.checks.active_checks import answers
from neocloud.services.fleet.checks.run_record import Run, encode_run
from neocloud.services.fleet.checks.runs import RUNS, CheckRuns, LikeValues, PoolRuns
from neocloud.services.fleet.logs import log_folds
from neocloud.services.fleet.logs.node_logs import POOLS, VERSION, NodeLogs, PoolLog
from neocloud.services.fleet.types import LIMITS
from neocloud.testing.waiting import FakeClock
from tests.fast.fleet.control.walk import CHECKS, Walk

pytestmark = pytest.mark.slow

POOL = "fleetpool-e00a"
snapshot_of, from_snapshot = POOLS.snapshot_of, POOLS.from_snapshot
AS_TRUSTED: dict[str, str] = dict(zip(CHECKS[:3], ("cpu", "memory", "gpu"), strict=True))


def logged(events: Iterable[Event]) -> list[LogEvent]:
    return [
        LogEvent(each.node, datetime.fromtimestamp(each.at, UTC), encode(each), position)
        for position, each in enumerate(events, 1)
    ]


def walked(seed: int, steps: int) -> list[Event]:
    """Events of a walk, of checks that the service trusts, with work that should not be there."""
    walk, chance = Walk(seed), random.Random(seed)
    for _ in range(steps):
        walk.step()
        if chance.random() < 0.05:
            node, job = chance.choice(walk.names), chance.random() < 0.5
            walk.append(e.Occupied(walk.now, node, "7") if job else e.Vacated(walk.now, node))
    return [
        replace(each, check=AS_TRUSTED.get(each.check, each.check))
        if isinstance(each, e.Verdict | e.Judged | e.DrainRequested)
        else each
        for each in walk.log
    ]


def folded(events: Iterable[LogEvent], begin: PoolLog | None = None) -> PoolLog:
    log = begin or PoolLog.of(POOL)
    log.take(list(events))
    return log


def parts(value: Any) -> Any:
    """Everything that a value is made of, with its type and in its order."""
    kind = type(value)
    if isinstance(value, dict):
        return kind, [(parts(key), parts(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)) or kind.__name__ == "deque":
        return kind, [parts(each) for each in value]
    if is_dataclass(value):
        return kind, [parts(getattr(value, each.name)) for each in fields(value)]
    if hasattr(value, "__dict__") and not isinstance(value, str):
        return kind, parts(vars(value))
    return kind, value


def restored(log: PoolLog) -> PoolLog:
    found = from_snapshot(POOL, snapshot_of(log))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(2))
def test_a_snapshot_at_every_event_loses_nothing(seed: int) -> None:
    """The restored state takes the next event, is stored again, and so on: each event is a cut."""
    live, again = PoolLog.of(POOL), PoolLog.of(POOL)
    found = logged(walked(seed, 150))
    for each in found:
        live.take([each])
        again = restored(folded([each], again))
        if each.position % 40 == 0 or each.position == len(found):
            assert parts(again) == parts(live), each
            now = each.at.timestamp()
            assert decide(again.fleet, now) == decide(live.fleet, now)
    assert live.outages.all and live.fleet.breakers.drains and live.incidents.count and live.drains.times


def test_the_rest_of_the_log_leads_to_the_same_from_any_cut() -> None:
    found = logged(walked(0, 400))
    whole = parts(folded(found))
    assert folded(found).fleet.breakers.trips
    for cut in range(0, len(found), 61):
        assert parts(folded(found[cut:], restored(folded(found[:cut])))) == whole, cut


def test_of_other_code_or_damaged_it_is_no_snapshot() -> None:
    good = snapshot_of(folded(logged(walked(1, 100))))
    assert from_snapshot(POOL, good) is not None
    assert from_snapshot("fleetpool-e00b", good) is None, "of another pool"
    bad = [
        replace(good, version="another"),
        replace(good, position=good.position - 1),
        replace(good, body=good.body[:-9]),
        replace(good, body=b""),
        *(replace(good, body=log_folds.zlib.compress(body)) for body in NO_FOLDS),
    ]
    assert [each for each in bad if from_snapshot(POOL, each) is not None] == []


NO_FOLDS = (
    b"",
    b"null",
    b'["object","PoolLog",["dict"]]',
    b'["object","Popen",["dict","args","true"]]',
    b'["data","NodeState"]',
    b'["data","NodeState",1,2,3]',
    b'["enum","Phase","nowhere"]',
    b'["dict",1]',
    b'["set",1]',
    b"[" * 100000,
)


def test_a_value_that_is_not_known_is_refused_and_not_left_out() -> None:
    log = PoolLog.of(POOL)
    log.fleet.nodes["n"] = object()  # type: ignore[assignment]
    with pytest.raises(fold_json.BadFold, match="object is not a class that is kept"):
        snapshot_of(log)


@pytest.fixture
async def store() -> Store:
    return await open_store(":memory:", bytes(32), FakeClock())


async def append(store: Store, events: Iterable[LogEvent], log: str = POOL) -> None:
    def write(tx: Transaction) -> None:
        for each in events:
            tx.append_event(log, each)

    await store.write(write)


async def test_a_start_reads_the_snapshot_and_what_came_after_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_folds, "LEAST_EVENTS", 100)
    found = logged(walked(2, 300))
    await append(store, found[:400])
    await NodeLogs(store).read(POOL)
    await append(store, found[400:450])
    taken: list[int] = []
    take = PoolLog.take
    monkeypatch.setattr(
        PoolLog,
        "take",
        lambda log, events: (taken.extend(each.position for each in events), take(log, events)),
    )
    log = await NodeLogs(store).read(POOL)
    assert taken == [*range(401, 451)]
    assert parts(log) == parts(folded(found[:450]))


@pytest.mark.parametrize("what", ["version", "body", "sealed"])
async def test_a_snapshot_of_no_use_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(log_folds, "LEAST_EVENTS", 100)
    found = logged(walked(3, 300))[:400]
    await append(store, found)
    await NodeLogs(store).read(POOL)
    kept = await store.read(lambda tx: tx.snapshot(POOL))
    assert kept is not None and (kept.position, kept.version) == (400, VERSION)
    if what == "sealed":
        await damage(store)
        assert await store.read(lambda tx: tx.snapshot(POOL)) is None
    else:
        changed = Snapshot(400, "of before", kept.body) if what == "version" else Snapshot(400, VERSION, b"x")
        await store.write(lambda tx: tx.put_snapshot(POOL, changed))
    assert parts(await NodeLogs(store).read(POOL)) == parts(folded(found))
    again = await store.read(lambda tx: tx.snapshot(POOL))
    assert again == kept, "the next start has one again"


async def damage(store: Store) -> None:
    """Change what lies in the database, as somebody without the store's key can."""

    def write(tx: Any) -> None:
        tx._connection.exec_driver_sql("UPDATE event_snapshots SET position = position - 1")

    await store.write(write)


def test_a_reserved_spare_and_a_registration_survive() -> None:
    log = folded(
        logged(
            [
                e.Registered(1.0, "n", "r", "l", Phase.DRAINED),
                e.DrainRequested(2.0, "n", OURS, "v", "cpu"),
            ]
        )
    )
    assert restored(log).fleet.limits is LIMITS and restored(log).fleet.drained_by_us == 1


def slowed(events: Iterable[Event], factor: float) -> list[Event]:
    """The same events over a longer time."""
    times = ("at", "deadline", "valid_until")
    return [
        replace(each, **{name: factor * getattr(each, name) for name in times if hasattr(each, name)})
        for each in events
    ]


async def test_a_snapshot_does_not_grow_and_old_outages_are_in_the_events(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents, "MOST_PAST", 10)
    monkeypatch.setattr(failing, "MOST_OF_A_NODE", 5)
    found = logged(slowed(walked(4, 6000), 200.0))
    end = found[-1].at.timestamp()
    assert end > 2 * 365 * 86400
    whole = PoolLog.of(POOL)
    whole.outages = Outages(float("inf"))
    log, sizes = PoolLog.of(POOL), list[int]()
    log.repairs = Repairs(20, 5, 3)
    quarter = len(found) // 4
    for begin in range(0, 4 * quarter, quarter):
        log = folded(found[begin : begin + quarter], restored(log))
        sizes.append(len(log_folds.zlib.decompress(snapshot_of(log).body)))
    assert sizes[3] < 1.2 * sizes[1], sizes
    folded(found, whole)
    await append(store, found)
    await archive_log(store, POOL, found[-1].at)
    logs = NodeLogs(store)
    complete_since = (await logs.read(POOL)).outages.complete_since
    assert complete_since > end - 365 * 86400
    for since in (0.0, complete_since - 1, complete_since, end - 62 * 86400):
        wanted = [each for each in whole.outages.all if each.end_by(end) > since]
        assert [each for each in await logs.outages(POOL, since) if each.end_by(end) > since] == wanted
    kept = (await logs.read(POOL)).outages.all
    assert len(kept) < len(whole.outages.all) / 2 and await logs.outages(POOL, end - 62 * 86400) == kept


def runs_of_checks(seed: int, runs: int) -> list[LogEvent]:
    """Runs of checks on nodes that start again, of pairs too; some are cut short, some have no report."""
    chance, found = random.Random(seed), list[LogEvent]()
    checks = [each for each in catalogue() if each.program]
    for position in range(1, runs + 1):
        at = 3600.0 * position
        name, other = chance.sample([f"n{number}" for number in range(6)], 2)
        is_pair = chance.random() < 0.4
        verdicts, not_run, measured = list[e.Verdict](), list[NotRun](), list[CheckMeasurement]()
        for check in (each for each in checks if (each.program == "pair") is is_pair):
            value, status = chance.uniform(1, 30), chance.choice(list(Status))
            if chance.random() < 0.3:
                not_run.append(NotRun(check.name, "There is no GPU here"))
                continue
            id = f"{check.name}-{position}"
            verdicts.append(
                e.Verdict(at, name, id, check.name, status, "b", f"{value:.3f}", ">= 2", "x", "1")
            )
            measured.append(CheckMeasurement(check.name, chance.choice(("", "gpu0")), value, check.unit))
        preempted = chance.choice(("", "", "", "job 7"))
        document = Document(name, "b", at, at, verdicts, not_run)
        report = Report(document, measured, 1.0, preempted, 0.5 if preempted else 0.0)
        boots = [chance.choice(("b1", "b2")) for _ in range(2)]
        is_silent = chance.random() < 0.1
        more = {"partner": other, "partner_boot": boots[1]} if is_pair else {"hardware": "cpu/small"}
        run = Run(
            *(name, boots[0], at, None if is_silent else report, "no answer" if is_silent else ""), **more
        )
        found.append(LogEvent(name, datetime.fromtimestamp(at, UTC), encode_run(run), position))
    return found


def said_by(runs: PoolRuns, now: float) -> Any:
    """All that is asked of the runs of a pool."""
    boots, leaves = dict.fromkeys(runs.nodes, "b1"), dict.fromkeys(runs.nodes, "leaf")
    pairs = [list(runs.pairs.answers(name, boots, leaves, now)) for name in runs.nodes]
    own = [(answers(node, name, runs), runs.history(name, "b1")) for name, node in runs.nodes.items()]
    return pairs, own


@pytest.mark.parametrize("seed", range(2))
def test_a_snapshot_of_the_runs_of_checks_at_every_run_loses_nothing(seed: int) -> None:
    live, again = RUNS.begin("p/checks"), RUNS.begin("p/checks")
    found = runs_of_checks(seed, 120)
    for each in found:
        live.take([each])
        again.take([each])
        now = each.at.timestamp()
        assert said_by(again, now) == said_by(live, now), each.position
        live.know(LikeValues(own={("memory_bandwidth", "cpu/small"): [each.position]}), now)
        snapshot = RUNS.snapshot_of(again)
        restored = RUNS.from_snapshot("p/checks", snapshot)
        assert restored is not None and RUNS.from_snapshot("q/checks", snapshot) is None
        assert parts(restored) == parts(again.stored())
        again = restored
        again.know(live.like, now)
    assert live.pairs.met and live.preempted and any(node.values for node in live.nodes.values())


async def test_a_start_reads_the_snapshot_of_the_runs_and_what_came_after_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_folds, "LEAST_EVENTS", 100)
    found = runs_of_checks(2, 150)
    await append(store, found[:120], "p/checks")
    await CheckRuns(store).read("p")
    await append(store, found[120:], "p/checks")
    taken: list[int] = []
    take = PoolRuns.take
    monkeypatch.setattr(
        PoolRuns,
        "take",
        lambda runs, events: (taken.extend(each.position for each in events), take(runs, events)),
    )
    runs = await CheckRuns(store).read("p")
    assert taken == [*range(121, 151)]
    whole = RUNS.begin("p/checks")
    take(whole, found)
    assert parts(runs.stored()) == parts(whole.stored())
    assert said_by(runs, 1e6) == said_by(whole, 1e6)
