"""`neo slurm job`: batch jobs without ssh, read from Slurm itself."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.slurm.job_lookup import (
    JOBS,
    JobArgument,
    NewestJobArgument,
    find_job,
    find_jobs,
    known_job,
    label,
)
from neocloud.cli.commands.slurm.job_text import (
    ACTIVE,
    counts_by_state,
    elapsed,
    ending,
    moment,
    reason_sentence,
)
from neocloud.cli.lazy import Options, command_group
from neocloud.cli.machine.home import is_emulated
from neocloud.cli.output import Format, JsonObject, OutputOption, fields_table, say, show, table
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument, ProjectClient
from neocloud.cli.terminal import echo, write_bytes
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import Job

POLL_SECONDS = 0.5

app = command_group(
    """Batch jobs of a cluster, without ssh.

Examples:

  neo slurm job submit lab train.sbatch --wait
  neo slurm job logs lab 7 --follow
"""
)


def _batch(
    script: Annotated[Path, typer.Argument(help="Batch script with #SBATCH lines; `-` reads it from stdin.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script.", show_default=False)
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the job. Default: what the script says, else its file's name.")
    ] = "",
    chdir: Annotated[
        str,
        typer.Option(
            help="Working directory on the cluster. Default: what the script says, else /home/shared."
        ),
    ] = "",
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Environment variable of the job; repeatable."),
    ] = None,
    dependency: Annotated[str, typer.Option(help="Dependency in Slurm's form, for example afterok:12.")] = "",
) -> JsonObject:
    return {
        "script": _read_script(script),
        "name": name,
        "file_name": "" if str(script) == "-" else script.stem,
        "working_directory": chdir,
        "environment": dict(_variable(item) for item in env or ()),
        "arguments": arguments or [],
        "dependency": dependency,
    }


@app.command()
def submit(
    cloud: Cloud,
    cluster: ClusterArgument,
    batch: Annotated[JsonObject, Options(_batch)],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job ends; fail if it fails.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print its output until it ends; fail if it fails.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Submit a batch script from your own machine.

    Examples:

      neo slurm job submit lab train.sbatch
      neo slurm job submit lab train.sbatch --wait -- --epochs 3
      neo slurm job submit lab train.sbatch --follow
      neo slurm job submit lab evaluate.sbatch --dependency afterok:12
    """
    if is_emulated(cloud.profile):
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Cluster {cluster} is emulated: no Slurm runs, so it takes no jobs",
            "For real clusters start a cloud with `neo up`",
        )
    cluster_id: str = cloud.find(CLUSTERS, cluster).metadata.id
    request = {"cluster_id": cluster_id, **batch}
    job_id = cloud.client.call(f"{JOBS}/Submit", request).job_id
    if output is Format.TABLE:
        (say if follow else echo)(f"Submitted job {job_id}")
    job = _ended(cloud, cluster_id, cluster, job_id, follow=follow) if wait or follow else None
    if output is not Format.TABLE:
        show(output, {"job_id": job_id} if job is None else contract.to_document(job), fields_table(()))
    if job is not None and job.state != "COMPLETED":
        raise ClientError(
            "ABORTED",
            f"Job {job_id} ended as {job.state}",
            f"See its output: neo slurm job logs {quote(cluster)} {job_id}",
        )


@app.command("list")
def list_jobs(
    cloud: Cloud,
    cluster: ClusterArgument,
    active: Annotated[bool, typer.Option("--active", help="List only jobs that wait or run.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the jobs of a cluster, including those that have ended.

    Examples:

      neo slurm job list lab
      neo slurm job list lab --active
    """
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    listed = cloud.client.list_all(f"{JOBS}/List", {"cluster_id": cluster_id, "active_only": active})
    jobs = [job for job in listed if not active or job.state in ACTIVE]  # an earlier release lists all
    rows = (
        (
            *(label(job), job.name, job.user, job.state, elapsed(job)),
            *(",".join(job.nodes) or job.reason, ending(job)),
        )
        for job in jobs
    )
    show(
        output,
        [contract.to_document(job) for job in jobs],
        table(
            ["ID", "NAME", "USER", "STATE", "TIME", "NODES OR REASON", "EXIT"],
            rows,
            right=["ID", "TIME", "EXIT"],
        ),
        empty=f"Cluster {cluster} {'runs' if active else 'has run'} no jobs."
        f" Submit one: neo slurm job submit {quote(cluster)} SCRIPT",
    )


@app.command()
def get(
    cloud: Cloud, cluster: ClusterArgument, job: NewestJobArgument = "", output: OutputOption = Format.TABLE
) -> None:
    """Show one job.

    Example:

      neo slurm job get lab 7
    """
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    jobs = find_jobs(cloud, cluster_id, cluster, job)
    if len(jobs) > 1:
        _show_array(jobs, output)
        return
    found = jobs[0] if job else _get(cloud, cluster_id, jobs[0].id)
    running: Sequence[Job] = ()
    if found.state == "PENDING" and output is Format.TABLE:
        active = cloud.client.list_all(f"{JOBS}/List", {"cluster_id": cluster_id, "active_only": True})
        running = [each for each in active if each.state == "RUNNING"]
    rows = [
        ("Id", label(found)),
        ("Name", found.name),
        ("User", found.user),
        ("State", found.state),
        ("Reason", reason_sentence(found, running)),
        ("Nodes", ", ".join(found.nodes)),
        ("Submitted", moment(found, "submitted_at")),
        ("Expected start", moment(found, "expected_start_at")),
        ("Started", moment(found, "started_at")),
        ("Finished", moment(found, "finished_at")),
        ("Time", elapsed(found)),
        ("Exit code", ending(found)),
        ("Restarts", found.restarts),
        *(("Requeued", each) for each in found.requeues),
        ("Output", found.output_path),
    ]
    show(output, contract.to_document(found), fields_table(rows))


def _show_array(jobs: Sequence["Job"], output: Format) -> None:
    number = jobs[0].array_job_id
    rows = [
        (label(job), job.state, elapsed(job), ",".join(job.nodes) or job.reason, ending(job)) for job in jobs
    ]
    if output is Format.TABLE:
        say(f"Job {number} ({jobs[0].name}) is an array: {counts_by_state(jobs)}.")
    show(
        output,
        {"array_job_id": number, "tasks": [contract.to_document(job) for job in jobs]},
        table(["ID", "STATE", "TIME", "NODES OR REASON", "EXIT"], rows, right=["ID", "TIME", "EXIT"]),
    )


@app.command()
def logs(
    cloud: Cloud,
    cluster: ClusterArgument,
    job: NewestJobArgument = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
) -> None:
    """Print a job's output; with --follow, as it is written.

    Examples:

      neo slurm job logs lab --follow      # of the newest job
      neo slurm job logs lab 7
    """
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    jobs = find_jobs(cloud, cluster_id, cluster, job)
    for each in jobs:
        if not job or len(jobs) > 1:
            say(f"Job {label(each)} ({each.name}):")
        _print_log(cloud, cluster_id, cluster, each.id, follow=follow)


def _print_log(cloud: ProjectClient, cluster_id: str, cluster: str, job_id: int, *, follow: bool) -> None:
    state = _StateLine(cloud, cluster_id, job_id)
    offset = 0
    while True:
        request = {"cluster_id": cluster_id, "job_id": job_id, "offset": offset}
        with known_job(cluster, job_id):
            piece = cloud.client.call(f"{JOBS}/ReadLog", request)
        write_bytes(piece.data)
        offset = piece.next_offset
        if piece.is_complete or not (follow or piece.data):
            if not offset:
                say(f"Job {job_id} has printed nothing{'' if piece.is_complete else ' yet'}.")
            return
        if not piece.data:
            state.show()
            time.sleep(POLL_SECONDS)


@app.command()
def cancel(cloud: Cloud, cluster: ClusterArgument, job: JobArgument) -> None:
    """Cancel a waiting or running job, an array, or a task of one.

    Examples:

      neo slurm job cancel lab 7
      neo slurm job cancel lab 8_0
    """
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    number = int(job) if job.isdigit() else _task_alone(cloud, cluster_id, cluster, job)
    with known_job(cluster, job):
        cloud.client.call(f"{JOBS}/Cancel", {"cluster_id": cluster_id, "job_id": number})
    echo(f"Job {job} is cancelled.")


def _task_alone(cloud: ProjectClient, cluster_id: str, cluster: str, reference: str) -> int:
    """Return the number of a task that has one of its own."""
    task = find_job(cloud, cluster_id, cluster, reference)
    if not task.array_tasks.isdigit():
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Task {reference} waits together with others: {label(task)}",
            f"Cancel all: neo slurm job cancel {quote(cluster)} {task.array_job_id};"
            f" or this one, on the login node: scancel {reference}",
        )
    return task.id


class _StateLine:
    """Prints a job's state to stderr whenever it changes."""

    def __init__(
        self, cloud: ProjectClient, cluster_id: str, job_id: int, clock: Callable[[], float] = time.monotonic
    ):
        self.cloud, self.cluster_id, self.job_id, self.clock = cloud, cluster_id, job_id, clock
        self.started, self.said = clock(), ""

    def show(self) -> "Job":
        job = _get(self.cloud, self.cluster_id, self.job_id)
        text = f"{job.state} ({reason_sentence(job)})" if job.state == "PENDING" and job.reason else job.state
        if text != self.said:
            nodes = f" on {','.join(job.nodes)}" if job.nodes else ""
            say(f"Job {job.id}: {text}{nodes} after {duration(self.clock() - self.started)}")
        self.said = text
        return job


def _ended(cloud: ProjectClient, cluster_id: str, cluster: str, job_id: int, *, follow: bool) -> "Job":
    """Return the job once it has ended, of an array the task that failed first; with `follow`, its output is
    printed until then."""
    line = _StateLine(cloud, cluster_id, job_id)
    try:
        job = line.show()
        is_array = job.array_job_id == job_id
        if follow and is_array:
            say(f"Job {job_id} is an array. Its output: neo slurm job logs {quote(cluster)} {job_id}_0")
        elif follow:
            _print_log(cloud, cluster_id, cluster, job_id, follow=True)
        while job.state in ACTIVE:
            time.sleep(POLL_SECONDS)
            job = line.show()
        return _array_ended(cloud, cluster_id, cluster, job_id) if is_array else job
    except KeyboardInterrupt:
        known_as = quote(cluster)
        say(
            f"Job {job_id} keeps running. Follow it: neo slurm job logs {known_as} {job_id} --follow;"
            f" cancel it: neo slurm job cancel {known_as} {job_id}"
        )
        raise


def _array_ended(cloud: ProjectClient, cluster_id: str, cluster: str, job_id: int) -> "Job":
    while True:
        tasks = find_jobs(cloud, cluster_id, cluster, str(job_id))
        if not any(task.state in ACTIVE for task in tasks):
            return next((task for task in tasks if task.state != "COMPLETED"), tasks[0])
        time.sleep(POLL_SECONDS)


def _get(cloud: ProjectClient, cluster_id: str, job_id: int) -> "Job":
    return cloud.client.call(f"{JOBS}/Get", {"cluster_id": cluster_id, "job_id": job_id})


def _read_script(script: Path) -> str:
    try:
        return sys.stdin.read() if str(script) == "-" else script.read_text()
    except OSError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"The script {script} cannot be read: {error.strerror}", "Check its path"
        ) from error
    except UnicodeDecodeError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{script} is not a text file", "Give a batch script"
        ) from error


def _variable(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals or not name:
        raise ClientError("INVALID_ARGUMENT", f"{item!r} is not NAME=VALUE", "For example --env EPOCHS=3")
    return name, value
