"""Update: merge the request into the resource, check the result, write it.

While a resource is still being created nothing else can be asked of it; an update on top of an unfinished
update replaces it.
"""

import copy
from dataclasses import replace
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract, operations, wire
from neocloud.core.kind import Violation, enqueue_dependents
from neocloud.core.store.protocol import AlreadyExists, OperationRow, Resource, Transaction
from neocloud.server.access import (
    acting_prefixes,
    acts_as,
    may_read_secrets,
    refuse_part,
    require,
    require_acting,
    require_references,
    spec_references,
)
from neocloud.server.changes import Change, accepted, commit, new_operation
from neocloud.server.request import RESET_MASK_HEADER, KindDescriptor, Request, Runtime
from neocloud.server.validation import (
    MAX_REQUEST_BYTES,
    annotation_violations,
    check_request,
    immutable_violations,
    label_violations,
    name_violations,
    refuse_unserved,
)


class Update:
    def __init__(self, runtime: Runtime, descriptor: KindDescriptor) -> None:
        self._runtime = runtime
        self._descriptor = descriptor
        self._kind = descriptor.kind

    async def __call__(self, request: Request) -> Message:
        message = request.message
        resource_id = message.metadata.id
        if not resource_id:
            raise contract.bad_field("metadata.id", "is required: the id of the resource to change")
        await require(self._runtime, request, f"{self._kind.permission}.update", resource_id)
        await require_references(self._runtime, request, resource_id, await self._named(resource_id))
        refuse_unserved(message, {"metadata", "spec", "status"})
        if message.metadata.resource_version < 0:
            raise contract.bad_field("metadata.resource_version", "must be the current one, or 0 for any")
        check_request(self._kind.rules, message)
        mask = contract.parse_mask(request.headers.get(RESET_MASK_HEADER, ""))
        is_blind = await self._is_blind(request, resource_id)
        allowed = await self._require_acting(request, mask, is_blind)
        now = self._runtime.now()

        def work(tx: Transaction) -> Change:
            row = self._current(tx, message)
            old = wire.resource_message(row)
            new = _merged(old, message, mask, is_blind)
            self._check(message, new, old)
            self._kind.rules.defaults(new)
            if not self._acting(new, old) <= allowed:
                raise contract.conflict(row.id, f"{row.id} was changed meanwhile. Repeat the change.")
            reader = self._runtime.reader(tx, request.subject, now)
            violations = [*immutable_violations(new.spec, old.spec, "spec.")]
            try:
                violations += self._kind.rules.violations(new, old, reader)
            except contract.ApiError as full:
                if full.code is contract.Code.RESOURCE_EXHAUSTED:  # a quota that is exceeded comes first
                    self._write(tx, request, row, new, new.spec != old.spec, now)
                raise
            if violations:
                raise contract.bad_request(violations)
            self._kind.rules.complete(new, old, reader)
            return self._write(tx, request, row, new, new.spec != old.spec, now)

        return await commit(self._runtime, request, work)

    async def _require_acting(self, request: Request, mask: Any, is_blind: bool) -> frozenset[str]:
        """The accounts as which the resource acts when the update changes what it runs: the caller may act as
        each of them."""
        message = request.message
        row = await self._runtime.store.read(lambda tx: tx.get(message.metadata.id))
        if row is None or row.kind != self._kind.message or not self._names_accounts(row, message):
            return frozenset()
        old = wire.resource_message(row)
        new = _merged(old, message, mask, is_blind)
        self._kind.rules.defaults(new)
        accounts = self._acting(new, old)
        await require_acting(self._runtime, request, accounts)
        return accounts

    def _names_accounts(self, row: Resource, message: Any) -> bool:
        if not self._descriptor.has("spec"):
            return False
        specs = (wire.resource_message(row).spec, message.spec)
        return any(acts_as(spec, self._acting_prefixes) for spec in specs)

    def _acting(self, new: Any, old: Any) -> frozenset[str]:
        if not self._descriptor.has("spec"):
            return frozenset()
        before = copy.deepcopy(old)
        self._kind.rules.defaults(before)  # an older release may have had fewer of them
        if not self._kind.rules.changes_what_runs(new, before):
            return frozenset()
        return acts_as(old.spec, self._acting_prefixes) | acts_as(new.spec, self._acting_prefixes)

    @property
    def _acting_prefixes(self) -> frozenset[str]:
        return acting_prefixes(self._runtime.kinds.values())

    async def _is_blind(self, request: Request, resource_id: str) -> bool:
        """The caller was shown the resource without its secrets, and cannot mean to erase them."""
        if not contract.secret_parts(self._kind.message):
            return False
        return not await may_read_secrets(self._runtime, request, self._kind, resource_id)

    async def _named(self, resource_id: str) -> frozenset[str]:
        """Return the names that the stored resource refers to."""
        row = await self._runtime.store.read(lambda tx: tx.get(resource_id))
        if row is None or row.kind != self._kind.message or not self._descriptor.has("spec"):
            return frozenset()
        return frozenset(named for _, named in spec_references(wire.resource_message(row).spec))

    def _current(self, tx: Transaction, message: Any) -> Resource:
        row = tx.get(message.metadata.id)
        if row is None or row.kind != self._kind.message:
            raise contract.not_found(self._descriptor.word, message.metadata.id)
        if row.deleted_at is not None:
            raise contract.bad_state(row.id, f"{row.id} is being deleted and cannot be changed any more.")
        refuse_part(tx, row)
        wanted = message.metadata.resource_version
        if wanted and wanted != row.resource_version:
            raise contract.conflict(
                row.id,
                f"{row.id} was changed meanwhile: resource_version is {row.resource_version}, not {wanted}. "
                "Get it again and repeat the change.",
            )
        return row

    def _check(self, message: Any, new: Any, old: Any) -> None:
        whole = type(message)()
        whole.metadata.CopyFrom(new.metadata)
        whole.spec.CopyFrom(new.spec)
        violations = annotation_violations(whole)
        violations += name_violations(
            self._kind.message, self._descriptor.behaviors, new.metadata.name, old.metadata.name
        )
        violations += label_violations(new.metadata.labels, old.metadata.labels)
        size = new.spec.ByteSize()
        if size > max(self._kind.larger_request_bytes + MAX_REQUEST_BYTES, old.spec.ByteSize()):
            violations.append(Violation("spec", f"would have {size} bytes after this change; send less"))
        if new.metadata.parent_id != old.metadata.parent_id:
            violations.append(
                Violation("metadata.parent_id", f"cannot be changed; it is {old.metadata.parent_id!r}")
            )
        if violations:
            raise contract.bad_request(violations)

    def _write(
        self, tx: Transaction, request: Request, row: Resource, new: Any, is_new_spec: bool, now: datetime
    ) -> Change:
        changed = replace(
            row,
            name=new.metadata.name,
            labels=dict(new.metadata.labels),
            updated_at=now,
            resource_version=row.resource_version + is_new_spec,
        )
        if is_new_spec:
            status = self._descriptor.reconciling_status(row.status)
            changed = replace(changed, spec=new.spec.SerializeToString(), status=status)
        if not self._kind.is_reconciled and self._descriptor.has("status"):
            changed = replace(
                changed, status=new.status.SerializeToString(), state=self._descriptor.state_of(new)
            )
        title = f"{self._descriptor.word} {changed.name}".strip()
        operation = new_operation(request, changed, now, title)
        if is_new_spec:
            self._make_way(tx, operation)
        try:
            tx.update(changed, expected_version=row.resource_version)
        except AlreadyExists:
            raise contract.already_exists(self._descriptor.word, changed.name) from None
        enqueue_dependents(tx, self._runtime.kinds, [row, changed], now)
        is_true_already = not is_new_spec and row.observed_version >= row.resource_version
        return Change(
            operations.finish(operation, now) if is_true_already else accepted(self._kind, operation, now)
        )

    def _make_way(self, tx: Transaction, operation: OperationRow) -> None:
        """Refuse beside an unfinished Create; abort an unfinished Update."""
        unfinished, _ = tx.list_operations(resource_id=operation.resource_id, unfinished=True)
        for other in unfinished:
            if other.method.endswith("/Create"):
                raise contract.operation_conflict(
                    other.id,
                    other.resource_id,
                    f"{other.resource_id} is still being created (operation {other.id}). "
                    "Wait until it is ready, or delete it.",
                )
        if unfinished:
            operations.abort_unfinished(
                tx,
                operation.resource_id,
                operation.created_at,
                f"Update was cancelled: a later update ({operation.id}) replaced it.",
            )


def _merged(old: Any, message: Any, mask: Any, is_blind: bool) -> Any:
    """The resource as the request would have it. From a caller who cannot read secrets, blank ones stand for
    the stored ones; from others only those that are never returned."""
    if message.DESCRIPTOR.fields_by_name.get("spec") is not None and message.HasField("spec"):
        whole = type(message)()
        whole.CopyFrom(message)
        contract.keep_secrets(whole.spec, old.spec, only_unreturned=not is_blind)
        message = whole
    return contract.merge_update(old, message, mask)
