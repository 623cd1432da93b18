"""`neo tuning job get`, `events`, `logs`: progress of a fine-tuning job."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neocloud.cli.output import Format, JsonObject, OutputOption, View, fields_table, say, show
from neocloud.cli.progress import duration, stage
from neocloud.cli.resources.log_parts import log_parts
from neocloud.cli.resources.lookup import (
    TUNING_JOBS,
    Cloud,
    ProjectClient,
    ProjectOption,
    connect_to_project,
    is_id_of,
    state_of,
)
from neocloud.cli.resources.noun import Overrides
from neocloud.cli.terminal import echo, one_line
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.tuning.v1 import FineTuningJob


FINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
RESTING = FINAL | {"PAUSED"}

POLL_SECONDS = 1.0
PAGE_SIZE = 1000
INTERRUPTED = 130

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Id or name of the job, or its resulting model. Default: the newest job."
    ),
]


FollowingOption = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait until the job ends.")]


def show_job(
    context: typer.Context,
    job: JobArgument = "",
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show a job's progress, hyperparameters and results.

    Example:

      neo tuning job get
    """
    found = find_job(connect_to_project(context, project), job)
    show(output, contract.to_document(found), fields_table(_rows(found)))


def events(
    cloud: Cloud,
    job: JobArgument = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job stops.")
    ] = False,
) -> None:
    """Print the events of a job, oldest first.

    Example:

      neo tuning job events --follow
    """
    found = find_job(cloud, job)
    unread = Events(cloud, found.metadata.id)
    while True:
        found = get_job(cloud, found.metadata.id)
        for event in unread.new():
            at = contract.to_datetime(event.created_at)
            echo(one_line(f"{at:%Y-%m-%d %H:%M:%S} UTC  {event.level:<5}  {event.message}"))
        if not follow or state_of(found) in RESTING:
            return
        time.sleep(POLL_SECONDS)


def logs(
    cloud: Cloud,
    job: JobArgument = "",
    lines: Annotated[int, typer.Option(min=1, max=10_000, help="Number of last lines to print.")] = 200,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until the job stops.")
    ] = False,
) -> None:
    """Print the last lines of the job's log.

    Examples:

      neo tuning job logs --lines 50
      neo tuning job logs --follow
    """
    found = find_job(cloud, job)
    request: JsonObject = {"id": found.metadata.id, "lines": lines}
    for part in log_parts(cloud.client, f"{TUNING_JOBS}/ReadLog", request, follow=follow):
        echo(part.text, nl=False)


def evaluation_view(job: "FineTuningJob") -> View:
    """Return base and fine-tuned model compared on the held-out conversations."""
    found = job.status.evaluation
    if found.HasField("base_reward"):
        return fields_table(
            [
                ("Held-out tasks", found.conversations),
                ("Mean reward of the base", f"{found.base_reward:.3f}"),
                ("Mean reward of the new model", f"{found.fine_tuned_reward:.3f}"),
            ]
        )
    return fields_table(
        [
            ("Held-out conversations", found.conversations),
            ("Perplexity of the base", f"{found.base_perplexity:.3f}"),
            ("Perplexity of the new model", f"{found.fine_tuned_perplexity:.3f}"),
            ("Improvement", f"{found.perplexity_improvement:.1f} %"),
        ]
    )


def _rows(job: "FineTuningJob") -> list[tuple[str, object]]:
    status = job.status
    rows: list[tuple[str, object]] = [
        ("Id", job.metadata.id),
        ("State", state_of(job)),
        ("Step", f"{status.step} of {status.total_steps}" if status.total_steps else ""),
        ("Trained tokens", status.trained_tokens or ""),
        ("New model", status.fine_tuned_model),
        ("Written to", status.output),
        ("Result files", ", ".join(status.result_files)),
        ("Error", f"{status.error.code}: {status.error.message}" if status.HasField("error") else ""),
    ]
    used = contract.to_document(status.hyperparameters)
    rows += [(name, value) for name, value in used.items() if value not in ("", None)]
    rows += [("Warning", text) for text in status.warnings]
    if status.HasField("gate"):
        rows.append(("Gate", "passed" if status.gate.passed else "FAILED: the model is kept and not served"))
        rows += [
            (f"Rule {'passed' if each.passed else 'FAILED'}", f"{each.asked}: {each.why}")
            for each in status.gate.rules
        ]
    if status.HasField("evaluation"):
        rows += [(row[0], row[1]) for row in evaluation_view(job).rows]
    return rows


@dataclass
class Events:
    """The events of a job that have not been read yet."""

    cloud: ProjectClient
    job_id: str
    last: str = ""

    def new(self) -> Iterator[Any]:
        """Read the events after the last one; a page token is its time and id."""
        while True:
            request = {"id": self.job_id, "page_size": PAGE_SIZE, "page_token": self.last}
            page = self.cloud.client.call(f"{TUNING_JOBS}/ListEvents", request)
            for event in page.items:
                moment = contract.to_datetime(event.created_at).timestamp()
                self.last = f"{moment:.6f}/{event.id}"
                yield event
            if not page.next_page_token:
                return


def follow(cloud: ProjectClient, job_id: str) -> "FineTuningJob":
    """Wait until the job stops and return it. Ctrl-C leaves it running."""
    try:
        with stage("Fine-tuning") as detail:
            return _watch(cloud, job_id, detail)
    except KeyboardInterrupt:
        say(
            f"The job keeps running. Show it: neo tuning job get {job_id}; follow it:"
            f" neo tuning job events {job_id} --follow; cancel it: neo tuning job cancel {job_id}"
        )
        raise typer.Exit(INTERRUPTED) from None


def _watch(cloud: ProjectClient, job_id: str, detail: Any) -> Any:
    events, speed, shown = Events(cloud, job_id), 0.0, ""
    while True:
        job = get_job(cloud, job_id)
        for event in events.new():
            if event.type == "metrics":
                metrics = json.loads(event.data)
                speed = metrics.get("tokens_per_second", speed)
                text = _progress(job, metrics, speed)
            else:
                text = event.message
            if text != shown:
                detail(text)
            shown = text
        if state_of(job) in RESTING:
            return job
        time.sleep(POLL_SECONDS)


def _progress(job: "FineTuningJob", metrics: JsonObject, speed: float) -> str:
    """Return a line about the step of this event, which the job itself may have passed."""
    left = ""
    if job.status.HasField("estimated_finish"):
        end = contract.to_datetime(job.status.estimated_finish)
        left = f", {duration(max(0.0, (end - datetime.now(UTC)).total_seconds()))} left"
    status = job.status
    total = metrics.get("total_steps") or status.total_steps
    step = f"{metrics.get('step', status.step)}/{total}" if total else f"{metrics.get('step', status.step)}"
    return f"step {step}, loss {metrics['train_loss']:.3f}, {speed:,.0f} tokens/s{left}"


def require_success(job: "FineTuningJob") -> None:
    """Raise ClientError with the job's error unless it succeeded."""
    state, error = state_of(job), job.status.error
    if state == "SUCCEEDED":
        return
    where = f" ({error.param})" if error.param else ""
    raise ClientError(
        "ABORTED",
        f"The job {job.metadata.id} is {state}{where}: {error.message}"
        if error.message
        else f"The job {job.metadata.id} is {state}",
        f"See its log: neo tuning job logs {job.metadata.id}; retry: neo tuning job resume {job.metadata.id}",
    )


def get_job(cloud: ProjectClient, job_id: str) -> "FineTuningJob":
    return cloud.client.call(f"{TUNING_JOBS}/Get", {"id": job_id})


def find_job(cloud: ProjectClient, named: str) -> "FineTuningJob":
    """Return the job of this id, name or resulting model; without any, the newest job.

    Names may have the form of ids, such as `risk-models`.
    """
    if is_id_of(TUNING_JOBS, named):
        return get_job(cloud, named)
    jobs = cloud.list_all(TUNING_JOBS)  # the oldest first
    found = [job for job in jobs if not named or job.metadata.name == named]
    found = found or [job for job in jobs if job.status.fine_tuned_model == named]
    if found:
        return found[-1]
    why = f"There is no fine-tuning job {named!r}" if named else "There is no fine-tuning job"
    raise ClientError(
        "NOT_FOUND", why, "`neo tuning job list` lists them; `neo tune DATA --base MODEL` starts one"
    )


OVERRIDES: Overrides = {"job": {"get": show_job, "events": events, "logs": logs}}
"""Commands that are added to the derived ones."""
