"""What a caller may do with a cluster: verbs, and the permission each needs."""

from neocloud.core.kind import Kind
from neocloud.core.service import Method
from neocloud.services.slurm.api import check, jobs
from neocloud.services.slurm.rules import ClusterRules
from neocloud.services.slurm.types import CLUSTER, CLUSTER_ID_PREFIX, State

_JOBS = "neocloud.slurm.v1.JobService"


def _cluster_id(request) -> str:
    return request.cluster_id


KINDS = (
    Kind(
        message=CLUSTER,
        rpc="neocloud.slurm.v1.ClusterService",
        id_prefix=CLUSTER_ID_PREFIX,
        permission="slurm.clusters",
        parent_kinds=("nebius.iam.v1.Container",),
        rules=ClusterRules(),
        initial_state=State.CREATING,
        deleting_state=State.DELETING,
        stopped_state=State.STOPPED,
        is_reconciled=True,
    ),
)

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
