"""Findings of a readiness check: what keeps a job to its share of a node. Pure.

Where the machine has control groups of version 2 and hands them to workers, the kernel keeps a job to its
memory and CPUs; elsewhere in part only. Where a job can take more than it was given, the verdict is
not_enforced, never pass.
"""

from collections.abc import Mapping, Sequence

from neocloud.services.slurm.api.findings import (
    MOST,
    NOT_ENFORCED,
    NOT_RUN,
    PASS,
    JobReport,
    NodeFinding,
    NodeReport,
)

OPEN_FILES = 65_536
"""Chosen by us: data loaders and communication libraries open some for each rank and file."""

JOB_MIB = 64
"""The memory that the job of the check requests on each node."""
NO_GROUPS_FILE = "/run/neocloud/no-cgroups"
"""File of a worker with the reason why jobs have no control groups there."""
CURE = (
    "The kernel limits jobs on machines with control groups of version 2 alone (kernel option "
    "systemd.unified_cgroup_hierarchy=1) and the container runtime crun; start the workers again after that."
)
HOMES = NodeFinding(
    "",
    "home size",
    NOT_ENFORCED,
    "no limit for each user",
    "limit for each user",
    "Files in one user's home can fill the shared root, which has a size as a whole only.",
)
GPUS = NodeFinding(
    "",
    "job GPUs",
    NOT_ENFORCED,
    "CUDA_VISIBLE_DEVICES",
    "other devices refused",
    "Programs use the GPUs of their job unless they set this variable themselves: a worker has no right to "
    "make the kernel refuse devices. Where that matters, let jobs have whole nodes (--exclusive).",
)


def lacks_groups(jobs: Sequence[JobReport]) -> list[str]:
    """Return the nodes on which the kernel does not keep a job to its memory."""
    return [job.node for job in jobs if job.memory_bytes > JOB_MIB << 20]


def confinement_findings(
    jobs: Sequence[JobReport], nodes: Mapping[str, NodeReport], *, has_gpus: bool, why: str = ""
) -> list[NodeFinding]:
    """Judge what a job with one CPU and JOB_MIB of memory on each node found. Each finding is of all nodes.

    `why` says why jobs have no control groups of their own, "" where that is not known.
    """
    cause = (f"{why[:1].upper()}{why[1:]}. {CURE}" if why else CURE) if lacks_groups(jobs) else ""
    return [
        _cpus(jobs, cause),
        _memory(jobs, cause),
        _processes(jobs),
        _folders(jobs, nodes),
        _limits(jobs),
        HOMES,
        *([GPUS] if has_gpus else []),
    ]


def confinement_not_run(reason: str) -> list[NodeFinding]:
    return [NodeFinding("", "job confinement", NOT_RUN, message=reason)]


def _memory(jobs: Sequence[JobReport], cause: str) -> NodeFinding:
    threshold, lacking = f"<= {JOB_MIB} MiB, as requested", lacks_groups(jobs)
    if not lacking:
        most = max(job.memory_bytes for job in jobs) / 2**20
        return NodeFinding("", "job memory", PASS, f"limit of {most:g} MiB", threshold)
    message = (
        f"On {', '.join(lacking)} Slurm measures a job every 2 s and ends it when it is over its memory; "
        f"until then it can take the memory of other jobs. {cause}"
    )
    return NodeFinding("", "job memory", NOT_ENFORCED, "no limit of the kernel", threshold, message)


def _cpus(jobs: Sequence[JobReport], cause: str) -> NodeFinding:
    used = max(job.cpus for job in jobs)
    most = max(used, *(job.reachable_cpus for job in jobs))
    verdict, message = PASS, ""
    if used > 1:
        verdict, message = NOT_ENFORCED, f"Programs of a job use the CPUs of other jobs on its node. {cause}"
    elif most > 1:
        verdict = NOT_ENFORCED
        message = (
            f"Programs keep to the CPUs of their job unless they change their affinity themselves. {cause}"
        )
    message = message.strip()
    measured = f"{used:g} used, {most:g} usable"
    return NodeFinding("", "job CPUs", verdict, measured, "1, as requested", message)


def _processes(jobs: Sequence[JobReport]) -> NodeFinding:
    """The limit of processes counts those of a user, so it is never one of a job."""
    least = min(job.processes for job in jobs)
    message = "A user's jobs on a node share this limit; other users and Slurm's daemons have their own."
    return NodeFinding(
        "", "job processes", NOT_ENFORCED, f"{_limit(least)} for each user", "limit for each job", message
    )


def _folders(jobs: Sequence[JobReport], nodes: Mapping[str, NodeReport]) -> NodeFinding:
    shared = [job.node for job in jobs if not _has_own_folders(job, nodes.get(job.node))]
    verdict, measured, message = PASS, "own", ""
    if shared:
        verdict, measured = NOT_ENFORCED, "shared"
        message = (
            f"Jobs on {', '.join(shared)} see each other's files in /tmp or /dev/shm, and can fill them."
        )
    return NodeFinding("", "job /tmp and /dev/shm", verdict, measured, "own", message)


def _has_own_folders(job: JobReport, node: NodeReport | None) -> bool:
    """Return whether neither folder is the one that programs outside jobs see; False if unknown."""
    return node is not None and job.tmp_device != node.tmp_device and job.shm_device != node.shm_device


def _limits(jobs: Sequence[JobReport]) -> NodeFinding:
    files = min(job.open_files for job in jobs)
    locked = min(job.locked_bytes for job in jobs)
    is_enough = files >= OPEN_FILES and locked >= MOST
    locked_text = "no limit" if locked >= MOST else f"{locked / 2**20:g} MiB"
    message = (
        ""
        if is_enough
        else "This host lets containers have no more: raise its limits (ulimit -n, ulimit -l)."
    )
    return NodeFinding(
        "",
        "job limits",
        PASS if is_enough else NOT_ENFORCED,
        f"{_limit(files)} open files, {locked_text} of locked memory",
        f">= {OPEN_FILES} open files, no limit of locked memory",
        message,
    )


def _limit(value: float) -> str:
    return "no limit" if value >= MOST else f"{value:.0f}"
