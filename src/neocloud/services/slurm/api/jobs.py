"""Batch jobs: submit, get, list, cancel, read the output.

slurmrestd takes a job's script but does not read its #SBATCH lines, so Submit runs the real `sbatch` on the
login node: any script that Slurm takes is taken. Everything else goes through slurmrestd. Slurm is the only
record of jobs; nothing is kept here.
"""

import re
from collections.abc import Sequence
from typing import Any

from neocloud.core import contract
from neocloud.core.service import Call
from neocloud.engines.base import EngineError
from neocloud.messages.neocloud.slurm.v1 import (
    CancelJobRequest,
    CancelJobResponse,
    GetJobRequest,
    Job,
    ListJobsRequest,
    ListJobsResponse,
    ReadJobLogRequest,
    ReadJobLogResponse,
    SubmitJobRequest,
    SubmitJobResponse,
)
from neocloud.services.slurm.api.cluster import access, open_slurm, ready_cluster
from neocloud.services.slurm.sbatch import (
    DEFAULT_WORKING_DIRECTORY,
    environment_problem,
    job_id_in,
    refusal,
    sbatch_command,
    sbatch_input,
)
from neocloud.services.slurm.slurmrestd import SlurmApi, SlurmError, SlurmJob

LOG_CHUNK_BYTES = 256 * 1024
SCRIPT_REQUEST_BYTES = 5 * 1024 * 1024
"""What a Submit may hold beyond other requests: a script as long as Slurm takes by default (4 MiB), and the
escapes that it has in JSON."""
NO_SUCH_FILE = 66
REPAIR = "Its programs were changed, or something prints in the profile of its shell: look on the login node."
_LOG_PLACE = re.compile(rb"([0-9]{1,18}) ([0-9]{1,18})")

_READ_LOG = """
[ -f "$1" ] || exit 66
size=$(stat -Lc %s -- "$1"); offset=$2
[ "$offset" -ge 0 ] || offset=$((size + offset)); [ "$offset" -ge 0 ] || offset=0
echo "$size $offset"
tail -c "+$((offset + 1))" -- "$1" | head -c "$3"
"""


async def submit(call: Call, request: SubmitJobRequest) -> SubmitJobResponse:
    await ready_cluster(call, request.cluster_id)
    problem = environment_problem(request.environment)
    if problem:
        raise contract.bad_field("environment", problem)
    if not request.script.startswith("#!"):
        raise contract.bad_field("script", 'must start with a "#!" line, for example "#!/bin/bash"')
    stdin = sbatch_input(request.environment, request.script)
    try:
        result = await access(call).run_in_login_shell(
            request.cluster_id, _submit_command(request), stdin=stdin
        )
    except EngineError as error:
        raise contract.unavailable(f"The login node does not answer: {error}. Try again.") from error
    if result.exit_code:
        raise contract.bad_field("script", refusal(result.stderr))
    try:
        return SubmitJobResponse(job_id=job_id_in(result.stdout))
    except ValueError as error:
        raise contract.bad_state(request.cluster_id, f"{error}. {REPAIR}") from error


def _submit_command(request: Any) -> list[str]:
    options = ["--parsable", f"--chdir={request.working_directory or DEFAULT_WORKING_DIRECTORY}"]
    if request.name:
        options.append(f"--job-name={request.name}")
    if request.dependency:
        options.append(f"--dependency={request.dependency}")
    return sbatch_command(options, request.arguments)


async def get(call: Call, request: GetJobRequest) -> Job:
    async with open_slurm(call, request.cluster_id) as slurm:
        return _message(await _find(slurm, request.job_id))


async def list_jobs(call: Call, request: ListJobsRequest) -> ListJobsResponse:
    async with open_slurm(call, request.cluster_id) as slurm:
        jobs = {job.id: job for job in await slurm.finished_jobs()}
        jobs.update({job.id: job for job in await slurm.jobs()})
    return ListJobsResponse(items=[_message(jobs[job_id]) for job_id in sorted(jobs)])


async def cancel(call: Call, request: CancelJobRequest) -> CancelJobResponse:
    async with open_slurm(call, request.cluster_id) as slurm:
        job = await _find(slurm, request.job_id)
        if job.has_ended:
            raise contract.bad_state(
                request.cluster_id, f"Job {job.id} has ended already ({job.state}); nothing to cancel."
            )
        try:
            await slurm.cancel_job(request.job_id)
        except SlurmError as error:
            raise contract.bad_state(request.cluster_id, f"Slurm did not cancel the job: {error}") from error
    return CancelJobResponse()


async def read_log(call: Call, request: ReadJobLogRequest) -> ReadJobLogResponse:
    async with open_slurm(call, request.cluster_id) as slurm:
        job = await _find(slurm, request.job_id)
    command = ["/bin/sh", "-c", _READ_LOG, "log", job.output_path, str(request.offset), str(LOG_CHUNK_BYTES)]
    result = await access(call).run_in_login_shell(request.cluster_id, command)
    if result.exit_code == NO_SUCH_FILE:
        if job.has_ended:
            raise contract.bad_state(
                request.cluster_id,
                f"Job {job.id} ({job.state}) left no output at {job.output_path or 'any path'}. "
                "Files under /tmp stay on the node that wrote them; use a path on the shared root.",
            )
        return ReadJobLogResponse(next_offset=max(request.offset, 0))
    header, _, data = result.stdout.partition(b"\n")
    place = _LOG_PLACE.fullmatch(header)
    if place is None or len(data) > LOG_CHUNK_BYTES:
        raise contract.bad_state(
            request.cluster_id, f"The login node did not read the output of job {job.id}. {REPAIR}"
        )
    size, offset = int(place[1]), int(place[2])
    next_offset = offset + len(data)
    return ReadJobLogResponse(
        data=data, next_offset=next_offset, is_complete=job.has_ended and next_offset >= size
    )


async def _find(slurm: SlurmApi, job_id: int) -> SlurmJob:
    live: Sequence[SlurmJob] = [job for job in await slurm.jobs() if job.id == job_id]
    found = live[0] if live else await slurm.finished_job(job_id)
    if found is None:
        raise contract.not_found("job", str(job_id))
    return found


def _message(job: SlurmJob) -> Any:
    return Job(
        id=job.id,
        name=job.name,
        user=job.user,
        state=job.state,
        reason="" if job.reason == "None" else job.reason,
        nodes=job.nodes,
        submitted_at=_timestamp(job.submitted_at),
        started_at=_timestamp(job.started_at),
        finished_at=_timestamp(job.finished_at) if job.has_ended else None,
        exit_code=job.exit_code,
        output_path=job.output_path,
        restarts=job.restarts,
        partition=job.partition,
    )


def _timestamp(moment: Any) -> Any:
    return contract.timestamp(moment) if moment else None
