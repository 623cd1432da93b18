"""Resources in a transaction: insert, look up, list, update, delete, each with its entry in the history."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import cast

from sqlalchemy import Select, bindparam, delete, insert, literal_column, select, update

from neocloud.core.store.protocol import AlreadyExists, Page, Resource, StaleVersion, Transaction, is_noted
from neocloud.core.store.rows import history_values, resource_from, resource_values, to_micros
from neocloud.core.store.session import Session, insert_new
from neocloud.core.store.tables import claims, counters, history, queue, resources, secrets

_c = resources.c
_INSERT = insert_new(resources)
_INSERT_QUEUE = insert(queue).inline()
_INSERT_HISTORY = insert(history).inline()
_GET = select(resources).where(_c.id == bindparam("id"))
_NOTHING = literal_column("''")
"""Written out: SQLite uses a partial index only where it reads the index's own condition in the statement."""
_FIND = select(resources).where(
    _c.kind == bindparam("kind"),
    _c.parent_id == bindparam("parent_id"),
    _c.name == bindparam("name"),
    _c.name != _NOTHING,
)
_CHILDREN = select(resources).where(_c.parent_id == bindparam("parent_id")).order_by(_c.seq)
_OWNED = (
    select(resources).where(_c.owner_id == bindparam("owner_id"), _c.owner_id != _NOTHING).order_by(_c.seq)
)
_OF_KIND = select(resources).where(_c.kind == bindparam("kind")).order_by(_c.seq)
_UPDATE = (
    update(resources)
    .where(_c.id == bindparam("row_id"))
    .values({column.name: bindparam(column.name) for column in _c if column.name not in ("seq", "id")})
)
_DELETE = delete(resources).where(_c.id == bindparam("id"))
_DELETE_SECRETS = delete(secrets).where(secrets.c.resource_id == bindparam("id"))
_DELETE_CLAIMS = delete(claims).where(claims.c.resource_id == bindparam("id"))
_DELETE_COUNTERS = delete(counters).where(counters.c.scope == bindparam("id"))
_WAKE = (
    update(queue)
    .where(
        queue.c.resource_id == bindparam("id"),
        queue.c.due_at.is_(None) | (queue.c.due_at > bindparam("at")),
    )
    .values(due_at=bindparam("at"))
)


class ResourceRows(Session):
    def insert(self, resource: Resource) -> None:
        values = resource_values(resource, self._vault)
        if not self._insert_new(_INSERT, values):
            raise AlreadyExists(self._why_taken(resource))
        self._do(
            _INSERT_QUEUE,
            {"resource_id": resource.id, "kind": resource.kind, "due_at": values["created_at"]},
        )
        self._do(_INSERT_HISTORY, history_values(resource, resource.created_at, self._vault))
        self._tell(None, resource)

    def get(self, resource_id: str) -> Resource | None:
        row = self._row(_GET, {"id": resource_id})
        return None if row is None else resource_from(row, self._vault)

    def find(self, kind: str, parent_id: str, name: str) -> Resource | None:
        row = self._row(_FIND, {"kind": kind, "parent_id": parent_id, "name": name})
        return None if row is None else resource_from(row, self._vault)

    def list(
        self, kind: str, *, parent_id: str | None = None, page: Page | None = None
    ) -> tuple[Sequence[Resource], str]:
        statement, values = _OF_KIND, {"kind": kind}
        if parent_id is not None:
            statement = statement.where(_c.parent_id == bindparam("parent_id"))
            values["parent_id"] = parent_id
        if page is None:
            return [resource_from(row, self._vault) for row in self._all(statement, values)], ""
        rows = self._all(_one_page(statement, page), values)
        more = str(rows[page.size - 1].seq) if len(rows) > page.size else ""
        return [resource_from(row, self._vault) for row in rows[: page.size]], more

    def children(self, resource_id: str) -> Sequence[Resource]:
        return [resource_from(row, self._vault) for row in self._all(_CHILDREN, {"parent_id": resource_id})]

    def owned(self, owner_id: str) -> Sequence[Resource]:
        return [resource_from(row, self._vault) for row in self._all(_OWNED, {"owner_id": owner_id})]

    def update(self, resource: Resource, *, expected_version: int | None = None) -> None:
        old = self.get(resource.id)
        if old is None:
            raise StaleVersion(f"{resource.id} does not exist any more.")
        if expected_version is not None and old.resource_version != expected_version:
            raise StaleVersion(
                f"{resource.id} is at version {old.resource_version}, not at {expected_version}: "
                "somebody changed it meanwhile."
            )
        self._check_place(old, resource)
        self._replace(old, resource)
        self.enqueue(resource.id, self._clock.now())

    def delete(self, resource_id: str) -> None:
        resource = self.get(resource_id)
        if resource is None:
            return
        self._do(_DELETE_SECRETS, {"id": resource_id})
        self._do(_DELETE_CLAIMS, {"id": resource_id})
        self._do(_DELETE_COUNTERS, {"id": resource_id})
        self._do(_DELETE, {"id": resource_id})
        self._do(_INSERT_HISTORY, history_values(resource, self._clock.now(), self._vault, is_deleted=True))
        self._tell(resource, None)

    def enqueue(self, resource_id: str, at: datetime) -> None:
        self._do(_WAKE, {"id": resource_id, "at": to_micros(at)})

    def _replace(self, old: Resource, new: Resource, at: datetime | None = None) -> None:
        values = resource_values(new, self._vault)
        values["row_id"] = values.pop("id")
        self._do(_UPDATE, values)
        if is_noted(old, new):
            self._do(_INSERT_HISTORY, history_values(new, at or self._clock.now(), self._vault))
        if is_noted(old, new) or old.parent_id != new.parent_id:
            self._tell(old, new)

    def _tell(self, old: Resource | None, new: Resource | None) -> None:
        if self._watch is not None:
            self._watch(cast(Transaction, self), old, new)

    def _check_place(self, old: Resource, new: Resource) -> None:
        """A new name or parent must be free; asked first, since a failed update may spoil the transaction."""
        moved = replace(old, parent_id=new.parent_id, name=new.name)
        if moved == old or not new.name:
            return
        other = self.find(new.kind, new.parent_id, new.name)
        if other is not None and other.id != new.id:
            raise AlreadyExists(self._why_taken(new))

    def _why_taken(self, resource: Resource) -> str:
        if resource.name and (other := self.find(resource.kind, resource.parent_id, resource.name)):
            return f"The name {resource.name!r} is taken by {other.id}."
        return f"{resource.id} exists already."


def _one_page(statement: Select, page: Page) -> Select:
    """One row more than asked for, to know whether there is a next page."""
    if page.after:
        statement = statement.where(_c.seq > int(page.after))
    return statement.limit(page.size + 1)
