"""SLURM-20: the job of a lost worker starts again at once, but not before Slurm has told its end.

And the list of the jobs that wait or run.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.batch_jobs import ClusterJobs
from neocloud.services.slurm.reconcile.nodes import has_settled, lost_under_jobs
from neocloud.services.slurm.reconcile.requeued_jobs import MOST_JOBS, restart_requeued_jobs
from neocloud.services.slurm.reconcile.scope import ClusterScope
from neocloud.services.slurm.slurm_records import SlurmJob

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def job(number: int, **changes: Any) -> SlurmJob:
    fields: dict[str, Any] = {
        "id": number,
        "name": "train",
        "user": "root",
        "state": "PENDING",
        "reason": "BeginTime",
        "nodes": (),
        "submitted_at": NOW,
        "eligible_at": NOW + timedelta(seconds=15),
        "started_at": None,
        "finished_at": None,
        "exit_code": 0,
        "output_path": "",
        "restarts": 1,
        "partition": "main",
    }
    return SlurmJob(**fields | changes)


class Queue:
    """The part of SlurmApi that is asked, over jobs that somebody lists."""

    def __init__(self, *jobs: SlurmJob, messages: int = 0) -> None:
        self._jobs = jobs
        self._messages = messages
        self.started: list[int] = []
        self.postponed: list[int] = []
        self.held: dict[int, str] = {}
        self.runs: dict[int, list[dict[str, Any]]] = {}
        """By number of the job: its runs in the accounting database."""

    async def jobs(self) -> tuple[SlurmJob, ...]:
        return self._jobs

    async def messages_under_way(self) -> int:
        return self._messages

    async def start_job_in(self, job_id: int, seconds: int) -> None:
        (self.postponed if seconds else self.started).append(job_id)

    async def hold_job(self, job_id: int, why: str) -> None:
        self.held[job_id] = why

    async def accounting_rows(self, job_id: int) -> list[dict[str, Any]]:
        return self.runs.get(job_id, [])


async def restarted(queue: Any) -> tuple[list[int], bool]:
    is_recovering = await restart_requeued_jobs(queue, await queue.jobs(), NOW)
    return queue.started, is_recovering


async def test_a_job_that_slurm_holds_back_starts_now() -> None:
    assert await restarted(Queue(job(1))) == ([1], False)


async def test_a_job_that_starts_in_a_moment_is_not_put_off_again() -> None:
    assert await restarted(Queue(job(1, eligible_at=NOW + timedelta(seconds=2)))) == ([], False)


async def test_it_waits_while_slurm_has_something_to_deliver() -> None:
    assert await restarted(Queue(job(1), messages=1)) == ([], True)


@pytest.mark.parametrize(
    "changes",
    [{"restarts": 0}, {"state": "RUNNING"}, {"eligible_at": NOW + timedelta(hours=1)}, {"eligible_at": None}],
)
async def test_a_job_that_waits_for_another_reason_is_left_alone(changes: dict[str, Any]) -> None:
    assert await restarted(Queue(job(1, **changes), messages=1)) == ([], False)


async def test_a_job_on_its_way_back_to_the_queue_is_looked_at_again() -> None:
    assert await restarted(Queue(job(1, state="COMPLETING"))) == ([], True)


def died(*nodes: str, at: int = 0, state: str = "NODE_FAIL") -> list[dict[str, Any]]:
    """Runs of a job that ended with these nodes, the last of which started at this second."""
    start = NOW.timestamp() - 600
    return [
        {"state": {"current": [state]}, "nodes": each, "time": {"start": start + number + at}}
        for number, each in enumerate(nodes)
    ]


async def test_a_job_that_three_nodes_died_under_is_held_with_the_reason() -> None:
    queue = Queue(job(7, restarts=3))
    queue.runs = {7: died("worker-0", "worker-1", "worker-0")}
    assert await restarted(queue) == ([], False)
    assert queue.held[7].startswith("neocloud: held: its node died 3 times under it (last: worker-0, w")
    assert "scontrol release 7" in queue.held[7]
    held = job(7, reason="JobHeldAdmin", admin_comment=queue.held[7])
    assert held.reason_text.startswith("JobHeldAdmin: its node died 3 times under it")


@pytest.mark.parametrize("state", ["PREEMPTED", "REQUEUED", "FAILED", "CANCELLED"])
async def test_what_requeued_it_otherwise_does_not_count(state: str) -> None:
    queue = Queue(job(7, restarts=5))
    queue.runs = {7: died("worker-0", "worker-0") + died("worker-0", "worker-0", "worker-0", state=state)}
    assert await restarted(queue) == ([7], False) and not queue.held


@pytest.mark.parametrize(("deaths", "is_held"), [(3, False), (4, True)])
async def test_a_job_that_was_released_is_held_at_its_next_death(deaths: int, is_held: bool) -> None:
    comment = "neocloud: held: its node died 3 times under it (last: worker-0)"
    queue = Queue(job(7, restarts=deaths, admin_comment=comment))
    queue.runs = {7: died(*["worker-0"] * deaths)}
    await restarted(queue)
    assert bool(queue.held) == is_held


async def test_a_death_that_accounting_does_not_know_yet_is_waited_for() -> None:
    queue = Queue(job(7, restarts=3))
    queue.runs = {7: died("worker-0", "worker-0")}
    assert await restarted(queue) == ([], True) and not queue.held


async def test_jobs_that_another_user_requeued_by_hand_keep_none_from_being_held() -> None:
    by_hand = {"restarts": 9, "user": "mallory", "eligible_at": NOW + timedelta(days=1)}
    queue = Queue(*(job(number, **by_hand) for number in range(1, 2 * MOST_JOBS)), job(900, restarts=3))
    queue.runs = {900: died("worker-0", "worker-1", "worker-0")}
    await restarted(queue)
    assert list(queue.held) == [900]


async def test_of_a_user_the_jobs_that_start_soon_are_looked_at_first() -> None:
    later = {"restarts": 9, "eligible_at": NOW + timedelta(days=1)}
    queue = Queue(*(job(number, **later) for number in range(1, 2 * MOST_JOBS)), job(900, restarts=3))
    queue.runs = {900: died("worker-0", "worker-1", "worker-0")}
    await restarted(queue)
    assert list(queue.held) == [900]


async def test_a_job_with_a_comment_of_its_user_is_held_all_the_same() -> None:
    queue = Queue(job(7, restarts=3, comment="neocloud: held: its node died 99 times under it"))
    queue.runs = {7: died(*["worker-0"] * 3)}
    await restarted(queue)
    assert 7 in queue.held


async def test_of_the_jobs_of_a_dead_node_the_last_one_starts_first() -> None:
    queue = Queue(job(1), job(2), job(3), job(4))
    queue.runs = {1: died("worker-0"), 2: died("worker-0", at=9), 3: died("worker-1"), 4: []}
    assert await restarted(queue) == ([2, 3, 4], True)
    assert not queue.postponed  # Slurm starts it in its own time


async def test_the_others_wait_while_a_job_that_lost_two_nodes_is_tried_again() -> None:
    """So they are requeued once, and not with each of its nodes."""
    soon = NOW + timedelta(seconds=1)
    for killer in (job(1, restarts=2), job(1, restarts=2, state="RUNNING", started_at=NOW)):
        queue = Queue(killer, job(2, eligible_at=soon), job(3))
        queue.runs = {1: died("worker-[0-1]", "worker-0"), 2: died("worker-0"), 3: died("worker-0")}
        started, is_recovering = await restarted(queue)
        assert started == ([1] if killer.state == "PENDING" else []) and is_recovering
        assert queue.postponed == [2]
    queue = Queue(job(1, restarts=3), job(2, eligible_at=soon), job(3))
    queue.runs = {1: died("worker-0", "worker-0", "worker-0"), 2: died("worker-0"), 3: died("worker-0", at=9)}
    assert await restarted(queue) == ([3], True)  # the first is held; of the others the last one starts first
    assert list(queue.held) == [1]


async def test_a_job_that_has_run_for_a_while_again_keeps_nobody_waiting() -> None:
    long_ago = NOW - timedelta(seconds=30)
    queue = Queue(job(1, restarts=2, state="RUNNING", started_at=long_ago), job(2))
    queue.runs = {1: died("worker-0", "worker-0"), 2: died("worker-0")}
    assert await restarted(queue) == ([2], False)


async def test_of_very_many_requeued_jobs_none_is_looked_for() -> None:
    queue = Queue(*(job(number) for number in range(1, MOST_JOBS + 2)))
    queue.runs = {number: died("worker-0", at=number) for number in range(1, MOST_JOBS + 2)}
    assert len((await restarted(queue))[0]) == MOST_JOBS + 1


class Access:
    """The part of SlurmAccess that lists jobs."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    @asynccontextmanager
    async def ready_api(self, cluster_id: str) -> AsyncIterator[Queue]:
        yield self._queue


async def test_jobs_that_wait_or_run_are_listed_without_the_history() -> None:
    states = {4: "STAGE_OUT", 3: "COMPLETED", 2: "RUNNING", 1: "PENDING"}
    queue = Queue(*(job(number, state=state) for number, state in states.items()))
    jobs = ClusterJobs(cast(SlurmAccess, Access(queue)))
    assert [each.id for each in await jobs.active_jobs("slurmcluster-e00bank")] == [1, 2, 4]


@pytest.mark.parametrize(
    ("changes", "is_lost"),
    [
        ({}, True),
        ({"state": "SUSPENDED"}, True),
        ({"state": "PENDING"}, False),
        ({"state": "COMPLETED"}, False),
        ({"nodes": ("worker-1",)}, False),
        ({"nodes": ("worker-1", "worker-0")}, True),
        ({"started_at": NOW}, False),
        ({"started_at": None}, False),
    ],
)
def test_a_worker_that_started_after_its_job_was_lost_with_it(changes: dict[str, Any], is_lost: bool) -> None:
    """However often it was restarted since the control plane last saw it."""
    pods = {
        "worker-0": SimpleNamespace(started_at=NOW + timedelta(seconds=0.9)),
        "worker-1": SimpleNamespace(started_at=NOW - timedelta(hours=1)),
    }
    scope = cast(ClusterScope, SimpleNamespace(workers=pods, observation=SimpleNamespace(pod=pods.get)))
    running = {"state": "RUNNING", "nodes": ("worker-0",), "started_at": NOW - timedelta(seconds=1)}
    assert bool(lost_under_jobs(scope, [job(7, **running | changes)])) is is_lost


@pytest.mark.parametrize(
    ("minutes", "is_settled"),
    [
        ({"controller-0": 6, "worker-0": 60}, True),
        ({"controller-0": 6, "worker-0": 4}, False),
        ({"controller-0": 4, "worker-0": 60}, False),
        ({"controller-0": 6}, False),
    ],
)
def test_jobs_are_not_read_once_all_nodes_have_run_for_minutes(
    minutes: dict[str, int], is_settled: bool
) -> None:
    pods = {
        name: SimpleNamespace(started_at=NOW - timedelta(minutes=since)) for name, since in minutes.items()
    }
    scope = SimpleNamespace(
        controllers=("controller-0",),
        workers={"worker-0": "cpu"},
        observation=SimpleNamespace(pod=pods.get),
        context=SimpleNamespace(now=NOW),
    )
    assert has_settled(cast(ClusterScope, scope)) is is_settled
