"""Texts of `neo slurm job`: times, ends of jobs, and why they wait."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neocloud.cli.commands.slurm.job_lookup import label
from neocloud.cli.progress import duration
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import Job

ACTIVE = {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STAGE_OUT"}
MOST_SHOWN = 3

_REASONS = {
    "Resources": "waits until enough nodes, processors, memory or GPUs are free",
    "Priority": "waits behind jobs of higher priority",
    "Dependency": "waits for the end of a job that it depends on",
    "DependencyNeverSatisfied": "never starts: a job that it depends on ended otherwise; cancel it",
    "BeginTime": "waits for its begin time; a requeued job has one a few seconds ahead",
    "JobHeldUser": "is held by its user; scontrol release lets it start",
    "JobHeldAdmin": "is held by an administrator; scontrol release lets it start",
    "JobArrayTaskLimit": "waits since as many tasks of the array run as may run together",
    "PartitionNodeLimit": "never starts: it asks for more nodes than the partition has",
    "PartitionTimeLimit": "never starts: it asks for more time than the partition gives",
    "PartitionDown": "waits until the partition is up",
    "ReqNodeNotAvail": "waits for nodes that are down, drained or reserved: neo slurm node list",
    "Reservation": "waits for its reservation",
    "Licenses": "waits for licenses",
    "QOSMaxJobsPerUserLimit": "waits since as many jobs of its user run as the QOS allows",
    "AssocGrpGRES": "waits since its account uses as many GPUs as it may",
    "BadConstraints": "was refused: no node of the cluster has the requested resources",
}


def reason_sentence(job: "Job", running: Sequence["Job"] = ()) -> str:
    """Return why a job waits, as a sentence after Slurm's own word; "" without a reason.

    `running`: the jobs that hold what it waits for.
    """
    word = job.reason.partition(":")[0].partition(",")[0].strip()
    if word != job.reason or word not in _REASONS:  # a sentence already, or a word that we do not know
        return job.reason
    text = f"{word}: {_REASONS[word]}"
    if word in ("Resources", "Priority") and running:
        shown = [
            f"{each.name} (job {label(each)}) on {','.join(each.nodes)}" for each in running[:MOST_SHOWN]
        ]
        more = f" and {len(running) - MOST_SHOWN} more" if len(running) > MOST_SHOWN else ""
        text += f". Running now: {', '.join(shown)}{more}"
    return text


def moment(job: "Job", field: str) -> str:
    return f"{contract.to_datetime(getattr(job, field)):%Y-%m-%d %H:%M:%S} UTC" if job.HasField(field) else ""


def elapsed(job: "Job") -> str:
    if not job.HasField("started_at"):
        return ""
    started = contract.to_datetime(job.started_at).timestamp()
    ended = contract.to_datetime(job.finished_at).timestamp() if job.HasField("finished_at") else time.time()
    return duration(max(0.0, ended - started))


def ending(job: "Job") -> str:
    """Return the exit code; the signal, or "-", of a job that did not end by itself: 0 means success."""
    if job.state in ACTIVE:
        return ""
    if job.exit_code or job.state == "COMPLETED":
        return str(job.exit_code)
    return f"signal {job.exit_signal}" if job.exit_signal else "-"


def counts_by_state(jobs: Sequence["Job"]) -> str:
    """ "2 RUNNING, 1 PENDING"."""
    counts = Counter(job.state for job in jobs)
    return ", ".join(f"{number} {state}" for state, number in counts.most_common())
