"""A kind of resource: its standard verbs, its states, what is legal, and what a change or deletion entails.

The rules of a kind name the dependents of a resource, which are reconciled after a change. A dependent
without a reconciler stands for its own: a security rule names its group, the group its network, and the
network is enqueued. A resource to be deleted is marked first; its row is removed once no finalizer is left.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar

from google.protobuf.message import Message

from neocloud.core import operations, wire
from neocloud.core.readers import ResourceReader, ServiceRegistry
from neocloud.core.store.protocol import Resource, Transaction

M = TypeVar("M", bound=Message)

FINALIZER = "reconcile"
"""The finalizer that the worker drops when the delete steps have succeeded and nothing is owned any more."""


@dataclass(frozen=True)
class Violation:
    """One wrong field, as a client can show it: `spec.node_sets[0].count`, why, and what would be right."""

    field: str
    message: str


class Rules(Generic[M]):
    """The rules for one kind, whose message is M: `class DiskRules(Rules[Disk])`.

    Pure: rules see messages and the ResourceReader. Override what is needed.
    Annotations of the contract (required, immutable, ranges, patterns) are checked before and elsewhere.
    """

    is_demand_of_status = False
    """Whether `quota_demand` looks at the status, too: a resource that has ended takes less, and takes it all
    again with a request of its caller alone."""

    def defaults(self, resource: M) -> None:
        """Fill in NON_EMPTY_DEFAULT fields of a new or changed resource, in place. A kind without a
        reconciler sets its status here too; what it sets is stored."""

    def owner_id(self, resource: M) -> str:
        """The resource whose deletion takes a new one along, e.g. a key's service account; "" for none."""
        return ""

    def quota_demand(self, resource: M) -> Mapping[str, int]:
        """Return what the resource takes of each quota while it exists: {"compute.disk.count": 1}. Amounts
        are in the units of the quota (bytes, not GiB), and depend on spec and labels alone, except for kinds
        with `is_demand_of_status`. Names and limits: services/quotas/quotas.yaml.
        """
        return {}

    def request_violations(self, request: Any) -> Iterable[Violation]:
        """Yield the violations of a Create or Update request by itself, as it was sent: an Update may leave
        out what stays. Runs before the transaction. All parsing of what a tenant wrote (YAML, keys, long
        lists of ranges) belongs here: in `violations` it would keep every other tenant's writes waiting.
        """
        return ()

    def violations(self, new: M, old: M | None, reader: ResourceReader) -> Iterable[Violation]:
        """Yield the violations of the merged resource; `old` is None on create. May raise ApiError for
        anything that is not a wrong field, e.g. not_enough_resources.
        """
        return ()

    def complete(self, new: M, old: M | None, reader: ResourceReader) -> None:
        """Last, once it is legal: set what follows from the reader, in place, e.g. a reserved address. The
        values that it sets are stored, except that the status of a reconciled kind changes only on create.
        Also run for children that reconcilers make; of those only the status is kept. May raise ApiError,
        e.g. not_enough_resources.
        """

    def companions(self, resource: M, reader: ResourceReader) -> Iterable[Resource]:
        """Rows that a Create makes together with the new resource, e.g. a network's route table. They are
        the rules' own, complete as they are."""
        return ()

    def changes_what_runs(self, new: M, old: M) -> bool:
        """Return whether an update alters what the resource runs, or makes it run. Asked of resources that
        act as an account: such a change needs the right to act as it. Without an answer of its own, a kind
        says yes to every change of the spec.
        """
        return new.spec != old.spec  # type: ignore[attr-defined]

    def dependents(self, resource: M) -> Iterable[str]:
        """Ids of those whose reconcilers must look when this one was made, changed (also its status or
        state) or removed. A kind without a reconciler passes it on to whom it wakes itself."""
        return ()

    def check_delete(self, resource: M, reader: ResourceReader) -> None:
        """Raise ApiError (bad state) when the resource must not be deleted now."""


AnyRules: TypeAlias = Rules[Any]
_NO_DEPENDENTS = AnyRules.dependents
_NOTHING_TO_COMPLETE = AnyRules.complete

View = Callable[[Any, Transaction, datetime], None]
"""Sets, in place, the part of a resource's message that follows from the time or from other rows."""
OutsideView = Callable[[Any, datetime, ServiceRegistry], None]
"""Sets, in place, the part that is not computed from rows: gets the time and `Dependencies.provided`."""


@dataclass(frozen=True)
class Kind:
    """One resource kind and its standard verbs.

    `permission` is a prefix: "slurm.clusters" guards Create with "slurm.clusters.create" and so on
    (get and list need "...get" and "...list"; GetByName needs get). `initial_state` is what Create stores in
    status.state; kinds without a reconciler are done at once in it.
    """

    message: str
    """Full name of the resource message: "neocloud.slurm.v1.Cluster"."""
    rpc: str
    """Full name of the gRPC service: "neocloud.slurm.v1.ClusterService"."""
    id_prefix: str
    permission: str
    parent_kinds: tuple[str, ...]
    """Kinds that may be the parent, by message name."""
    verbs: frozenset[str] = frozenset({"Create", "Get", "GetByName", "List", "Update", "Delete"})
    rules: AnyRules = field(default_factory=AnyRules)
    initial_state: str = ""
    deleting_state: str = "DELETING"
    stopped_state: str = ""
    """The state to be in while the whole cloud is stopped; "" for kinds that workloads do not matter to."""
    working_states: frozenset[str] = frozenset()
    """The states in which a stop matters, e.g. of a job that runs; empty: all of them."""
    is_reconciled: bool = False
    reference_verb: str = "get"
    """The right that a caller needs on a resource of the kind to name it in another one's spec."""
    runs_others: bool = False
    """Resources that name one of the kind run on it, beside the keys of the account that it acts as: to name
    it needs the right to act as that account, too."""
    is_named_anyway: bool = False
    """The contract calls the kind unnamed, and clients give it names anyway."""
    is_named_by_rules: bool = False
    """Whether the rules decide about names, instead of the letters, digits and dashes of our own nouns."""
    method_overrides: Mapping[str, str] = field(default_factory=dict[str, str])
    """Standard verbs that another service of the contract has for this kind: verb to method path."""
    view: View | None = None
    """Computes parts of the status each time a resource of the kind is read."""
    outside_view: OutsideView | None = None
    larger_request_bytes: int = 0
    """Bytes that a Create or Update may hold beyond what every request may; 0 where no field needs more."""

    @property
    def finalizers(self) -> tuple[str, ...]:
        """Return the finalizers of a new resource: a row with a finalizer is removed only when its reconciler
        has cleaned up.
        """
        return (FINALIZER,) if self.is_reconciled else ()

    @property
    def has_dependents(self) -> bool:
        """Return whether the rules name dependents, on which a change of a resource of this kind has an
        effect.
        """
        return type(self.rules).dependents is not _NO_DEPENDENTS

    def dependents(self, row: Resource) -> Iterable[str]:
        """Return the ids of the resources to reconcile when this one changes."""
        if not self.has_dependents:
            return ()  # the row need not be decoded
        return self.rules.dependents(wire.resource_message(row))

    def completed(self, row: Resource, old: Resource | None, reader: ResourceReader) -> Resource:
        """A new or changed child with the status that the rules complete. A reconciler that the kind has is
        alone with the status once the child is there."""
        if type(self.rules).complete is _NOTHING_TO_COMPLETE or (old is not None and self.is_reconciled):
            return row
        resource = wire.resource_message(row)
        self.rules.complete(resource, wire.resource_message(old) if old else None, reader)
        state = wire.state_of(resource) or row.state
        return replace(row, status=resource.status.SerializeToString(), state=state)


def enqueue_dependents(
    tx: Transaction, kinds: Mapping[str, Kind], rows: Iterable[Resource], now: datetime
) -> bool:
    """Enqueue the dependents of these rows; True when there was one.

    Call it in the transaction that creates, changes or removes the rows, with the old and the new row of a
    change, since either may name dependents.
    """
    waiting = list(rows)
    seen = {row.id for row in waiting}
    has_enqueued = False
    while waiting:
        row = waiting.pop()
        kind = kinds.get(row.kind)
        for other_id in kind.dependents(row) if kind else ():
            if not other_id or other_id in seen:
                continue
            seen.add(other_id)
            other = tx.get(other_id)
            if other is None:
                continue
            if other.finalizers:
                tx.enqueue(other_id, now)
                has_enqueued = True
            else:
                waiting.append(other)
    return has_enqueued


Kinds = Mapping[str, Kind]


def mark_for_deletion(tx: Transaction, kinds: Kinds, resource: Resource, now: datetime) -> None:
    """Mark it for deletion, or delete it immediately if it has no finalizers. May be repeated."""
    if resource.deleted_at is not None:
        return
    if not resource.finalizers:
        delete_row(tx, kinds, resource, now)
        return
    operations.abort_unfinished(tx, resource.id, now, f"Deleted together with {resource.owner_id}.")
    state = kinds[resource.kind].deleting_state
    status = wire.with_state(resource.kind, resource.status, state)
    tx.update(replace(resource, deleted_at=now, updated_at=now, state=state, status=status))
    enqueue_dependents(tx, kinds, [resource], now)


def delete_row(tx: Transaction, kinds: Kinds, resource: Resource, now: datetime) -> None:
    """Remove the row, end its operations, and enqueue the resources that may wait for its removal.

    Owned resources are deleted too; those with a reconciler are only marked.
    """
    for owned in tx.owned(resource.id):
        mark_for_deletion(tx, kinds, owned, now)
    tx.delete(resource.id)
    operations.finish_removed(tx, resource.id, now)
    enqueue_dependents(tx, kinds, [resource], now)
    for waiting in (resource.owner_id, resource.parent_id):
        if waiting:
            tx.enqueue(waiting, now)
