"""Find a fine-tuning job and watch it until it stops: step, loss, speed, time left."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from neocloud.cli.output import say
from neocloud.cli.progress import duration, stage
from neocloud.cli.resources.lookup import ProjectClient, state_of
from neocloud.client.errors import ClientError
from neocloud.core import contract

POLL_SECONDS = 1.0
INTERRUPTED = 130


@dataclass
class Events:
    """The events of a job that have not been read yet."""

    cloud: ProjectClient
    job_id: str
    last: str = ""

    def new(self) -> Iterator[Any]:
        """Read the events after the last one; a page token is its time and id."""
        request = {"id": self.job_id, "page_size": 1000, "page_token": self.last}
        for event in self.cloud.client.call(f"{JOBS}/ListEvents", request).items:
            moment = contract.to_datetime(event.created_at).timestamp()
            self.last = f"{moment:.6f}/{event.id}"
            yield event


def follow(cloud: ProjectClient, job_id: str) -> Any:
    """Wait until the job stops and return it. Ctrl-C leaves it running."""
    try:
        with stage("Fine-tuning") as detail:
            return _watch(cloud, job_id, detail)
    except KeyboardInterrupt:
        say(
            f"The job keeps running. Show it: neo tuning job show {job_id}; follow it:"
            f" neo tuning job events {job_id} --follow; cancel it: neo tuning job cancel {job_id}"
        )
        raise typer.Exit(INTERRUPTED) from None


def _watch(cloud: ProjectClient, job_id: str, detail: Any) -> Any:
    events, speed, shown = Events(cloud, job_id), 0.0, ""
    while True:
        job = get_job(cloud, job_id)
        for event in events.new():
            if event.type == "metrics":
                speed = json.loads(event.data).get("tokens_per_second", speed)
                loss = json.loads(event.data)["train_loss"]
                text = _progress(job, loss, speed)
            else:
                text = event.message
            if text != shown:
                detail(text)
            shown = text
        if state_of(job) in RESTING:
            return job
        time.sleep(POLL_SECONDS)


def _progress(job: Any, loss: float, speed: float) -> str:
    left = ""
    if job.status.HasField("estimated_finish"):
        end = contract.to_datetime(job.status.estimated_finish)
        left = f", {duration(max(0.0, (end - datetime.now(UTC)).total_seconds()))} left"
    status = job.status
    return f"step {status.step}/{status.total_steps}, loss {loss:.3f}, {speed:,.0f} tokens/s{left}"


def require_success(job: Any) -> None:
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


JOBS = "neocloud.tuning.v1.FineTuningJobService"
FINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
RESTING = FINAL | {"PAUSED"}


def get_job(cloud: ProjectClient, job_id: str) -> Any:
    return cloud.client.call(f"{JOBS}/Get", {"id": job_id})


def find_job(cloud: ProjectClient, named: str) -> Any:
    """Return the job; without a name, the newest one."""
    if contract.is_id(named):
        return get_job(cloud, named)
    jobs = cloud.list_all(JOBS)
    found = [job for job in jobs if not named or named in (job.metadata.name, job.status.fine_tuned_model)]
    if found:
        return found[-1]
    why = f"There is no fine-tuning job {named!r}" if named else "There is no fine-tuning job"
    raise ClientError(
        "NOT_FOUND", why, "`neo tuning job list` lists them; `neo tune DATA --base MODEL` starts one"
    )
