# pyright: strict
"""How a service finds the jobs again that it submitted. Pure.

The name, comment and output path of a job are free text: every user of a cluster may give a job those of
another. So a service stores a `Submission` with a new token, submits the job with that token, and then stores
the job's number. The job is one of the user as whom the control plane submits that has the token, and the
number once it is stored. After a crash in between, the job is found by its token, and no other is submitted;
where that happened all the same, the later job is a repeat, to be cancelled (rfd 0072).
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from neocloud.services.slurm.types import BatchJob


@dataclass(frozen=True)
class Submission:
    token: str
    """Empty for a job that an earlier release submitted."""
    job_id: int = 0
    """0 until it is known."""

    @classmethod
    def new(cls) -> "Submission":
        return cls(secrets.token_urlsafe(18))


@dataclass(frozen=True)
class Found:
    job: BatchJob | None
    """None: Slurm has forgotten it, or never got it."""
    repeats: Sequence[BatchJob] = ()
    """Further jobs with its token that have not ended."""


def find(submission: Submission, jobs: Iterable[BatchJob]) -> Found:
    """Return the job of a submission among the jobs of its cluster."""
    same = [job for job in jobs if job.is_of_control_plane and job.submission == submission.token]
    if submission.job_id:
        job = next((each for each in same if each.id == submission.job_id), None)
    else:
        job = min(same, key=lambda each: each.id, default=None) if submission.token else None
    rest = same if submission.token else []
    return Found(job, [each for each in rest if each is not job and not each.has_ended])


def of_earlier_release(jobs: Iterable[BatchJob], belongs: Callable[[BatchJob], bool]) -> list[BatchJob]:
    """Return the jobs of the control plane that were submitted without a token, newest last; an earlier
    release found them by their names alone."""
    found = [job for job in jobs if job.is_of_control_plane and not job.submission and belongs(job)]
    return sorted(found, key=lambda job: job.id)
