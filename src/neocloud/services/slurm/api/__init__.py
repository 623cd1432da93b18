"""Custom verbs of clusters and their jobs, with the permission each needs."""

from neocloud.core.service import Method
from neocloud.messages.neocloud.slurm.v1 import (
    CancelJobRequest,
    GetJobRequest,
    ListJobsRequest,
    ReadJobLogRequest,
    SubmitJobRequest,
)
from neocloud.services.slurm.api import check, jobs

_JOBS = "neocloud.slurm.v1.JobService"


def _cluster_id(
    request: SubmitJobRequest | GetJobRequest | ListJobsRequest | CancelJobRequest | ReadJobLogRequest,
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
        jobs.submit,
        "slurm.jobs.create",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
        larger_request_bytes=jobs.SCRIPT_REQUEST_BYTES,
    ),
    Method(f"{_JOBS}/Get", jobs.get, "slurm.jobs.get", _cluster_id),
    Method(f"{_JOBS}/List", jobs.list_jobs, "slurm.jobs.list", _cluster_id),
    Method(
        f"{_JOBS}/Cancel",
        jobs.cancel,
        "slurm.jobs.cancel",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
    ),
    Method(f"{_JOBS}/ReadLog", jobs.read_log, "slurm.jobs.get", _cluster_id),
)
