"""Wake a deployment that sleeps, as a request to it would."""

from neocloud.core import contract
from neocloud.core.service import Call, Method, Write
from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.inference.v1 import WakeDeploymentRequest, WakeDeploymentResponse
from neocloud.services.inference.resources import DEPLOYMENT
from neocloud.services.inference.traffic import TrafficBoard


async def wake(call: Call, request: WakeDeploymentRequest) -> Write[WakeDeploymentResponse]:
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
        "neocloud.inference.v1.DeploymentService/Wake",
        wake,
        "inference.deployments.invoke",
        target=lambda request: request.id,
        is_change=True,
    ),
)
"""Who may call a deployment may wake it: a call does so, too."""
