"""What a replica's engine wrote last."""

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.inference.v1 import ReadDeploymentLogRequest, ReadDeploymentLogResponse
from neocloud.services.inference.reconcile.placements import placements
from neocloud.services.inference.resources import DEPLOYMENT, replica_name

DEFAULT_LINES = 200


async def read_log(call: Call, request: ReadDeploymentLogRequest) -> ReadDeploymentLogResponse:
    row = await call.dependencies.store.read(lambda tx: tx.get(request.id))
    if row is None or row.kind != DEPLOYMENT:
        raise contract.not_found("deployment", request.id)
    deployment = wire.resource_message(row)
    names = [replica.name for replica in deployment.status.replicas]
    name = request.replica or (names[0] if names else replica_name(0))
    if request.replica and request.replica not in names:
        there = ", ".join(names) or "none"
        raise contract.bad_field("replica", f'there is no replica "{request.replica}"; there are: {there}')
    placement = placements(call.dependencies)[bool(deployment.spec.slurm_cluster_id)]
    text = await placement.log(row.id, name, request.lines or DEFAULT_LINES)
    return ReadDeploymentLogResponse(text=text)


METHODS = (
    Method(
        "neocloud.inference.v1.DeploymentService/ReadLog",
        read_log,
        "inference.deployments.get",
        target=lambda request: request.id,
    ),
)
