"""`neo slurm job diagnose`: which ranks of a running job are slow, or keep the others waiting.

It adds itself to the commands of `job`, whose `app` is the whole group then.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.commands.slurm.job_lookup import JOBS, JobArgument, find_job, known_job
from neocloud.cli.commands.slurm.job_report import app
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument
from neocloud.cli.terminal import echo, one_line
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import JobDiagnosis, RankState

__all__ = ["app", "diagnose"]


@app.command()
def diagnose(
    cloud: Cloud,
    cluster: ClusterArgument,
    job: JobArgument,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Print the stack of each rank, innermost function first.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Say which ranks of a running job are slow, or keep the others waiting.

    Reads the step times that the ranks write, and the stacks of their Python processes, three times in two
    seconds, without stopping them. It runs as the job's user, in a step beside the job's own. Its findings
    are about ranks: a job cannot show whether a node is at fault.

    Examples:

      neo slurm job diagnose lab 7
      neo slurm job diagnose lab 7 --stacks
    """
    cluster_id = cloud.find(CLUSTERS, cluster).metadata.id
    number = int(job) if job.isdigit() else find_job(cloud, cluster_id, cluster, job).id
    request = {"cluster_id": cluster_id, "job_id": number}
    with known_job(cluster, job):
        found: JobDiagnosis = cloud.client.call(f"{JOBS}/Diagnose", request)
    headers = ["RANK", "NODE", "STEP", "STEP TIME", "OWN TIME", "Z", "WAITS IN", "AT"]
    right = ["RANK", "STEP", "STEP TIME", "OWN TIME", "Z"]
    show(output, contract.to_document(found), table(headers, map(_row, found.ranks), right=right))
    if output is not Format.TABLE:
        return
    for finding in found.findings:
        echo(one_line(f"{finding.kind}: {finding.message}"))
    for text in found.not_run:
        say(f"not_run: {text}")
    for line in _stacks(found) if stacks else ():
        echo(line)


def _row(rank: "RankState") -> tuple[str, ...]:
    times = (rank.step_seconds, rank.own_seconds)
    return (
        str(rank.rank),
        rank.node,
        str(rank.last_step) if rank.steps else "",
        *(f"{seconds:.3f} s" if seconds else "" for seconds in times),
        f"{rank.z:.1f}" if rank.step_seconds else "",
        rank.collective,
        rank.place,
    )


def _stacks(found: "JobDiagnosis") -> Iterator[str]:
    for rank in found.ranks:
        yield f"\nRank {rank.rank} on {rank.node}:"
        yield from (f"  {one_line(frame)}" for frame in rank.stack or ("no stack",))
