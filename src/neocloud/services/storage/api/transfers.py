"""Stop, Resume and GetIterationHistory of transfers."""

from dataclasses import replace

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.storage.v1 import (
    GetIterationHistoryRequest,
    GetIterationHistoryResponse,
    ResumeTransferRequest,
    StopTransferRequest,
    TransferIteration,
    TransferStatus,
)
from neocloud.services.storage.gateway_link import TransferChanges
from neocloud.services.storage.types import (
    ITERATIONS_KEPT,
    TRANSFER,
    TRANSFER_SERVICE,
    Run,
    TransferState,
    last_iteration,
    read_iteration,
    read_run,
    write_run,
)

PAGE_SIZE, MAX_PAGE_SIZE = 100, ITERATIONS_KEPT
_RUNNING = (TransferState.ACTIVE, TransferState.FAILING, TransferState.STOPPING)
_STOPPED = (TransferState.STOPPED, TransferState.FAILED)


async def stop(call: Call, request: StopTransferRequest) -> Write[Operation]:
    def work(tx: Transaction) -> NewOperation:
        row = row_to_change(tx, TRANSFER, request.id, "transfer")
        _require(row, _RUNNING, "stopped")
        run = replace(read_run(tx, row.id), is_stopped=True)
        return _change(call, tx, row, run, TransferState.STOPPING)

    return Write(work, after_commit=call.dependencies.provided.get(TransferChanges).notify)


async def resume(call: Call, request: ResumeTransferRequest) -> Write[Operation]:
    def work(tx: Transaction) -> NewOperation:
        row = row_to_change(tx, TRANSFER, request.id, "transfer")
        _require(row, _STOPPED, "resumed")
        run = Run(read_run(tx, row.id).number + 1)
        return _change(call, tx, row, run, TransferState.ACTIVE)

    return Write(work, after_commit=call.dependencies.provided.get(TransferChanges).notify)


async def iteration_history(call: Call, request: GetIterationHistoryRequest) -> GetIterationHistoryResponse:
    """Return the iterations of a transfer, the last one first."""
    scope = f"{TRANSFER_SERVICE}/GetIterationHistory:{request.transfer_id}"
    size = contract.page_size(request, default=PAGE_SIZE, most=MAX_PAGE_SIZE)
    after = contract.page_after(request.page_token, scope, numbers=1)

    def read(tx: Transaction) -> tuple[list[TransferIteration], int]:
        row = tx.get(request.transfer_id)
        if row is None or row.kind != TRANSFER:
            raise contract.not_found("transfer", request.transfer_id)
        last = last_iteration(tx, row.id)
        found: list[TransferIteration] = []
        running = TransferStatus.FromString(row.status).last_iteration
        if not after and running.sequence_number > last:
            found.append(running)
        number = min(last, int(after) - 1) if after else last
        while number > max(0, last - ITERATIONS_KEPT) and len(found) < size:
            kept = read_iteration(tx, row.id, number)
            found += [kept] if kept is not None else []
            number -= 1
        return found, number if number > max(0, last - ITERATIONS_KEPT) else 0

    found, left = await call.dependencies.store.read(read)
    token = contract.page_token(str(left + 1), scope) if left else ""
    return GetIterationHistoryResponse(iterations=found, next_page_token=token)


def _require(row: Resource, states: tuple[TransferState, ...], what: str) -> None:
    if row.state not in states:
        wanted = " or ".join(states)
        raise contract.bad_state(
            row.id, f"{row.name or row.id} is {row.state}; it can be {what} while it is {wanted}."
        )


def _change(call: Call, tx: Transaction, row: Resource, run: Run, state: TransferState) -> NewOperation:
    """Write it as a new version, which the gateway applies and the operation waits for."""
    write_run(tx, row.id, run)
    changed = replace(
        row,
        state=state,
        status=wire.with_state(row.kind, row.status, state),
        updated_at=call.dependencies.clock.now(),
        resource_version=row.resource_version + 1,
    )
    tx.update(changed)
    return NewOperation(changed, f"transfer {row.name or row.id}", is_done=False)


METHODS = (
    Method(
        f"{TRANSFER_SERVICE}/Stop",
        stop,
        "storage.transfers.update",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{TRANSFER_SERVICE}/Resume",
        resume,
        "storage.transfers.update",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{TRANSFER_SERVICE}/GetIterationHistory",
        iteration_history,
        "storage.transfers.get",
        target=lambda request: request.transfer_id,
    ),
)
