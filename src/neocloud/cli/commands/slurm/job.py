"""`neo slurm job`: batch jobs without ssh, read from Slurm itself."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, say, show, table
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    ClusterArgument,
    ProjectClient,
    ProjectOption,
    connect_to_project,
)
from neocloud.cli.terminal import echo, write_bytes
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import Job

JOBS = "neocloud.slurm.v1.JobService"
ACTIVE = {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STAGE_OUT"}
POLL_SECONDS = 0.5

JobArgument = Annotated[int, typer.Argument(help="Number of the job.", min=1)]
NewestJobArgument = Annotated[
    int | None, typer.Argument(help="Number of the job. Default: the newest one.", min=1, show_default=False)
]

app = command_group(
    """Batch jobs of a cluster, without ssh.

Examples:

  neo slurm job submit lab train.sbatch --wait
  neo slurm job logs lab 7 --follow
"""
)


@app.command()
def submit(
    context: typer.Context,
    cluster: ClusterArgument,
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
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job ends; fail if it fails.")] = False,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Submit a batch script from your own machine.

    Examples:

      neo slurm job submit lab train.sbatch
      neo slurm job submit lab train.sbatch --wait -- --epochs 3
      neo slurm job submit lab evaluate.sbatch --dependency afterok:12
    """
    cloud = connect_to_project(context, project)
    request = {
        "cluster_id": cloud.find(CLUSTERS, cluster).metadata.id,
        "script": _read_script(script),
        "name": name,
        "file_name": "" if str(script) == "-" else script.stem,
        "working_directory": chdir,
        "environment": dict(_variable(item) for item in env or ()),
        "arguments": arguments or [],
        "dependency": dependency,
    }
    job_id = cloud.client.call(f"{JOBS}/Submit", request).job_id
    if output is Format.TABLE:
        echo(f"Submitted job {job_id}")
    job = _wait(cloud, request["cluster_id"], cluster, job_id) if wait else None
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
    context: typer.Context,
    cluster: ClusterArgument,
    active: Annotated[bool, typer.Option("--active", help="List only jobs that wait or run.")] = False,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List the jobs of a cluster, including those that have ended.

    Examples:

      neo slurm job list lab
      neo slurm job list lab --active
    """
    cloud = connect_to_project(context, project)
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    listed = cloud.client.list_all(f"{JOBS}/List", {"cluster_id": cluster_id, "active_only": active})
    jobs = [job for job in listed if not active or job.state in ACTIVE]  # an earlier release lists all
    rows = (
        (job.id, job.name, job.user, job.state, _elapsed(job), ",".join(job.nodes) or job.reason, _exit(job))
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
    context: typer.Context,
    cluster: ClusterArgument,
    job_id: NewestJobArgument = None,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one job.

    Example:

      neo slurm job get lab 7
    """
    cloud = connect_to_project(context, project)
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    if job_id:
        with known_job(cluster, job_id):
            job = _get(cloud, cluster_id, job_id)
    else:
        job = newest_job(cloud, cluster_id, cluster)
    rows = [
        ("Id", job.id),
        ("Name", job.name),
        ("User", job.user),
        ("State", job.state),
        ("Reason", job.reason),
        ("Nodes", ", ".join(job.nodes)),
        ("Submitted", _time(job, "submitted_at")),
        ("Started", _time(job, "started_at")),
        ("Finished", _time(job, "finished_at")),
        ("Time", _elapsed(job)),
        ("Exit code", _exit(job)),
        ("Restarts", job.restarts),
        ("Output", job.output_path),
    ]
    show(output, contract.to_document(job), fields_table(rows))


@app.command()
def logs(
    context: typer.Context,
    cluster: ClusterArgument,
    job_id: NewestJobArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    project: ProjectOption = "",
) -> None:
    """Print a job's output; with --follow, as it is written.

    Examples:

      neo slurm job logs lab --follow      # of the newest job
      neo slurm job logs lab 7
    """
    cloud = connect_to_project(context, project)
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    if job_id is None:
        newest = newest_job(cloud, cluster_id, cluster)
        say(f"Job {newest.id} ({newest.name}):")
        job_id = newest.id
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
def cancel(
    context: typer.Context, cluster: ClusterArgument, job_id: JobArgument, project: ProjectOption = ""
) -> None:
    """Cancel a waiting or running job.

    Example:

      neo slurm job cancel lab 7
    """
    cloud = connect_to_project(context, project)
    request = {"cluster_id": cloud.find(CLUSTERS, cluster).metadata.id, "job_id": job_id}
    with known_job(cluster, job_id):
        cloud.client.call(f"{JOBS}/Cancel", request)
    echo(f"Job {job_id} is cancelled.")


class _StateLine:
    """Prints a job's state to stderr whenever it changes."""

    def __init__(
        self, cloud: ProjectClient, cluster_id: str, job_id: int, clock: Callable[[], float] = time.monotonic
    ):
        self.cloud, self.cluster_id, self.job_id, self.clock = cloud, cluster_id, job_id, clock
        self.started, self.said = clock(), ""

    def show(self) -> "Job":
        job = _get(self.cloud, self.cluster_id, self.job_id)
        text = f"{job.state} ({job.reason})" if job.state == "PENDING" and job.reason else job.state
        if text != self.said:
            nodes = f" on {','.join(job.nodes)}" if job.nodes else ""
            say(f"Job {job.id}: {text}{nodes} after {duration(self.clock() - self.started)}")
        self.said = text
        return job


def _wait(cloud: ProjectClient, cluster_id: str, cluster: str, job_id: int) -> "Job":
    line = _StateLine(cloud, cluster_id, job_id)
    try:
        while (job := line.show()).state in ACTIVE:
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        known_as = quote(cluster)
        say(
            f"Job {job_id} goes on. Follow it: neo slurm job logs {known_as} {job_id} --follow;"
            f" cancel it: neo slurm job cancel {known_as} {job_id}"
        )
        raise
    return job


@contextmanager
def known_job(cluster: str, job_id: int) -> Iterator[None]:
    """Say of a job that the cluster does not know where its jobs are listed."""
    try:
        yield
    except ClientError as error:
        if error.code != "NOT_FOUND":
            raise
        raise ClientError(
            "NOT_FOUND",
            f"Cluster {cluster} has no job {job_id}",
            f"`neo slurm job list {quote(cluster)}` lists its jobs",
        ) from error


def _get(cloud: ProjectClient, cluster_id: str, job_id: int) -> "Job":
    return cloud.client.call(f"{JOBS}/Get", {"cluster_id": cluster_id, "job_id": job_id})


def newest_job(cloud: ProjectClient, cluster_id: str, cluster: str) -> "Job":
    jobs = list(cloud.client.list_all(f"{JOBS}/List", {"cluster_id": cluster_id}))
    if not jobs:
        raise ClientError(
            "NOT_FOUND",
            f"Cluster {cluster} has run no jobs",
            f"Submit one: neo slurm job submit {quote(cluster)} SCRIPT",
        )
    return max(jobs, key=lambda job: job.id)


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


def _time(job: "Job", field: str) -> str:
    return f"{contract.to_datetime(getattr(job, field)):%Y-%m-%d %H:%M:%S} UTC" if job.HasField(field) else ""


def _elapsed(job: "Job") -> str:
    if not job.HasField("started_at"):
        return ""
    started = contract.to_datetime(job.started_at).timestamp()
    ended = contract.to_datetime(job.finished_at).timestamp() if job.HasField("finished_at") else time.time()
    return duration(max(0.0, ended - started))


def _exit(job: "Job") -> str:
    return "" if job.state in ACTIVE else str(job.exit_code)
