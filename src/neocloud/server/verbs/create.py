"""Create: a new resource of any kind, under a parent that may hold it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.kind import Violation, enqueue_dependents
from neocloud.core.readers import ResourceReader
from neocloud.core.service import create_defaults
from neocloud.core.store.protocol import AlreadyExists, Resource, Transaction
from neocloud.server.access import require, require_references
from neocloud.server.changes import Change, accepted, commit, new_operation
from neocloud.server.request import KindDescriptor, Request, Runtime
from neocloud.server.validation import (
    check,
    check_request,
    label_violations,
    name_violations,
    refuse_unserved,
)


class Create:
    def __init__(self, runtime: Runtime, descriptor: KindDescriptor) -> None:
        self._runtime = runtime
        self.descriptor = descriptor
        self._kind = descriptor.kind

    async def __call__(self, request: Request) -> Message:
        return await commit(self._runtime, request, await self.work_of(request))

    async def work_of(
        self, request: Request, assumed: frozenset[str] = frozenset()
    ) -> Callable[[Transaction], Change]:
        """Return what creates the resource. Violations of the `assumed` fields are ignored."""
        message = request.message
        parent_id = message.metadata.parent_id
        if parent_id or not self._kind.parent_kinds:
            await require(self._runtime, request, f"{self._kind.permission}.create", parent_id)
            await require_references(self._runtime, request, parent_id)
        check(message)
        refuse_unserved(message, {"metadata", "spec"})
        self._check_metadata(message.metadata)
        check_request(self._kind.rules, message)
        now = self._runtime.now()
        draft = self._draft(message, now)

        def work(tx: Transaction) -> Change:
            self._check_parent(tx, parent_id)
            resource = wire.resource_message(draft)
            reader = self._runtime.reader(tx, request.subject, now)
            found = self._violations(tx, draft, resource, reader)
            violations = [each for each in found if each.field not in assumed]
            if violations:
                if all(violation.field != "metadata.name" for violation in violations):
                    self._refuse_taken_name(tx, resource.metadata)
                raise contract.bad_request(violations)
            self._kind.rules.complete(resource, None, reader)
            row = self._with_content(draft, resource)
            self._insert(tx, row)
            self._insert_beside(tx, row, resource, reader)
            enqueue_dependents(tx, self._runtime.kinds, [row], now)
            operation = new_operation(request, row, now, f"{self.descriptor.word} {row.name}".strip())
            return Change(accepted(self._kind, operation, now))

        return work

    def _violations(
        self, tx: Transaction, draft: Resource, resource: Any, reader: ResourceReader
    ) -> list[Violation]:
        """Return the violations of a new resource; where capacity is missing, an exceeded quota is reported
        first: no room must be made for a resource that would be refused in any case. The transaction ends
        either way.
        """
        try:
            return list(self._kind.rules.violations(resource, None, reader))
        except contract.ApiError as full:
            if full.code is contract.Code.RESOURCE_EXHAUSTED:
                self._insert(tx, self._with_content(draft, resource))
            raise

    def _refuse_taken_name(self, tx: Transaction, metadata: Any) -> None:
        """Say that the name is taken, rather than what follows from it, such as the name of a boot disk."""
        other = tx.find(self._kind.message, metadata.parent_id, metadata.name) if metadata.name else None
        if other is not None:
            raise contract.already_exists(self.descriptor.word, metadata.name, other.id)

    def _check_metadata(self, metadata: Any) -> None:
        violations = list(name_violations(self._kind.message, self.descriptor.behaviors, metadata.name, None))
        violations += label_violations(metadata.labels, {})
        if metadata.id:
            violations.append(Violation("metadata.id", "is given by the cloud; leave it empty"))
        if not metadata.parent_id and self._kind.parent_kinds:
            violations.append(
                Violation("metadata.parent_id", "is required: the id of the resource it goes into")
            )
        if violations:
            raise contract.bad_request(violations)

    def _draft(self, message: Any, now: datetime) -> Resource:
        status, state = self.descriptor.new_status()
        row = Resource(
            id=contract.new_id(self._kind.id_prefix),
            kind=self._kind.message,
            parent_id=message.metadata.parent_id,
            name=message.metadata.name,
            created_at=now,
            updated_at=now,
            labels=dict(message.metadata.labels),
            spec=message.spec.SerializeToString(),
            status=status,
            state=state,
            finalizers=self._kind.finalizers,
        )
        resource = wire.resource_message(row)
        contract.clear_output_only(resource.spec)
        self._kind.rules.defaults(resource)
        return replace(self._with_content(row, resource), owner_id=self._kind.rules.owner_id(resource))

    def _with_content(self, row: Resource, resource: Any) -> Resource:
        return replace(
            row,
            spec=resource.spec.SerializeToString(),
            status=resource.status.SerializeToString() if self.descriptor.has("status") else b"",
            state=self.descriptor.state_of(resource),
        )

    def _check_parent(self, tx: Transaction, parent_id: str) -> None:
        if not self._kind.parent_kinds:
            return
        parent = tx.get(parent_id)
        if parent is None:
            raise contract.not_found("parent", parent_id)
        if parent.kind not in self._kind.parent_kinds:
            wanted = " or ".join(self._kind.parent_kinds)
            raise contract.bad_field(
                "metadata.parent_id", f"is a {parent.kind}; must be the id of a {wanted}"
            )
        if parent.deleted_at is not None:
            raise contract.bad_state(
                parent_id, f"{parent_id} is being deleted; nothing new can be made in it."
            )

    def _insert_beside(self, tx: Transaction, row: Resource, resource: Any, reader: ResourceReader) -> None:
        """Insert its companions and the default resources of other services."""
        for born in self._kind.rules.companions(resource, reader):
            tx.insert(born)
        defaults, settings = self._runtime.defaults, self._runtime.dependencies.settings
        create_defaults(tx, defaults, row, reader.now, settings)

    def _insert(self, tx: Transaction, row: Resource) -> None:
        try:
            tx.insert(row)
        except AlreadyExists:
            other = tx.find(row.kind, row.parent_id, row.name)
            raise contract.already_exists(self.descriptor.word, row.name, other.id if other else "") from None
