"""`neo tuning job show`, `events`, `logs`: progress of a fine-tuning job."""

import time
from typing import Annotated, Any

import typer

from neocloud.cli.commands.tuning.job_watch import (
    JOBS,
    POLL_SECONDS,
    RESTING,
    Events,
    find_job,
    get_job,
)
from neocloud.cli.output import Format, OutputOption, View, fields_table, show
from neocloud.cli.resources.lookup import ProjectOption, connect_to_project, state_of
from neocloud.cli.resources.noun import Overrides
from neocloud.cli.terminal import echo
from neocloud.core import contract

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Id or name of the job, or its resulting model. Default: the newest job."
    ),
]


def show_job(
    context: typer.Context,
    job: JobArgument = "",
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show a job's progress, hyperparameters and results.

    Example:

      neo tuning job show
    """
    found = find_job(connect_to_project(context, project), job)
    show(output, contract.to_dict(found), fields_table(_rows(found)))


def events(
    context: typer.Context,
    job: JobArgument = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job stops.")
    ] = False,
    project: ProjectOption = "",
) -> None:
    """Print the events of a job, oldest first.

    Example:

      neo tuning job events --follow
    """
    cloud = connect_to_project(context, project)
    found = find_job(cloud, job)
    unread = Events(cloud, found.metadata.id)
    while True:
        found = get_job(cloud, found.metadata.id)
        for event in unread.new():
            echo(f"{contract.to_datetime(event.created_at):%H:%M:%S}  {event.level:<5}  {event.message}")
        if not follow or state_of(found) in RESTING:
            return
        time.sleep(POLL_SECONDS)


def logs(
    context: typer.Context,
    job: JobArgument = "",
    lines: Annotated[int, typer.Option(min=1, max=10_000, help="Number of last lines to print.")] = 200,
    project: ProjectOption = "",
) -> None:
    """Print the last lines of the job's log.

    Example:

      neo tuning job logs --lines 50
    """
    cloud = connect_to_project(context, project)
    found = find_job(cloud, job)
    answer = cloud.client.call(f"{JOBS}/ReadLog", {"id": found.metadata.id, "lines": lines})
    echo(answer.text, nl=False)


def evaluation_view(job: Any) -> View:
    """Return base and fine-tuned model compared on the held-out conversations."""
    found = job.status.evaluation
    return fields_table(
        [
            ("Held-out conversations", found.conversations),
            ("Perplexity of the base", f"{found.base_perplexity:.3f}"),
            ("Perplexity of the new model", f"{found.fine_tuned_perplexity:.3f}"),
            ("Improvement", f"{found.perplexity_improvement:.1f} %"),
        ]
    )


def _rows(job: Any) -> list[tuple[str, Any]]:
    status = job.status
    rows = [
        ("Id", job.metadata.id),
        ("State", state_of(job)),
        ("Step", f"{status.step} of {status.total_steps}" if status.total_steps else ""),
        ("Trained tokens", status.trained_tokens or ""),
        ("New model", status.fine_tuned_model),
        ("Result files", ", ".join(status.result_files)),
        ("Error", f"{status.error.code}: {status.error.message}" if status.HasField("error") else ""),
    ]
    used = contract.to_dict(status.hyperparameters)
    rows += [(name, value) for name, value in used.items() if value not in ("", None)]
    rows += [("Warning", text) for text in status.warnings]
    if status.HasField("evaluation"):
        rows += [(row[0], row[1]) for row in evaluation_view(job).rows]
    return rows


OVERRIDES: Overrides = {"job": {"show": show_job, "events": events, "logs": logs}}
"""Commands that are added to the derived ones."""
