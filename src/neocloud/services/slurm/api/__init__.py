"""Custom verbs of clusters and their jobs, with the permission each needs; submit a batch job, get, list
and cancel jobs, read their output.
"""

import re
from shlex import quote

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.slurm import v1 as messages
from neocloud.messages.neocloud.slurm.v1 import (
    CancelJobRequest,
    CancelJobResponse,
    ClusterSpec,
    DiagnoseJobRequest,
    GetJobRequest,
    Job,
    JobDiagnosis,
    JobReport,
    ListJobsRequest,
    ListJobsResponse,
    ReadJobLogRequest,
    ReadJobLogResponse,
    ReportJobRequest,
    SubmitJobRequest,
    SubmitJobResponse,
)
from neocloud.services.slurm.access import SlurmAccess, api_errors
from neocloud.services.slurm.accounting import JobRun, requeues, runs_of
from neocloud.services.slurm.api import check
from neocloud.services.slurm.api.diagnose import diagnose_job
from neocloud.services.slurm.api.gpu_report import add_use_and_events
from neocloud.services.slurm.batch_jobs import (
    ClusterJobs,
    EnvironmentRefused,
    UnexpectedReply,
    find_job,
)
from neocloud.services.slurm.job_output import OutputRefused
from neocloud.services.slurm.slurm_records import SlurmJob
from neocloud.services.slurm.types import JobRefused, NewJob

_UNAVAILABLE = "Requested node configuration is not available"
_NODES = re.compile(r"^#SBATCH\s+(?:.*\s)?(?:-N\s*|--nodes[=\s]\s*)([0-9]{1,6})\b", re.MULTILINE)
"""The least number of nodes that a line of a script asks for."""


def explained(message: str, script: str, cluster: str, spec: ClusterSpec) -> str:
    """Return Slurm's refusal of a script; where it asks for more than the cluster has, with what it has."""
    if _UNAVAILABLE not in message:
        return message
    asked = [int(number) for number in _NODES.findall(script)]
    workers = sum(part.count for part in spec.node_sets)
    name = quote(cluster)
    if asked and asked[-1] > workers:
        change = f"neo slurm cluster scale {name} --workers {asked[-1]}"
        return f"asks for {_nodes(asked[-1])}; {cluster} has {workers}: {change}. Slurm says: {message}"
    sets = ", ".join(f"{part.count} of {part.preset}" for part in spec.node_sets)
    has = f"{cluster} has {_nodes(workers)} ({sets})" if workers else f"{cluster} has no node"
    return f"asks for more than any nodes of the cluster have; {has}. Slurm says: {message}"


def _nodes(number: int) -> str:
    return f"{number} node" if number == 1 else f"{number} nodes"


LOG_CHUNK_BYTES = 256 * 1024
SCRIPT_REQUEST_BYTES = 5 * 1024 * 1024
"""Bytes that a Submit may hold beyond other requests: a script as long as Slurm takes by default (4 MiB), and
the escapes that it has in JSON.
"""
READ_LOG = "slurm.jobs.readLog"
"""The permission for output of jobs, which may have keys in it: `viewer`, which sees no secrets, does not
have it.
"""


async def submit(call: Call, request: SubmitJobRequest) -> SubmitJobResponse:
    job = NewJob(
        name=request.name,
        script=request.script,
        options=[f"--dependency={request.dependency}"] if request.dependency else [],
        arguments=request.arguments,
        environment=request.environment,
        working_directory=request.working_directory,
        file_name=request.file_name or "job",
    )
    with api_errors(request.cluster_id):
        try:
            return SubmitJobResponse(job_id=await _jobs(call).submit(request.cluster_id, job))
        except EnvironmentRefused as error:
            raise contract.bad_field("environment", str(error)) from error
        except UnexpectedReply as error:
            raise contract.bad_state(request.cluster_id, str(error)) from error
        except JobRefused as error:
            cluster = await SlurmAccess.of(call.dependencies).ready_cluster(request.cluster_id)
            spec = ClusterSpec.FromString(cluster.spec)
            raise contract.bad_field(
                "script", explained(str(error), job.script, cluster.name, spec)
            ) from error


async def get(call: Call, request: GetJobRequest) -> Job:
    with api_errors(request.cluster_id):
        async with SlurmAccess.of(call.dependencies).ready_api(request.cluster_id) as slurm:
            job = _existing(await find_job(slurm, request.job_id), request.job_id)
            rows = await slurm.accounting_rows(request.job_id) if job.restarts else ()
    found = _message(job)
    found.requeues.extend(requeues(runs_of(rows), job.restarts))
    return found


async def report(call: Call, request: ReportJobRequest) -> JobReport:
    with api_errors(request.cluster_id):
        async with SlurmAccess.of(call.dependencies).ready_api(request.cluster_id) as slurm:
            rows = await slurm.accounting_rows(request.job_id)
            job = _existing(await find_job(slurm, request.job_id), request.job_id)
    runs = runs_of(rows)
    found = JobReport(job=_message(job), runs=[_run_message(run) for run in runs])
    await add_use_and_events(call, request.cluster_id, runs, found)
    return found


async def diagnose(call: Call, request: DiagnoseJobRequest) -> JobDiagnosis:
    with api_errors(request.cluster_id):
        async with SlurmAccess.of(call.dependencies).ready_api(request.cluster_id) as slurm:
            job = _existing(await find_job(slurm, request.job_id), request.job_id)
            ranks, findings, not_run = await diagnose_job(call, request, job, slurm)
    return JobDiagnosis(job=_message(job), ranks=ranks, findings=findings, not_run=not_run)


async def list_jobs(call: Call, request: ListJobsRequest) -> ListJobsResponse:
    with api_errors(request.cluster_id):
        jobs = _jobs(call)
        found = await (jobs.active_jobs if request.active_only else jobs.all_jobs)(request.cluster_id)
    return ListJobsResponse(items=[_message(job) for job in found])


async def cancel(call: Call, request: CancelJobRequest) -> CancelJobResponse:
    access = SlurmAccess.of(call.dependencies)
    with api_errors(request.cluster_id):
        async with access.ready_api(request.cluster_id) as slurm:
            job = _existing(await find_job(slurm, request.job_id), request.job_id)
            if job.has_ended:
                raise contract.bad_state(
                    request.cluster_id, f"Job {job.id} has ended already ({job.state}); nothing to cancel."
                )
            await slurm.cancel_job(request.job_id)
    return CancelJobResponse()


async def read_log(call: Call, request: ReadJobLogRequest) -> ReadJobLogResponse:
    jobs = _jobs(call)
    with api_errors(request.cluster_id):
        job = await _find(jobs, request.cluster_id, request.job_id)
        try:
            piece = await jobs.output(request.cluster_id, job, request.offset, LOG_CHUNK_BYTES)
        except OutputRefused as error:
            text = f"The output of job {job.id} at {job.output_path} is not read: {error}."
            raise contract.bad_state(request.cluster_id, text) from error
    if piece is not None:
        next_offset = piece.offset + len(piece.data)
        is_complete = job.has_ended and next_offset >= piece.size
        return ReadJobLogResponse(data=piece.data, next_offset=next_offset, is_complete=is_complete)
    if job.has_ended:
        raise contract.bad_state(
            request.cluster_id,
            f"Job {job.id} ({job.state}) left no output at {job.output_path or 'any path'}. "
            "Files under /tmp stay on the node that wrote them; use a path on the shared root.",
        )
    return ReadJobLogResponse(next_offset=max(request.offset, 0))


def _jobs(call: Call) -> ClusterJobs:
    return ClusterJobs.of(call.dependencies)


async def _find(jobs: ClusterJobs, cluster_id: str, job_id: int) -> SlurmJob:
    return _existing(await jobs.find(cluster_id, job_id), job_id)


def _existing(job: SlurmJob | None, job_id: int) -> SlurmJob:
    if job is None:
        raise contract.not_found("job", str(job_id))
    return job


def _message(job: SlurmJob) -> Job:
    is_waiting = job.state == "PENDING"
    return Job(
        id=job.id,
        name=job.name,
        user=job.user,
        state=job.state,
        reason=job.reason_text,
        nodes=job.nodes,
        submitted_at=job.submitted_at,
        started_at=None if is_waiting else job.started_at,
        expected_start_at=job.started_at if is_waiting else None,
        finished_at=job.finished_at if job.has_ended else None,
        exit_code=job.exit_code,
        output_path=job.output_path,
        restarts=job.restarts,
        partition=job.partition,
        array_job_id=job.array_job_id,
        array_tasks=job.array_tasks,
        exit_signal=job.exit_signal,
    )


def _run_message(run: JobRun) -> messages.JobRun:
    return messages.JobRun(
        state=run.state,
        nodes=run.nodes,
        started_at=run.started_at,
        finished_at=run.finished_at,
        cpus=run.cpus,
        memory_bytes=run.memory_bytes,
        gpus=run.gpus,
        steps=[messages.JobStep(**vars(step)) for step in run.steps],
        more_steps=run.more_steps,
    )


_JOBS = "neocloud.slurm.v1.JobService"


def _cluster_id(
    request: SubmitJobRequest
    | GetJobRequest
    | ReportJobRequest
    | DiagnoseJobRequest
    | ListJobsRequest
    | CancelJobRequest
    | ReadJobLogRequest,
) -> str:
    return request.cluster_id


METHODS = (
    Method(
        "neocloud.slurm.v1.ClusterService/Check",
        check.check,
        "slurm.clusters.check",
        target=lambda request: request.id,
        is_change=True,
        has_outside_effects=True,
    ),
    Method(
        f"{_JOBS}/Submit",
        submit,
        "slurm.jobs.create",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
        larger_request_bytes=SCRIPT_REQUEST_BYTES,
    ),
    Method(f"{_JOBS}/Get", get, "slurm.jobs.get", _cluster_id),
    Method(f"{_JOBS}/Report", report, "slurm.jobs.get", _cluster_id),
    Method(
        f"{_JOBS}/Diagnose",
        diagnose,
        "slurm.jobs.create",  # it runs a program in the job's nodes
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
    ),
    Method(f"{_JOBS}/List", list_jobs, "slurm.jobs.list", _cluster_id),
    Method(
        f"{_JOBS}/Cancel",
        cancel,
        "slurm.jobs.cancel",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
        is_ending=True,
    ),
    Method(f"{_JOBS}/ReadLog", read_log, READ_LOG, _cluster_id),
)
