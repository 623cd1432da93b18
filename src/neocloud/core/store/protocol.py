"""The interface between the control plane and its database.

A store holds resources, operations, idempotency keys, audit events, state history, reservations, counters,
marks and secrets. All work happens in transactions: a plain function that gets a `Transaction`. It is
synchronous on purpose: no network call can hide inside. Writers are serialised per store (SQLite) or by the
database (PostgreSQL); a writer that raises leaves nothing behind.

The store knows no message types: spec and status are bytes. It never decides what is legal.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeVar

from neocloud.core.store.audit_query import AuditEvent, AuditQuery
from neocloud.core.store.event_log import EventLogs
from neocloud.core.store.resource_query import ResourceSearch

Result = TypeVar("Result")


class StoreError(Exception):
    """The database could not do it; the message says what to do next (disk full, unreachable, newer)."""


class AlreadyExists(StoreError):
    """Another live resource of the kind has this name under this parent, or this id."""


class LeaseLost(StoreError):
    """Another worker has leased the row, or it is gone; drop the result of the run."""


class StaleVersion(StoreError):
    """The row was changed or removed since it was read; read it again and repeat the change."""


@dataclass(frozen=True)
class Resource:
    """One row: identity and metadata as columns, spec and status as protobuf bytes.

    `resource_version` rises with each change of the spec. `observed_version` is the resource_version that the
    reconciler last made true. `deleted_at` means: deletion was asked for; the row goes when `finalizers` is
    empty.
    """

    id: str
    kind: str
    parent_id: str
    name: str
    created_at: datetime
    updated_at: datetime
    resource_version: int = 1
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    spec: bytes = b""
    status: bytes = b""
    state: str = ""
    owner_id: str = ""
    finalizers: tuple[str, ...] = ()
    deleted_at: datetime | None = None
    observed_version: int = 0


@dataclass(frozen=True)
class OperationRow:
    """One long-running operation; finished when `code` is set (0 is success)."""

    id: str
    resource_id: str
    resource_kind: str
    parent_id: str
    method: str
    description: str
    created_by: str
    created_at: datetime
    resource_version: int
    request: bytes = b""
    request_headers: Mapping[str, str] = field(default_factory=dict[str, str])
    finished_at: datetime | None = None
    code: int | None = None
    message: str = ""
    details: bytes = b""
    progress: str = ""
    request_id: str = ""
    """The id of the request that caused it, for the log; empty in operations of older releases."""


@dataclass(frozen=True)
class IdempotencyKey:
    subject: str
    method: str
    key: str
    request_hash: str
    response: bytes
    created_at: datetime


@dataclass(frozen=True)
class HistoryEntry:
    """A resource entered `state` with this spec at `at`. Never changed; metering reads nothing else."""

    resource_id: str
    kind: str
    parent_id: str
    name: str
    at: datetime
    state: str
    resource_version: int
    spec: bytes
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    is_deleted: bool = False


HistorySizes = Mapping[str, tuple[int, int]]
"""Entries of the history and their bytes, as `entry_bytes` counts them, by the parent of their resource."""


@dataclass(frozen=True)
class Mark:
    """A number that is forgotten at `until`."""

    amount: int
    until: datetime


@dataclass(frozen=True)
class Lease:
    """The right of one worker to reconcile one resource until `until`."""

    resource_id: str
    token: str
    until: datetime
    attempts: int
    """How many times in a row reconciling ended in an unexpected error."""


@dataclass(frozen=True)
class Page:
    """Rows after `after` (an opaque sort key), at most `size`."""

    size: int = 100
    after: str = ""


class Transaction(EventLogs, ResourceSearch, Protocol):
    # Resources
    def insert(self, resource: Resource) -> None:
        """Raises AlreadyExists. Also appends to the history and makes the row due at once."""
        ...

    def get(self, resource_id: str) -> Resource | None: ...

    def find(self, kind: str, parent_id: str, name: str) -> Resource | None: ...

    def list(
        self, kind: str, *, parent_id: str | None = None, page: Page | None = None
    ) -> tuple[Sequence[Resource], str]:
        """Resources in order of creation and the `after` of the next page ("" when there is none)."""
        ...

    def children(self, resource_id: str) -> Sequence[Resource]:
        """Resources with this parent, whatever the kind, also those being deleted."""
        ...

    def owned(self, owner_id: str) -> Sequence[Resource]: ...

    def update(self, resource: Resource, *, expected_version: int | None = None) -> None:
        """Write metadata, spec, status, state, finalizers; raises StaleVersion if the row's version is not
        the expected one. Appends to the history when state, spec or labels changed. Makes the row due."""
        ...

    def delete(self, resource_id: str) -> None:
        """Remove the row, its secrets, reservations and counters; the history keeps a last entry."""
        ...

    # Reconciling
    def due(self, kinds: Sequence[str], now: datetime, limit: int) -> Sequence[str]:
        """Ids of resources that want reconciling: due time reached and no live lease."""
        ...

    def next_due(self, kinds: Sequence[str]) -> datetime | None: ...

    def lease(self, resource_id: str, token: str, now: datetime, until: datetime) -> Lease | None:
        """Take the lease, or None when another worker holds it or nothing is due any more."""
        ...

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
        """Release the lease and write the result of the run. Raises LeaseLost. An enqueue() during the lease
        wins over `due_at`: the row stays due."""
        ...

    def renew(self, lease: Lease, until: datetime) -> Lease:
        """Raises LeaseLost."""
        ...

    def check_lease(self, lease: Lease) -> None:
        """Raises LeaseLost unless this lease is still the one that holds."""
        ...

    def enqueue(self, resource_id: str, at: datetime) -> None:
        """Make the resource due at `at` unless it is due sooner. Unknown ids are ignored."""
        ...

    def enqueue_all(self, kinds: Sequence[str], at: datetime) -> int:
        """Wake every resource of these kinds: what happened while nobody looked is not known."""
        ...

    def clear_leases(self, kinds: Sequence[str]) -> int:
        """Take over from a dead worker at once. Only for a store that one worker uses."""
        ...

    # Operations
    def insert_operation(self, operation: OperationRow) -> None: ...

    def get_operation(self, operation_id: str) -> OperationRow | None: ...

    def list_operations(
        self,
        *,
        resource_id: str | None = None,
        parent_id: str | None = None,
        kind: str | None = None,
        unfinished: bool = False,
        page: Page | None = None,
    ) -> tuple[Sequence[OperationRow], str]:
        """Newest first."""
        ...

    def update_operation(self, operation: OperationRow) -> None: ...

    # Idempotency, audit, history
    def remember(self, key: IdempotencyKey) -> None: ...

    def recall(self, subject: str, method: str, key: str) -> IdempotencyKey | None: ...

    def forget_keys(self, before: datetime) -> int: ...

    def audit(self, event: AuditEvent) -> None: ...

    def list_audit(
        self,
        *,
        parent_id: str | None = None,
        resource_id: str | None = None,
        page: Page | None = None,
    ) -> tuple[Sequence[AuditEvent], str]:
        """Newest first."""
        ...

    def find_audit(self, query: AuditQuery, page: Page) -> tuple[Sequence[AuditEvent], str]:
        """The events of one tenant that the query asks for, in order of time; and the `after` of the next."""
        ...

    def forget_audit(self, before: datetime, limit: int) -> int:
        """Remove the oldest events of before this time, at most `limit`; says how many."""
        ...

    def history(
        self,
        *,
        kinds: Sequence[str] | None = None,
        parent_id: str | None = None,
        resource_id: str | None = None,
        until: datetime | None = None,
    ) -> Sequence[HistoryEntry]:
        """In order of time."""
        ...

    def last_entry(self, resource_id: str) -> HistoryEntry | None:
        """The newest entry in the resource's history, which outlives the resource."""
        ...

    def history_sizes(self) -> HistorySizes:
        """Return the sizes of the whole history. Reads the whole table."""
        ...

    def forget_history(
        self, before: datetime, page: Page, *, keep: Sequence[str] = ()
    ) -> tuple[HistorySizes, str]:
        """Look at one page of the history and remove the entries that were replaced before this time, by a
        newer one or the end of their resource, except those of the kinds in `keep`. The state of every
        resource at that time stays known, and the last entry of each parent while there are others of its
        children. Return what was removed and the `after` of the next page ("": none).
        """
        ...

    # Reservations: a value in a namespace, e.g. an address in a pool, belongs to one resource until its end.
    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        """True when the value is this resource's now, or was already; False when another holds it."""
        ...

    def reservations(self, namespace: str) -> Mapping[str, str]:
        """Return the holders of all values in the namespace: resource ids by value."""
        ...

    def held_by(self, resource_id: str) -> Set[tuple[str, str]]:
        """Return what the resource holds: (namespace, value). The cost grows only with what it holds."""
        ...

    def release(self, namespace: str, value: str) -> None:
        """Release the reservation, whichever resource holds it; a value that is not reserved is ignored."""
        ...

    # Counters: sums kept beside what they count. A scope is usually the id of a resource, and goes with it.
    def count(self, scope: str, name: str, change: int) -> int:
        """Add to a counter, made at 0 when it is new; its new amount."""
        ...

    def counters(self, scope: str) -> Mapping[str, int]:
        """The counters of a scope that are not 0, by name."""
        ...

    def all_counters(self) -> Mapping[tuple[str, str], int]:
        """Every counter that is not 0, by scope and name."""
        ...

    # Marks: numbers that end by themselves, each in a space under a name.
    def mark(self, space: str, name: str, now: datetime) -> Mark | None:
        """None when there is none, or it has ended by now."""
        ...

    def put_mark(self, space: str, name: str, mark: Mark) -> None:
        """In place of the one that is there."""
        ...

    def remove_mark(self, space: str, name: str) -> None: ...

    def count_marks(self, space: str) -> int:
        """Return the number of marks in the space, including ended ones that are not removed yet."""
        ...

    def forget_ended_marks(self, now: datetime) -> int:
        """Remove ended marks of every space; return how many were removed."""
        ...

    def forget_marks(self, space: str, now: datetime, *, below: int = 0, limit: int = 0) -> int:
        """Remove the marks of the space that have ended by now; with a `limit`, also as many of the others
        with an amount below `below`, those that end first. Says how many are gone."""
        ...

    # Secrets: encrypted at rest, gone with their resource. An id that is not a resource may have secrets too.
    def put_secret(self, resource_id: str, name: str, value: bytes) -> None: ...

    def secret(self, resource_id: str, name: str) -> bytes | None: ...


Watcher = Callable[[Transaction, Resource | None, Resource | None], None]
"""Called for each resource that is inserted (None, new), gets another spec, labels, state or parent (old,
new) or is removed (old, None), inside the transaction that does it. An exception of it undoes that
transaction.
"""


def is_noted(old: Resource, new: Resource) -> bool:
    """Return whether a change of a resource is recorded in the history."""
    return (old.state, old.spec, dict(old.labels)) != (new.state, new.spec, dict(new.labels))


def watched_by(*watchers: Watcher) -> Watcher:
    """One for several, told in this order."""

    def watch(tx: Transaction, old: Resource | None, new: Resource | None) -> None:
        for each in watchers:
            each(tx, old, new)

    return watch


class Store(Protocol):
    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        """Run on a consistent snapshot; must not write."""
        ...

    async def read_long(self, work: Callable[[Transaction], Result]) -> Result:
        """The same for work that takes long, such as a bill: it keeps nobody else waiting."""
        ...

    async def write(self, work: Callable[[Transaction], Result]) -> Result:
        """Run, commit durably, return. `work` may be run again after a serialisation conflict."""
        ...

    async def close(self) -> None: ...
