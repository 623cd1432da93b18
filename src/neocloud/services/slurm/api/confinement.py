"""Findings of a readiness check: what keeps a job to its share of a node. Pure.

Containers that cannot hand a cgroup of its own to each job keep it to its share in part only. Where a job can
take more than it was given, the verdict is not_enforced, never pass.
"""

from collections.abc import Mapping, Sequence

from neocloud.services.slurm.api.findings import (
    MOST,
    NOT_ENFORCED,
    NOT_RUN,
    PASS,
    Finding,
    JobReport,
    NodeReport,
)

OPEN_FILES = 65_536
"""Chosen by us: data loaders and communication libraries open some for each rank and file."""

MEMORY = Finding(
    "",
    "job memory",
    NOT_ENFORCED,
    "measured every 2 s",
    "limit of the kernel",
    "Slurm ends a job that is over its memory; until then it can take the memory of other jobs on its node.",
)
HOMES = Finding(
    "",
    "home size",
    NOT_ENFORCED,
    "no limit for each user",
    "limit for each user",
    "Files in one user's home can fill the shared root, which has a size as a whole only.",
)
GPUS = Finding(
    "",
    "job GPUs",
    NOT_ENFORCED,
    "CUDA_VISIBLE_DEVICES",
    "other devices refused",
    "Programs use the GPUs of their job unless they set this variable themselves.",
)


def confinement_findings(
    jobs: Sequence[JobReport], nodes: Mapping[str, NodeReport], *, has_gpus: bool
) -> list[Finding]:
    """Judge what a job with one CPU on each node found. Each finding is of all nodes."""
    return [
        _cpus(jobs),
        MEMORY,
        _processes(jobs),
        _folders(jobs, nodes),
        _limits(jobs),
        HOMES,
        *([GPUS] if has_gpus else []),
    ]


def confinement_not_run(reason: str) -> list[Finding]:
    return [Finding("", "job confinement", NOT_RUN, message=reason)]


def _cpus(jobs: Sequence[JobReport]) -> Finding:
    used = max(job.cpus for job in jobs)
    most = max(used, *(job.reachable_cpus for job in jobs))
    verdict, message = PASS, ""
    if used > 1:
        verdict, message = NOT_ENFORCED, "Programs of a job use the CPUs of other jobs on its node."
    elif most > 1:
        verdict = NOT_ENFORCED
        message = "Programs keep to the CPUs of their job unless they change their affinity themselves."
    measured = f"{used:g} used, {most:g} usable"
    return Finding("", "job CPUs", verdict, measured, "1, as requested", message)


def _processes(jobs: Sequence[JobReport]) -> Finding:
    """The limit of processes counts those of a user, so it is never one of a job."""
    least = min(job.processes for job in jobs)
    message = "A user's jobs on a node share this limit; other users and Slurm's daemons have their own."
    return Finding(
        "", "job processes", NOT_ENFORCED, f"{_limit(least)} for each user", "limit for each job", message
    )


def _folders(jobs: Sequence[JobReport], nodes: Mapping[str, NodeReport]) -> Finding:
    shared = [job.node for job in jobs if not _has_own_folders(job, nodes.get(job.node))]
    verdict, measured, message = PASS, "own", ""
    if shared:
        verdict, measured = NOT_ENFORCED, "shared"
        message = (
            f"Jobs on {', '.join(shared)} see each other's files in /tmp or /dev/shm, and can fill them."
        )
    return Finding("", "job /tmp and /dev/shm", verdict, measured, "own", message)


def _has_own_folders(job: JobReport, node: NodeReport | None) -> bool:
    """Whether neither folder is the one that programs outside jobs see; False where that is not known."""
    return node is not None and job.tmp_device != node.tmp_device and job.shm_device != node.shm_device


def _limits(jobs: Sequence[JobReport]) -> Finding:
    files = min(job.open_files for job in jobs)
    locked = min(job.locked_bytes for job in jobs)
    is_enough = files >= OPEN_FILES and locked >= MOST
    locked_text = "no limit" if locked >= MOST else f"{locked / 2**20:g} MiB"
    message = (
        ""
        if is_enough
        else "This host lets containers have no more: raise its limits (ulimit -n, ulimit -l)."
    )
    return Finding(
        "",
        "job limits",
        PASS if is_enough else NOT_ENFORCED,
        f"{_limit(files)} open files, {locked_text} of locked memory",
        f">= {OPEN_FILES} open files, no limit of locked memory",
        message,
    )


def _limit(value: float) -> str:
    return "no limit" if value >= MOST else f"{value:.0f}"
