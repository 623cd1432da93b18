"""Operations, idempotency keys, audit events and secrets in a transaction."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, bindparam, delete, insert, select, update

from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.protocol import AlreadyExists, IdempotencyKey, OperationRow, Page, StoreError
from neocloud.core.store.rows import (
    audit_from,
    key_from,
    key_values,
    operation_from,
    operation_values,
    to_micros,
)
from neocloud.core.store.session import Session, chosen, insert_new
from neocloud.core.store.tables import audit, idempotency, operations, secrets

_INSERT_OPERATION = insert_new(operations)
_GET_OPERATION = select(operations).where(operations.c.id == bindparam("id"))
_UPDATE_OPERATION = (
    update(operations)
    .where(operations.c.id == bindparam("row_id"))
    .values({c.name: bindparam(c.name) for c in operations.c if c.name not in ("seq", "id")})
)
_OPERATIONS = select(operations).order_by(operations.c.seq.desc())
_UNFINISHED = _OPERATIONS.where(operations.c.code.is_(None))
_INSERT_KEY = insert_new(idempotency)
_RECALL = select(idempotency).where(
    idempotency.c.subject == bindparam("subject"),
    idempotency.c.method == bindparam("method"),
    idempotency.c.key == bindparam("key"),
)
_FORGET = delete(idempotency).where(idempotency.c.created_at < bindparam("before"))
_AUDIT = select(audit).order_by(audit.c.seq.desc())
_GET_SECRET = select(secrets.c.value).where(
    secrets.c.resource_id == bindparam("id"), secrets.c.name == bindparam("secret")
)
_DROP_SECRET = delete(secrets).where(
    secrets.c.resource_id == bindparam("id"), secrets.c.name == bindparam("secret")
)
_INSERT_SECRET = insert(secrets).inline()


class RecordRows(Session):
    def insert_operation(self, operation: OperationRow) -> None:
        if not self._insert_new(_INSERT_OPERATION, operation_values(operation)):
            raise AlreadyExists(f"The operation {operation.id} exists already.")

    def get_operation(self, operation_id: str) -> OperationRow | None:
        row = self._one(_GET_OPERATION, {"id": operation_id})
        return None if row is None else operation_from(row)

    def list_operations(
        self,
        *,
        resource_id: str | None = None,
        parent_id: str | None = None,
        kind: str | None = None,
        unfinished: bool = False,
        page: Page | None = None,
    ) -> tuple[Sequence[OperationRow], str]:
        wanted = {"resource_id": resource_id, "parent_id": parent_id, "resource_kind": kind}
        rows, after = self._newest(_UNFINISHED if unfinished else _OPERATIONS, wanted, page)
        return [operation_from(row) for row in rows], after

    def update_operation(self, operation: OperationRow) -> None:
        values = operation_values(operation)
        values["row_id"] = values.pop("id")
        if not self._do(_UPDATE_OPERATION, values):
            raise StoreError(f"The operation {operation.id} does not exist.")

    def remember(self, key: IdempotencyKey) -> None:
        if not self._insert_new(_INSERT_KEY, key_values(key)):
            raise AlreadyExists(f"The idempotency key {key.key!r} was used already.")

    def recall(self, subject: str, method: str, key: str) -> IdempotencyKey | None:
        row = self._one(_RECALL, {"subject": subject, "method": method, "key": key})
        return None if row is None else key_from(row)

    def forget_keys(self, before: datetime) -> int:
        return self._do(_FORGET, {"before": to_micros(before)})

    def list_audit(
        self, *, parent_id: str | None = None, resource_id: str | None = None, page: Page | None = None
    ) -> tuple[Sequence[AuditEvent], str]:
        rows, after = self._newest(_AUDIT, {"parent_id": parent_id, "resource_id": resource_id}, page)
        return [audit_from(row) for row in rows], after

    def put_secret(self, resource_id: str, name: str, value: bytes) -> None:
        sealed = self._vault.seal(resource_id, name, value)
        self._do(_DROP_SECRET, {"id": resource_id, "secret": name})
        self._do(_INSERT_SECRET, {"resource_id": resource_id, "name": name, "value": sealed})

    def secret(self, resource_id: str, name: str) -> bytes | None:
        row = self._one(_GET_SECRET, {"id": resource_id, "secret": name})
        return None if row is None else self._vault.open(resource_id, name, row.value)

    def _newest(
        self, statement: Select, wanted: Mapping[str, str | None], page: Page | None
    ) -> tuple[Any, str]:
        statement, values = chosen(statement, wanted)
        if page is None:
            return self._all(statement, values), ""
        statement, values["count"] = statement.limit(bindparam("count")), page.size + 1
        if page.after:
            seq = statement.selected_columns["seq"]
            statement, values["after"] = statement.where(seq < bindparam("after")), int(page.after)
        rows = self._all(statement, values)
        return rows[: page.size], str(rows[page.size - 1].seq) if len(rows) > page.size else ""
