"""A run that is cut off between an event and its act is made up for, and repeats nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS, Phase, Status, Verdict
from neocloud.fleet.nodes.lifecycle import fold
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.policy.actions import Action, Suite
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.reconcile import act
from neocloud.services.fleet.reconcile.observe import new_events
from neocloud.services.fleet.types import drain_owner, plain
from neocloud.services.slurm.public import LOST_PREFIX, Measurement, Reservation, Worker

START = datetime(2026, 11, 1, tzinfo=UTC)
LATER = datetime(2026, 11, 2, tzinfo=UTC)
WELL = Worker("w-0", "w", (), START, states=frozenset({"IDLE"}), is_registered=True)


@dataclass
class Calls:
    """Implements `WorkerNodes`, and keeps what was asked of it."""

    made: list[tuple[str, ...]] = field(default_factory=list)

    async def look(self, cluster_id: str, node_set: str) -> list[Worker]:
        raise NotImplementedError

    async def drain(self, cluster_id: str, worker: str, reason: str) -> None:
        self.made.append(("drain", worker, reason))

    async def resume(self, cluster_id: str, worker: str) -> None:
        self.made.append(("resume", worker))

    async def restart(self, cluster_id: str, worker: str) -> None:
        self.made.append(("restart", worker))

    async def measure(self, cluster_id: str, worker: str, seconds: float) -> list[Measurement]:
        raise NotImplementedError

    async def run(
        self,
        cluster_id: str,
        worker: str,
        command: Sequence[str],
        stdin: bytes,
        seconds: float,
        most_bytes: int,
    ) -> bytes:
        raise NotImplementedError

    async def reservations(self, cluster_id: str) -> dict[str, Reservation]:
        raise NotImplementedError

    async def reserve(self, cluster_id: str, reservation: Reservation) -> None:
        raise NotImplementedError

    async def cancel_reservation(self, cluster_id: str, name: str) -> None:
        raise NotImplementedError


def worker(*states: str, reason: str = "", started_at: datetime | None = START, **more: object) -> Worker:
    values = {"is_registered": started_at is not None, **more}
    return Worker("w-0", "w", (), started_at, "", frozenset(states), reason, **values)  # type: ignore[arg-type]


def in_service() -> list[e.Event]:
    boot = START.isoformat()
    return [
        e.Registered(1, "w-0", "", "", Phase.DRAINED),
        e.Booted(1, "w-0", boot),
        e.VerificationStarted(2, "w-0", Suite.FULL, 1, 100),
        e.VerificationEnded(3, "w-0", 1, passed=True, valid_until=1e6),
        e.SpareReserved(4, "w-0"),
        e.Attached(5, "w-0"),
        e.Returned(6, "w-0"),
    ]


def failing() -> Verdict:
    boot = START.isoformat()
    return Verdict(7, "w-0", "verdict-1", "cpu", Status.FAIL, boot, "1 vCPU", ">= 2 vCPU", "node report", "1")


def drained() -> list[e.Event]:
    return [*in_service(), failing(), e.DrainRequested(8, "w-0", OURS, "verdict-1", "cpu")]


def rebooting() -> list[e.Event]:
    return [*drained(), e.Drained(9, "w-0"), e.StepStarted(10, "w-0", Action.REBOOT, 2, 190)]


async def follow(state: NodeState, seen: Worker) -> list[tuple[str, ...]]:
    calls = Calls()
    await act.follow(calls, "c", seen, state, None)
    return calls.made


async def test_a_drain_that_was_appended_and_not_done_is_done_once() -> None:
    state = fold("w-0", drained())
    (made,) = await follow(state, WELL)
    assert made[:2] == ("drain", "w-0") and made[2].startswith("neocloud: verdict-1")
    assert await follow(state, worker("IDLE", "DRAIN", reason=made[2])) == []


async def test_a_restart_that_was_done_is_not_repeated() -> None:
    state, calls = fold("w-0", rebooting()), Calls()
    ours = "neocloud: verdict-1"
    assert await act.repair(calls, "c", worker("IDLE", "DRAIN", reason=ours), state, 11) == []
    assert calls.made == [("restart", "w-0")]
    assert await act.repair(calls, "c", worker("DOWN", "DRAIN", started_at=None), state, 12) == []
    back = worker("IDLE", "DRAIN", reason=ours, started_at=LATER)
    (ended,) = await act.repair(calls, "c", back, state, 13)
    assert ended == e.StepEnded(13, "w-0", 2, succeeded=True)
    assert calls.made == [("restart", "w-0")]


async def test_a_worker_with_a_job_is_never_restarted() -> None:
    state, calls = fold("w-0", rebooting()), Calls()
    busy = worker("ALLOCATED", "DRAIN", reason="neocloud: verdict-1", is_busy=True)
    assert await act.repair(calls, "c", busy, state, 11) == [] and calls.made == []


@pytest.mark.parametrize("action", [Action.RESET_GPU, Action.POWER_CYCLE, Action.REIMAGE])
async def test_what_cannot_be_done_to_a_pod_fails(action: Action) -> None:
    log = [*drained(), e.Drained(9, "w-0"), e.StepStarted(10, "w-0", action, 2, 190)]
    (ended,) = await act.repair(Calls(), "c", WELL, fold("w-0", log), 11)
    assert ended == e.StepEnded(11, "w-0", 2, succeeded=False)


@pytest.mark.parametrize("reason", ["bad fan", "", "[neocloud] maintenance of the host at 12:00", "neocloud"])
async def test_only_drains_of_our_own_are_undone(reason: str) -> None:
    state = fold("w-0", in_service())
    assert await follow(state, worker("IDLE", "DRAIN", reason=reason)) == []
    assert await follow(state, worker("IDLE", "DRAIN", reason="neocloud: spare")) == [("resume", "w-0")]
    assert drain_owner(reason) != "" and drain_owner("neocloud: spare") == ""


async def test_a_worker_that_its_cluster_lost_is_not_resumed_before_it_is_verified() -> None:
    lost = worker("IDLE", "DRAIN", reason=LOST_PREFIX + "its pod is gone")
    assert await follow(fold("w-0", in_service()), lost) == []
    other_boot = worker("IDLE", "DRAIN", reason="neocloud: spare", started_at=LATER)
    assert await follow(fold("w-0", in_service()), other_boot) == []


def test_a_tenant_who_drains_and_resumes_fills_no_log() -> None:
    """Root of a cluster may set reasons as fast as it likes, and write what it likes into them."""
    log = PoolLog.of("pool")
    for event in in_service():
        log.fleet.apply(event)
    count = 0
    for second in range(600):
        reason = "x\n\x1b[31m" * 1000 if second % 2 else ""
        seen = worker("IDLE", *(["DRAIN"] if second % 2 else []), reason=reason)
        found = new_events(log, "project", [seen], [], 100.0 + second)
        count += len(found)
        for event in found:
            log.fleet.apply(event)
            evidence = getattr(event, "evidence", "")
            assert len(evidence) <= 180 and evidence.isprintable()
    assert count <= 3 * 600 / 60 + 3
    assert plain("\x00" * 5000) == ""
