"""`neo slurm cluster check`: measure the readiness of every node."""

from collections import Counter
from typing import Annotated

import typer

from neocloud.cli.commands.slurm.lookup import SERVICE, NameArgument, ProjectOption, find_cluster, open_place
from neocloud.cli.output import Format, OutputOption, show, table
from neocloud.cli.progress import stage
from neocloud.cli.terminal import echo
from neocloud.core import contract

CHECK_TIMEOUT_SECONDS = 900.0
VERDICTS = ("pass", "fail", "not_run")


def check(
    context: typer.Context,
    name: NameArgument,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Report only; do not drain nodes that fail.")
    ] = False,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Measure every node: CPU, memory, GPUs, all-reduce bandwidth, shared root, clock.

    A node that fails is drained in Slurm with the reason, so that no job starts on it. A check that cannot
    run here (GPUs on a machine without) is reported as not_run. The exit code is 1 if any check failed.

    Examples:

      neo slurm cluster check bank
      neo slurm cluster check bank --report-only --output json
    """
    place = open_place(context, project)
    cluster = find_cluster(place, name)
    request = {"id": cluster.metadata.id, "report_only": report_only}
    with stage(f"Check the nodes of {name}"):
        answer = place.client.call(f"{SERVICE}/Check", request, timeout_seconds=CHECK_TIMEOUT_SECONDS)
    rows = (
        (
            item.node or "all",
            item.check,
            item.verdict,
            item.measured,
            item.threshold,
            " ".join(part for part in (item.message, "(drained)" if item.drained else "") if part),
        )
        for item in answer.results
    )
    view = table(["NODE", "CHECK", "VERDICT", "MEASURED", "THRESHOLD", "NOTE"], rows)
    show(output, [contract.to_dict(item) for item in answer.results], view, empty="No checks were run.")
    counts = Counter(item.verdict for item in answer.results)
    if output is Format.TABLE:
        echo("\n" + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS))
    if counts["fail"]:
        raise typer.Exit(1)
