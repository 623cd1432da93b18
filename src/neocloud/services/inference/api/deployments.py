"""Custom verbs of deployments: read a replica's log, and wake a deployment that sleeps."""

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method, Write
from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.inference.v1 import (
    ReadDeploymentLogRequest,
    ReadDeploymentLogResponse,
    WakeDeploymentRequest,
    WakeDeploymentResponse,
)
from neocloud.services.inference.reconcile.backends import replica_backends
from neocloud.services.inference.traffic import TrafficBoard
from neocloud.services.inference.types import DEPLOYMENT, replica_name

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
    backend = replica_backends(call.dependencies).of(deployment.spec)
    text = await backend.log(row.id, name, request.lines or DEFAULT_LINES)
    return ReadDeploymentLogResponse(text=text)


async def wake(call: Call, request: WakeDeploymentRequest) -> Write[WakeDeploymentResponse]:
    """Start a sleeping deployment, as a request to it would."""
    now = call.dependencies.clock.now()

    def work(tx: Transaction) -> WakeDeploymentResponse:
        row = tx.get(request.id)
        if row is None or row.kind != DEPLOYMENT:
            raise contract.not_found("deployment", request.id)
        if row.deleted_at is not None:
            raise contract.bad_state(row.id, f"{row.id} is being deleted.")
        tx.enqueue(row.id, now)
        return WakeDeploymentResponse()

    board = call.dependencies.provided.get(TrafficBoard)
    return Write(work, after_commit=lambda: board.wake(request.id))


METHODS = (
    Method(
        "neocloud.inference.v1.DeploymentService/ReadLog",
        read_log,
        "inference.deployments.get",
        target=lambda request: request.id,
    ),
    Method(
        "neocloud.inference.v1.DeploymentService/Wake",
        wake,
        "inference.deployments.invoke",
        target=lambda request: request.id,
        is_change=True,
    ),
)
"""Waking needs the permission to call a deployment, since a call wakes it too."""
