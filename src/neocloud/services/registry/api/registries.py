"""Delete of registries: one that holds images goes only by force."""

import asyncio

from neocloud.core import contract, operations, wire
from neocloud.core.service import Call, Method, NewOperation, Write
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.registry.v1 import DeleteRegistryRequest
from neocloud.services.registry.types import REGISTRY, REGISTRY_SERVICE, Artifacts, mark_for_deletion


async def delete(call: Call, request: DeleteRegistryRequest) -> Write[Operation]:
    now, artifacts = call.dependencies.clock.now(), call.dependencies.provided.get(Artifacts)
    images = 0 if request.force else await asyncio.to_thread(artifacts.image_count, request.id)

    def work(tx: Transaction) -> Operation | NewOperation:
        row = tx.get(request.id)
        if row is None or row.kind != REGISTRY:
            raise contract.not_found("registry", request.id)
        title = f"registry {row.name}"
        if row.deleted_at is not None:
            unfinished, _ = tx.list_operations(resource_id=row.id, unfinished=True)
            running = next((each for each in unfinished if operations.is_delete(each)), None)
            if running is not None:
                return wire.operation_message(running)
            tx.enqueue(row.id, now)
            return NewOperation(row, title, is_done=False)
        if images:
            noun = "image" if images == 1 else "images"
            raise contract.bad_state(
                row.id,
                f"{row.name} holds {images:,} {noun}. Delete them first, or all of it with --force.",
            )
        return NewOperation(mark_for_deletion(tx, row, now), title, is_done=False)

    return Write(work)


METHODS = (
    Method(
        f"{REGISTRY_SERVICE}/Delete",
        delete,
        "registry.registries.delete",
        target=lambda request: request.id,
        is_change=True,
    ),
)
