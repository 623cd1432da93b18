"""Find the job that a command names: a number, a task of an array as Slurm writes it (2_0), or the newest
one.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.resources.lookup import ProjectClient
from neocloud.client.errors import ClientError

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import Job

JOBS = "neocloud.slurm.v1.JobService"
_REFERENCE = re.compile(r"([1-9][0-9]{0,9})(?:_([0-9]{1,9}))?")
_SPAN = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")


def _checked(text: str) -> str:
    if text and not _REFERENCE.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not the number of a job, such as 7, or of a task, such as 7_0")
    return text


JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Number of the job; of a task of an array, 7_0.", callback=_checked),
]
NewestJobArgument = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="Number of the job; for a task of an array, 7_0. Default: the job that was submitted last.",
        callback=_checked,
        show_default=False,
    ),
]


def label(job: "Job") -> str:
    """Return the number of a job as Slurm writes it: "7", "7_0", or "7_[3-9]" of tasks that wait together."""
    if not job.array_job_id:
        return str(job.id)
    tasks = job.array_tasks
    return f"{job.array_job_id}_{tasks if tasks.isdigit() else f'[{tasks}]'}"


def find_jobs(cloud: ProjectClient, cluster_id: str, cluster: str, reference: str) -> Sequence["Job"]:
    """Return the job, or all tasks of an array in order. Raises ClientError when there is none."""
    if not reference:
        jobs = list(cloud.client.list_all(f"{JOBS}/List", {"cluster_id": cluster_id}))
        if not jobs:
            raise ClientError(
                "NOT_FOUND",
                f"Cluster {cluster} has run no jobs",
                f"Submit one: neo slurm job submit {quote(cluster)} SCRIPT",
            )
        number = max(_submission(job) for job in jobs)
        return _in_order(job for job in jobs if _submission(job) == number)
    found = _REFERENCE.fullmatch(reference)
    assert found is not None, "The argument was checked."
    number, task = int(found[1]), found[2]
    if task is None:
        with known_job(cluster, reference):
            job: Job = cloud.client.call(f"{JOBS}/Get", {"cluster_id": cluster_id, "job_id": number})
        if job.array_job_id != number:
            return [job]
    jobs = [
        job
        for job in cloud.client.list_all(f"{JOBS}/List", {"cluster_id": cluster_id})
        if job.array_job_id == number and (task is None or _has_task(job.array_tasks, int(task)))
    ]
    if not jobs:
        with known_job(cluster, reference):
            raise ClientError("NOT_FOUND", "", "")
    return _in_order(jobs)


def find_job(cloud: ProjectClient, cluster_id: str, cluster: str, reference: str) -> "Job":
    """Return one job. Raises ClientError also for an array of several."""
    jobs = find_jobs(cloud, cluster_id, cluster, reference)
    if len(jobs) > 1:
        number = jobs[0].array_job_id
        raise ClientError(
            "INVALID_ARGUMENT",
            f"Job {number} is an array of {len(jobs)} tasks",
            f"Name one of them: {', '.join(label(job) for job in jobs[:5])}",
        )
    return jobs[0]


def _submission(job: "Job") -> int:
    """Tasks of an array get numbers of their own when they start, above those of later jobs."""
    return job.array_job_id or job.id


def _in_order(jobs: Iterator["Job"] | Sequence["Job"]) -> list["Job"]:
    def order(job: "Job") -> tuple[int, int]:
        first = _SPAN.match(job.array_tasks)
        return (int(first[1]) if first else 0, job.id)

    return sorted(jobs, key=order)


def _has_task(tasks: str, number: int) -> bool:
    """Return whether Slurm's list of tasks, such as "1,4-9:2%3", has a number in it."""
    for part in tasks.partition("%")[0].split(","):
        if span := _SPAN.fullmatch(part):
            first, last, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
            if first <= number <= last and (number - first) % max(1, step) == 0:
                return True
    return False


@contextmanager
def known_job(cluster: str, job: int | str) -> Generator[None]:
    """Say of a job that the cluster does not know where its jobs are listed."""
    try:
        yield
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
        raise ClientError(
            "NOT_FOUND",
            f"Cluster {cluster} has no job {job}",
            f"`neo slurm job list {quote(cluster)}` lists its jobs",
        ) from error
