"""The one implementation of `Transaction`, for both databases: resources, their queue and reservations.

A queue row without a lease is due when its `due_at` has come. Taking a lease clears `due_at`, so an `enqueue`
during the lease is kept and survives its release. A leased row is due when its lease has expired: the holder
is dead. A reservation relies on its primary key: of two writers that race for a value, one gets it.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from neocloud.core.store.event_rows import EventLogRows
from neocloud.core.store.protocol import (
    AlreadyExists,
    Lease,
    LeaseLost,
    Page,
    Resource,
    StaleVersion,
    is_noted,
)
from neocloud.core.store.records import RecordSession
from neocloud.core.store.resource_rows import ResourceRows
from neocloud.core.store.rows import (
    Rows,
    from_micros_or_none,
    history_values,
    insert_new,
    resource_from,
    resource_values,
    to_micros,
    to_micros_or_none,
)
from neocloud.core.store.tables import claims, counters, history, queue, resources, secrets

_INSERT_RESOURCE = insert_new(resources)
_INSERT_QUEUE = insert(queue).inline()
_INSERT_HISTORY = insert(history).inline()
_GET = select(resources).where(resources.c.id == bindparam("id"))
_EMPTY_TEXT: ColumnElement[str] = literal_column("''")
"""Written out: SQLite uses a partial index only if the statement contains the index's own condition."""
_FIND = select(resources).where(
    resources.c.kind == bindparam("kind"),
    resources.c.parent_id == bindparam("parent_id"),
    resources.c.name == bindparam("name"),
    resources.c.name != _EMPTY_TEXT,
)
_CHILDREN = select(resources).where(resources.c.parent_id == bindparam("parent_id")).order_by(resources.c.seq)
_OWNED = (
    select(resources)
    .where(resources.c.owner_id == bindparam("owner_id"), resources.c.owner_id != _EMPTY_TEXT)
    .order_by(resources.c.seq)
)
_OF_KIND = select(resources).where(resources.c.kind == bindparam("kind")).order_by(resources.c.seq)
_UPDATE = (
    update(resources)
    .where(resources.c.id == bindparam("row_id"))
    .values(
        {column.name: bindparam(column.name) for column in resources.c if column.name not in ("seq", "id")}
    )
)
_DELETE = delete(resources).where(resources.c.id == bindparam("id"))
_DELETE_SECRETS = delete(secrets).where(secrets.c.resource_id == bindparam("id"))
_RELEASE_ALL = delete(claims).where(claims.c.resource_id == bindparam("id"))
_DELETE_COUNTERS = delete(counters).where(counters.c.scope == bindparam("id"))
_ENQUEUE = (
    update(queue)
    .where(
        queue.c.resource_id == bindparam("id"),
        queue.c.due_at.is_(None) | (queue.c.due_at > bindparam("at")),
    )
    .values(due_at=bindparam("at"))
)

_IS_FREE = queue.c.lease_token == ""
_QUEUED_OF_KINDS = queue.c.kind.in_(bindparam("kinds", expanding=True))
_IS_DUE = or_(
    and_(_IS_FREE, queue.c.due_at <= bindparam("now")),
    and_(queue.c.lease_until <= bindparam("now"), queue.c.lease_until.is_not(None)),
)
_DUE = (
    select(queue.c.resource_id)
    .where(_QUEUED_OF_KINDS, _IS_DUE)
    .order_by(func.coalesce(queue.c.due_at, queue.c.lease_until), queue.c.resource_id)
    .limit(bindparam("count"))
)
_NEXT_DUE = select(func.min(queue.c.due_at)).where(_QUEUED_OF_KINDS, _IS_FREE)
_NEXT_EXPIRY = select(func.min(queue.c.lease_until)).where(_QUEUED_OF_KINDS, queue.c.lease_until.is_not(None))
_QUEUE_ROW = select(queue.c.due_at, queue.c.lease_token, queue.c.attempts).where(
    queue.c.resource_id == bindparam("id")
)
_LEASE = (
    update(queue)
    .where(queue.c.resource_id == bindparam("id"), _IS_DUE)
    .values(lease_token=bindparam("token"), lease_until=bindparam("until"), due_at=None)
)
_RENEW = (
    update(queue)
    .where(queue.c.resource_id == bindparam("id"), queue.c.lease_token == bindparam("token"))
    .values(lease_until=bindparam("until"))
)
_RELEASE_LEASE = (
    update(queue)
    .where(queue.c.resource_id == bindparam("id"))
    .values(lease_token="", lease_until=None, due_at=bindparam("due"), attempts=bindparam("tries"))
)
_CLEAR_LEASES = (
    update(queue)
    .where(_QUEUED_OF_KINDS, ~_IS_FREE)
    .values(lease_token="", lease_until=None, due_at=bindparam("at"))
)
_ENQUEUE_ALL = (
    update(queue)
    .where(_QUEUED_OF_KINDS, queue.c.due_at.is_(None) | (queue.c.due_at > bindparam("at")))
    .values(due_at=bindparam("at"))
)

_RESERVE = insert_new(claims)
_HOLDER = select(claims.c.resource_id).where(
    claims.c.space == bindparam("space"), claims.c.value == bindparam("value")
)
_RESERVATIONS = (
    select(claims.c.value, claims.c.resource_id)
    .where(claims.c.space == bindparam("space"))
    .order_by(claims.c.value)
)
_HELD = select(claims.c.space, claims.c.value).where(claims.c.resource_id == bindparam("resource_id"))
_RELEASE = delete(claims).where(claims.c.space == bindparam("space"), claims.c.value == bindparam("value"))


class SqlTransaction(RecordSession, EventLogRows, ResourceRows):
    """A transaction over one SQLAlchemy connection. It is valid until its work returns."""

    # Resources
    def insert(self, resource: Resource) -> None:
        values = resource_values(resource, self._vault)
        if not self._insert_new(_INSERT_RESOURCE, values):
            raise AlreadyExists(self._why_taken(resource))
        self._do(
            _INSERT_QUEUE,
            {"resource_id": resource.id, "kind": resource.kind, "due_at": values["created_at"]},
        )
        self._do(_INSERT_HISTORY, history_values(resource, resource.created_at, self._vault))
        self._notify(None, resource)

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
            statement = statement.where(resources.c.parent_id == bindparam("parent_id"))
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
        self._check_name_is_free(old, resource)
        self._replace(old, resource)
        self.enqueue(resource.id, self._clock.now())

    def delete(self, resource_id: str) -> None:
        resource = self.get(resource_id)
        if resource is None:
            return
        self._do(_DELETE_SECRETS, {"id": resource_id})
        self._do(_RELEASE_ALL, {"id": resource_id})
        self._do(_DELETE_COUNTERS, {"id": resource_id})
        self._do(_DELETE, {"id": resource_id})
        self._do(_INSERT_HISTORY, history_values(resource, self._clock.now(), self._vault, is_deleted=True))
        self._notify(resource, None)

    def enqueue(self, resource_id: str, at: datetime) -> None:
        self._do(_ENQUEUE, {"id": resource_id, "at": to_micros(at)})

    def _replace(self, old: Resource, new: Resource, at: datetime | None = None) -> None:
        values = resource_values(new, self._vault)
        values["row_id"] = values.pop("id")
        self._do(_UPDATE, values)
        if is_noted(old, new):
            self._do(_INSERT_HISTORY, history_values(new, at or self._clock.now(), self._vault))
        if is_noted(old, new) or old.parent_id != new.parent_id:
            self._notify(old, new)

    def _notify(self, old: Resource | None, new: Resource | None) -> None:
        if self._watch is not None:
            self._watch(self, old, new)

    def _check_name_is_free(self, old: Resource, new: Resource) -> None:
        """Raise AlreadyExists before the update: a failed one could invalidate the transaction."""
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

    # Queue
    def due(self, kinds: Sequence[str], now: datetime, limit: int) -> Sequence[str]:
        values = {"kinds": list(kinds), "now": to_micros(now), "count": limit}
        return [row.resource_id for row in self._all(_DUE, values)]

    def next_due(self, kinds: Sequence[str]) -> datetime | None:
        values = {"kinds": list(kinds)}
        times = (self._one(_NEXT_DUE, values)[0], self._one(_NEXT_EXPIRY, values)[0])
        return from_micros_or_none(min((at for at in times if at is not None), default=None))

    def lease(self, resource_id: str, token: str, now: datetime, until: datetime) -> Lease | None:
        values = {"id": resource_id, "token": token, "now": to_micros(now), "until": to_micros(until)}
        if not self._do(_LEASE, values):
            return None
        row = self._one(_QUEUE_ROW, {"id": resource_id})
        return Lease(resource_id, token, until, row.attempts)

    def commit_result(
        self,
        lease: Lease,
        *,
        status: bytes | None,
        state: str | None,
        observed_version: int | None,
        finalizers: tuple[str, ...] | None,
        due_at: datetime | None,
        attempts: int,
        now: datetime,
    ) -> None:
        enqueued_at = self._held(lease)
        due = min((at for at in (enqueued_at, to_micros_or_none(due_at)) if at is not None), default=None)
        self._do(_RELEASE_LEASE, {"id": lease.resource_id, "due": due, "tries": attempts})
        old = self.get(lease.resource_id)
        if old is None:
            raise LeaseLost(f"{lease.resource_id} does not exist any more.")
        new = replace(
            old,
            status=old.status if status is None else status,
            state=old.state if state is None else state,
            observed_version=old.observed_version if observed_version is None else observed_version,
            finalizers=old.finalizers if finalizers is None else finalizers,
        )
        if new != old:
            self._replace(old, new, now)

    def renew(self, lease: Lease, until: datetime) -> Lease:
        values = {"id": lease.resource_id, "token": lease.token, "until": to_micros(until)}
        if not self._do(_RENEW, values):
            raise LeaseLost(f"The lease on {lease.resource_id} was lost to another worker.")
        return replace(lease, until=until)

    def check_lease(self, lease: Lease) -> None:
        self._held(lease)

    def clear_leases(self, kinds: Sequence[str]) -> int:
        return self._do(_CLEAR_LEASES, {"kinds": list(kinds), "at": to_micros(self._clock.now())})

    def enqueue_all(self, kinds: Sequence[str], at: datetime) -> int:
        return self._do(_ENQUEUE_ALL, {"kinds": list(kinds), "at": to_micros(at)})

    def _held(self, lease: Lease) -> int | None:
        """Return when the resource was enqueued during this lease, in microseconds."""
        row = self._one(_QUEUE_ROW, {"id": lease.resource_id})
        if row is None or row.lease_token != lease.token:
            raise LeaseLost(f"The lease on {lease.resource_id} was lost to another worker.")
        return row.due_at

    # Reservations
    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        if self._insert_new(_RESERVE, {"space": namespace, "value": value, "resource_id": resource_id}):
            return True
        row = self._row(_HOLDER, {"space": namespace, "value": value})
        return row is not None and row[0] == resource_id

    def reservations(self, namespace: str) -> Mapping[str, str]:
        return {row.value: row.resource_id for row in self._all(_RESERVATIONS, {"space": namespace})}

    def held_by(self, resource_id: str) -> Set[tuple[str, str]]:
        return {(row.space, row.value) for row in self._all(_HELD, {"resource_id": resource_id})}

    def release(self, namespace: str, value: str) -> None:
        self._do(_RELEASE, {"space": namespace, "value": value})


def _one_page(statement: Rows, page: Page) -> Rows:
    """Select one row more than the page has, to know whether there is a next page."""
    if page.after:
        statement = statement.where(resources.c.seq > int(page.after))
    return statement.limit(page.size + 1)
