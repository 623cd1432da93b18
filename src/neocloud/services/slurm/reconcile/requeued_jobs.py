"""Jobs that were requeued because their node died: start them again, and hold those that nodes die under.

A job may be what its node dies of. So of the jobs of a dead node, the one that started last starts again at
once, and the others when Slurm itself would start them, some seconds later: if the node dies again, they are
not requeued with it. While a job has lost two nodes and is tried again, they wait. A job that has lost three
is held, with the reason in its admin comment, which no user can write.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from neocloud.services.slurm.accounting import JobRun, node_names, runs_of
from neocloud.services.slurm.slurm_records import HELD_PREFIX, SlurmJob
from neocloud.services.slurm.slurmrestd import START_SECONDS, SlurmApi

REQUEUE_DELAY = timedelta(seconds=20)
"""Slurm holds a requeued job back for cred_expire seconds; a later begin time was set by the user."""
MOST_DEATHS = 3
"""Nodes that die under a job before it is held."""
SOON, AT_ONCE = timedelta(seconds=5), timedelta(seconds=START_SECONDS + 1)
MOST_JOBS = 30
"""With more requeued jobs at a time, no culprit is looked for: all start at once."""
MOST_NAMES = 64
_HELD = re.compile(re.escape(HELD_PREFIX) + r"its node died ([0-9]{1,6}) times")
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Deaths:
    """The runs of a job that ended with their node."""

    nodes: Sequence[str] = ()
    """The nodes of each run, as Slurm writes them, oldest first."""
    last_start: datetime = _NEVER
    runs: int = 0
    """Runs of the job, whatever they ended with, as far as the accounting database knows them yet."""

    @property
    def order(self) -> tuple[int, datetime]:
        """The job with the highest starts first."""
        return (len(self.nodes), self.last_start)

    def shares_node_with(self, other: "Deaths") -> bool:
        return bool(self._last & other._last)

    @property
    def _last(self) -> set[str]:
        try:
            return set(node_names(self.nodes[-1], MOST_NAMES)) if self.nodes else set()
        except ValueError:
            return set()


async def restart_requeued_jobs(slurm: SlurmApi, jobs: Iterable[SlurmJob], now: datetime) -> bool:
    """Let jobs of lost nodes start; hold those that lost too many. True while one is still being requeued, or
    waits for another.

    Wait until slurmctld has delivered its messages: the end of the lost run would otherwise reach the
    returned node late and end the new run. Slurm's own delay exists for that.
    """
    jobs = list(jobs)
    held_back = [job for job in jobs if _is_held_back(job, now)]
    if held_back and await slurm.messages_under_way():
        return True
    lost = await _deaths(slurm, [job for job in jobs if _is_of_interest(job, now)])
    held = await _hold_those_that_nodes_die_under(slurm, jobs, lost)
    waits = False
    for job in held_back:
        if job.id in held:
            continue
        if job.restarts >= MOST_DEATHS and job.id in lost and lost[job.id].runs < job.restarts:
            waits = True  # its last end is still on its way to the accounting database
            continue
        before = _first_before(job, jobs, lost, held, now)
        if before is None:
            if job.eligible_at is not None and job.eligible_at > now + AT_ONCE:
                await slurm.start_job_in(job.id, 0)  # once: each call sets the begin time again
            continue
        waits = True
        is_due = job.eligible_at is not None and job.eligible_at < now + SOON
        if is_due and len(lost[before.id].nodes) > 1:
            await slurm.start_job_in(job.id, int(REQUEUE_DELAY.total_seconds()) - 2)
    return waits or any(job.state in {"COMPLETING", "REQUEUED"} for job in jobs)


async def _deaths(slurm: SlurmApi, jobs: Sequence[SlurmJob]) -> Mapping[int, Deaths]:
    if len(jobs) > MOST_JOBS or (len(jobs) < 2 and all(job.restarts < MOST_DEATHS for job in jobs)):
        jobs = _in_turns([job for job in jobs if job.restarts >= MOST_DEATHS])[:MOST_JOBS]
    return {job.id: deaths_in(runs_of(await slurm.accounting_rows(job.id))) for job in jobs}


def _in_turns(jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Return them with one of each user first, then the second ones, and so on: a user may requeue any number
    of jobs by hand, and those of others have to be looked at anyway. For one user, those that start first
    come first."""
    given: Counter[str] = Counter()
    ranked: list[tuple[int, SlurmJob]] = []
    for job in sorted(jobs, key=lambda each: (each.eligible_at or _NEVER, each.id)):
        ranked.append((given[job.user], job))
        given[job.user] += 1
    return [job for _, job in sorted(ranked, key=lambda each: each[0])]


def deaths_in(runs: Iterable[JobRun]) -> Deaths:
    runs = list(runs)
    lost = [run for run in runs if run.state == "NODE_FAIL"]
    last_start = lost[-1].started_at if lost else None
    return Deaths([run.nodes for run in lost], last_start or _NEVER, len(runs))


async def _hold_those_that_nodes_die_under(
    slurm: SlurmApi, jobs: Iterable[SlurmJob], lost: Mapping[int, Deaths]
) -> set[int]:
    """Return the jobs that are held now. One that somebody released is held at the next death again."""
    held: set[int] = set()
    for job in jobs:
        nodes = lost[job.id].nodes if job.id in lost else ()
        known = _HELD.match(job.admin_comment)
        if job.state != "PENDING" or len(nodes) < max(MOST_DEATHS, 1 + int(known[1]) if known else 0):
            continue
        names = ", ".join(nodes[-MOST_DEATHS:])
        await slurm.hold_job(
            job.id,
            f"{HELD_PREFIX}its node died {len(nodes)} times under it (last: {names});"
            f" once the cause is gone: scontrol release {job.id}",
        )
        held.add(job.id)
    return held


def _first_before(
    job: SlurmJob, jobs: Iterable[SlurmJob], lost: Mapping[int, Deaths], held: set[int], now: datetime
) -> SlurmJob | None:
    """Return a job of the same dead node that is to be tried before this one."""
    own = lost.get(job.id)
    for other in jobs if own is not None else ():
        theirs = lost.get(other.id)
        if other.id in held or other.id == job.id or theirs is None or own is None:
            continue
        comes_first = (*theirs.order, other.id) > (*own.order, job.id)
        if comes_first and theirs.shares_node_with(own) and _is_being_tried(other, now):
            return other
    return None


def _is_of_interest(job: SlurmJob, now: datetime) -> bool:
    may_be_held = job.state == "PENDING" and job.restarts >= MOST_DEATHS and not job.is_held
    return may_be_held or (job.restarts > 0 and _is_being_tried(job, now))


def _is_being_tried(job: SlurmJob, now: datetime) -> bool:
    """Return whether it waits to start again, or has run for a few seconds only."""
    is_on_its_way = job.state in {"COMPLETING", "REQUEUED"} and job.restarts > 0
    has_just_started = (
        job.state == "RUNNING" and job.started_at is not None and job.started_at > now - REQUEUE_DELAY
    )
    return is_on_its_way or has_just_started or _is_held_back(job, now)


def _is_held_back(job: SlurmJob, now: datetime) -> bool:
    """Return whether the job was requeued after it lost its node and may not start for a few seconds."""
    if job.state != "PENDING" or not job.restarts or job.eligible_at is None:
        return False
    return now < job.eligible_at <= now + REQUEUE_DELAY and not job.is_held
