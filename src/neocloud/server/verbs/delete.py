"""Delete: immediately where nothing runs, otherwise when the reconciler has removed everything.

Until the row is gone, another Delete returns the operation in progress. Where there is none, because the
deletion failed or began with that of the owner, it returns a new one, and the reconciler tries again.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract, operations, wire
from neocloud.core.kind import delete_row, enqueue_dependents, mark_for_deletion
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.server.access import refuse_part, require
from neocloud.server.changes import Change, commit, new_operation
from neocloud.server.request import KindDescriptor, Request, Runtime
from neocloud.server.validation import check, check_present, refuse_unserved

_NAMED_CHILDREN = 5


class Delete:
    def __init__(self, runtime: Runtime, descriptor: KindDescriptor) -> None:
        self._runtime = runtime
        self._descriptor = descriptor
        self._kind = descriptor.kind

    async def __call__(self, request: Request) -> Message:
        message = request.message
        check_present(message, "id")
        await require(self._runtime, request, f"{self._kind.permission}.delete", message.id)
        check(message)
        refuse_unserved(message, {"id", "resource_version"})
        now = self._runtime.now()

        def work(tx: Transaction) -> Change:
            row = tx.get(message.id)
            if row is None or row.kind != self._kind.message:
                raise contract.not_found(self._descriptor.word, message.id)
            if row.deleted_at is not None:
                return self._repeat(tx, request, row, now)
            self._check_version(message, row)
            parts = self._made_with(tx, row)
            self._check_alone(tx, row, parts)
            reader = self._runtime.reader(tx, request.subject, now)
            self._kind.rules.check_delete(wire.resource_message(row), reader)
            for part in parts:
                mark_for_deletion(tx, self._runtime.kinds, part, now)
            return self._write(tx, request, row, now)

        return await commit(self._runtime, request, work)

    def _repeat(self, tx: Transaction, request: Request, row: Resource, now: datetime) -> Change:
        unfinished, _ = tx.list_operations(resource_id=row.id, unfinished=True)
        running = next((each for each in unfinished if operations.is_delete(each)), None)
        if running is not None:
            return Change(running, is_recorded=True)
        tx.enqueue(row.id, now)
        return Change(new_operation(request, row, now, self._title(row)))

    def _title(self, row: Resource) -> str:
        return f"{self._descriptor.word} {row.name}".strip()

    def _check_version(self, message: Any, row: Resource) -> None:
        wanted = getattr(message, "resource_version", 0)
        if wanted and wanted != row.resource_version:
            raise contract.conflict(
                row.id,
                f"{row.id} has resource_version {row.resource_version}, not {wanted}. Get it again first.",
            )

    def _made_with(self, tx: Transaction, row: Resource) -> Sequence[Resource]:
        find = self._runtime.made_with.get(row.kind)
        return () if find is None else find(tx, row)

    def _check_alone(self, tx: Transaction, row: Resource, parts: Sequence[Resource]) -> None:
        """Raise ApiError for a resource that holds more than its parts and what belongs to those."""
        own = {row.id, *(part.id for part in parts)}
        children = [child for child in tx.children(row.id) if not own & {child.id, child.owner_id}]
        if children:
            raise contract.bad_state(
                row.id, f"{row.id} still holds {_named(children)}. Delete what it holds first."
            )
        refuse_part(tx, row)

    def _write(self, tx: Transaction, request: Request, row: Resource, now: datetime) -> Change:
        operation = new_operation(request, row, now, self._title(row))
        if self._kind.is_reconciled:
            operations.abort_unfinished(
                tx, row.id, now, f"The resource was deleted by operation {operation.id}."
            )
            state = self._kind.deleting_state
            status = wire.with_state(row.kind, row.status, state)
            tx.update(replace(row, deleted_at=now, updated_at=now, state=state, status=status))
            enqueue_dependents(tx, self._runtime.kinds, [row], now)
            return Change(operation)
        delete_row(tx, self._runtime.kinds, row, now)
        return Change(operations.finish(operation, now))


def _named(children: Sequence[Resource]) -> str:
    names = [f"{child.name or child.id} ({child.kind.rpartition('.')[2]})" for child in children]
    rest = len(names) - _NAMED_CHILDREN
    return ", ".join(names[:_NAMED_CHILDREN]) + (f" and {rest} more" if rest > 0 else "")
