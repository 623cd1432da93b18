"""What a caller may do with instances beyond the standard verbs."""

from typing import Any

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.compute.v1 import BatchGetRequest, BatchGetResponse
from neocloud.services.compute.api.power import SERVICE, start, stop
from neocloud.services.compute.resources.instance import INSTANCE
from neocloud.services.compute.views import instance_view


async def batch_get(call: Call, request: BatchGetRequest) -> BatchGetResponse:
    """The caller may see each of them: ids in a request are checked before."""

    def read(tx: Transaction) -> Any:
        answer = BatchGetResponse()
        for identifier in request.instance_ids:
            row = tx.get(identifier)
            if row is None or row.kind != INSTANCE:
                answer.items[identifier].error.CopyFrom(
                    contract.not_found("instance", identifier).status("compute")
                )
            else:
                instance = answer.items[identifier].instance
                instance.CopyFrom(wire.resource_message(row))
                instance_view(instance, tx, call.dependencies.clock.now())
        return answer

    return await call.dependencies.store.read(read)


METHODS = (
    Method(
        f"{SERVICE}/Start",
        start,
        "compute.instances.start",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{SERVICE}/Stop",
        stop,
        "compute.instances.stop",
        target=lambda request: request.id,
        is_change=True,
        is_ending=True,
    ),
    Method(f"{SERVICE}/BatchGet", batch_get, ""),
)
