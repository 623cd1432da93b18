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
from neocloud.services.slurm.reconcile.nodes import has_settled, lost_under_jobs, restart_requeued_jobs
from neocloud.services.slurm.reconcile.scope import Scope
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
    """The part of SlurmApi that is asked, over jobs that somebody lists. It has no accounting database."""

    def __init__(self, *jobs: SlurmJob, messages: int = 0) -> None:
        self._jobs = jobs
        self._messages = messages
        self.started: list[int] = []

    async def jobs(self) -> tuple[SlurmJob, ...]:
        return self._jobs

    async def messages_under_way(self) -> int:
        return self._messages

    async def start_job_now(self, job_id: int) -> None:
        self.started.append(job_id)


async def restarted(queue: Any) -> tuple[list[int], bool]:
    is_recovering = await restart_requeued_jobs(queue, await queue.jobs(), NOW)
    return queue.started, is_recovering


async def test_a_job_that_slurm_holds_back_starts_now() -> None:
    assert await restarted(Queue(job(1))) == ([1], False)


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
    scope = cast(Scope, SimpleNamespace(workers=pods, observation=SimpleNamespace(pod=pods.get)))
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
    assert has_settled(cast(Scope, scope)) is is_settled
