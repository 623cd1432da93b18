"""A pool whose nodes are all well looks seldom. What a source finds in the background wakes it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from neocloud.services.fleet import sources
from neocloud.services.fleet.reconcile import WATCH_SECONDS
from neocloud.services.fleet.rules import Window, seconds_to_window
from neocloud.services.fleet.sources import MEASURE_EVERY, Measurements
from neocloud.services.slurm import controller_logs
from neocloud.services.slurm.public import NODE_POOL, Measurement, Worker, WorkersUnreachable
from neocloud.testing.waiting import FakeClock, until
from tests.fast.services.fleet.test_fleet import WatchedCloud
from tests.fast.services.slurm.cloud import fake_cloud

START = datetime(2026, 1, 1, tzinfo=UTC)
WORKER = Worker("worker-0", "worker", (), START, states=frozenset({"IDLE"}), is_registered=True)


@pytest.fixture
async def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchedCloud]:
    monkeypatch.setattr(controller_logs, "CLUSTER_SECONDS", 0.2)
    monkeypatch.setattr(controller_logs, "POOL_SECONDS", 0.1)
    async with fake_cloud(tmp_path) as running:
        yield WatchedCloud(**vars(running))


async def looks_seldom(cloud: WatchedCloud) -> bool:
    due_at = await cloud.running.store.read(lambda tx: tx.next_due([NODE_POOL]))
    return due_at is not None and due_at > datetime.now(UTC) + timedelta(seconds=2 * WATCH_SECONDS)


async def test_a_pool_at_rest_sees_a_drain_by_the_controllers_log(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 1)
    await until(lambda: looks_seldom(cloud), seconds=30)
    await cloud.scontrol("worker-0", "DRAIN", "bad fan")
    await cloud.phase_of("worker-0", "drained")


@dataclass
class Node:
    """Implements what `Measurements` asks of `WorkerNodes`."""

    figures: Sequence[Measurement] = (Measurement("cpu", True, "4 vCPU", ">= 4 vCPU"),)
    problem: str = ""
    asked: int = 0

    async def measure(self, cluster_id: str, worker: str, seconds: float) -> Sequence[Measurement]:
        self.asked += 1
        if self.problem:
            raise WorkersUnreachable(self.problem)
        return self.figures


@dataclass
class Measured:
    node: Node = field(default_factory=Node)
    clock: FakeClock = field(default_factory=FakeClock)
    woken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = Measurements(self.node, self.clock, self.woken.append)  # type: ignore[arg-type]

    @property
    def now(self) -> float:
        return self.clock.now().timestamp()

    async def look(self) -> float:
        """Return when it is to be looked at again."""
        await self.source.verdicts("c", [WORKER], self.now)
        due = self.source.due_in("c", [WORKER], self.now)
        await self.clock.settle()
        return due


async def test_only_a_measurement_that_says_something_new_wakes_the_pool() -> None:
    measured = Measured()
    assert await measured.look() == MEASURE_EVERY, "one that runs is due again after its period"
    assert measured.woken == ["c"], "the first answer is news"
    for _ in range(3):
        await measured.clock.advance(MEASURE_EVERY)
        assert await measured.look() == MEASURE_EVERY
    assert measured.woken == ["c"] and measured.node.asked == 4
    measured.node.figures = (replace(measured.node.figures[0], passed=False),)
    await measured.clock.advance(MEASURE_EVERY)
    await measured.look()
    assert measured.woken == ["c", "c"]
    measured.node.problem = "its probe failed"
    await measured.clock.advance(MEASURE_EVERY)
    await measured.look()
    assert measured.woken == ["c", "c", "c"]
    assert measured.source.due_in("c", [WORKER], measured.now) == sources.MEASURE_AGAIN


async def test_a_requested_measurement_is_due_at_once() -> None:
    measured = Measured()
    await measured.look()
    measured.source.request("c", "worker-0")
    assert measured.source.due_in("c", [WORKER], measured.now) == 0


def test_windows_are_waited_for_to_the_second() -> None:
    window = Window("w", frozenset(), START + timedelta(seconds=30), START + timedelta(seconds=90), "")
    endless = Window("v", frozenset(), START + timedelta(seconds=50), None, "")
    at = START.timestamp()
    assert seconds_to_window([window, endless], at) == 30
    assert seconds_to_window([window, endless], at + 30) == 20
    assert seconds_to_window([window, endless], at + 60) == 30
    assert seconds_to_window([window, endless], at + 90) == float("inf")
