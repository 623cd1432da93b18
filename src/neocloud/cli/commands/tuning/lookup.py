"""Find fine-tuning jobs by id, by name or by the resulting model."""

from typing import Any

from neocloud.cli.commands.inference.lookup import Place
from neocloud.client.errors import ClientError
from neocloud.core import contract

JOBS = "neocloud.tuning.v1.FineTuningJobService"
STATE = contract.enum("neocloud.tuning.v1.FineTuningJobStatus.State")
FINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
RESTING = FINAL | {"PAUSED"}


def state_of(job: Any) -> str:
    return STATE.Name(job.status.state)


def get_job(place: Place, job_id: str) -> Any:
    return place.client.call(f"{JOBS}/Get", {"id": job_id})


def find_job(place: Place, named: str) -> Any:
    """Return the job; without a name, the newest one."""
    if contract.is_id(named):
        return get_job(place, named)
    jobs = list(place.client.list_all(f"{JOBS}/List", {"parent_id": place.project}))
    found = [job for job in jobs if not named or named in (job.metadata.name, job.status.fine_tuned_model)]
    if found:
        return found[-1]
    why = f"There is no fine-tuning job {named!r}" if named else "There is no fine-tuning job"
    raise ClientError(
        "NOT_FOUND", why, "`neo tuning job list` lists them; `neo tune DATA --base MODEL` starts one"
    )
