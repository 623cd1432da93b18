"""How a brick tells the rest what it is: Service, Kind, Method, Rules.

The server, the reconcile worker and billing are built from these tables and know no service by name. A kind
that needs nothing special is one `Kind(...)` line: the six standard verbs are generic.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import Message

from neocloud.core import wire
from neocloud.core.clock import Clock
from neocloud.core.reconcile.reconciler import FINALIZER, Reconciler
from neocloud.core.registry import ServiceRegistry
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.core.usage import Meter, Meters

if TYPE_CHECKING:
    from neocloud.engines.base import Engine
    from neocloud.settings import Settings


@dataclass(frozen=True)
class Subject:
    """Who calls: a service account or user id, and the tenant it belongs to."""

    id: str
    kind: str
    """"service_account" or "user"."""
    name: str
    tenant_id: str
    scopes: tuple[str, ...] | None = None
    """Patterns of permissions that this sign-in is limited to, whatever the account may; None: no limit."""
    impersonator_id: str = ""
    """Who really calls, when they act as the subject."""


@dataclass(frozen=True)
class Violation:
    """One wrong field, as a client can show it: `spec.node_sets[0].count`, why, and what would be right."""

    field: str
    message: str


class World(Protocol):
    """What pure rules may look up; backed by the transaction that writes the resource."""

    now: datetime
    inventory: Any
    """The engine's Capabilities as last read (engines.base.Capabilities)."""
    subject: "Subject | None"
    """Who asks; rules that hand out rights check that the giver has them."""
    provided: ServiceRegistry
    """What services offer to one another, as in Dependencies; empty where no request is behind it."""

    def get(self, resource_id: str) -> Resource | None: ...

    def find(self, kind: str, parent_id: str, name: str) -> Resource | None: ...

    def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]: ...

    def owned(self, owner_id: str) -> Sequence[Resource]:
        """Resources that go when this one is deleted, e.g. the keys of a service account."""
        ...

    def reservations(self, namespace: str) -> Mapping[str, str]:
        """Who holds what in the namespace: resource ids by value."""
        ...

    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        """Take the value for the resource (its `metadata.id`) until that is deleted; False when another
        holds it. Taken back when the request is refused after all."""
        ...

    def release(self, namespace: str, value: str) -> None:
        """Give the value back before its holder is deleted, also only if the request succeeds."""
        ...


class Rules:
    """What is legal for one kind. Pure: sees messages and the World. Override what is needed.

    Annotations of the contract (required, immutable, ranges, patterns) are checked before and elsewhere.
    """

    def defaults(self, resource: Message) -> None:
        """Fill in NON_EMPTY_DEFAULT fields of a new or changed resource, in place. A kind without a
        reconciler sets its status here too; what it sets is stored."""

    def owner_id(self, resource: Message) -> str:
        """The resource whose deletion takes a new one along, e.g. a key's service account; "" for none."""
        return ""

    def quota_demand(self, resource: Message) -> Mapping[str, int]:
        """What the resource takes of which quota while it exists: {"compute.disk.count": 1}. In the units of
        the quota (bytes, not GiB), and of spec and labels alone: a status that changes by itself is no
        demand. Names and limits: services/quotas/quotas.yaml."""
        return {}

    def request_violations(self, request: Message) -> Iterable[Violation]:
        """What is wrong with a Create or Update request by itself, as it was sent: an Update may leave out
        what stays. Runs before the transaction. All parsing of what a tenant wrote (YAML, keys, long lists of
        ranges) belongs here: in `violations` it would keep every other tenant's writes waiting."""
        return ()

    def violations(self, new: Message, old: Message | None, world: World) -> Iterable[Violation]:
        """What is wrong with the merged resource; `old` is None on create. May raise ApiError for anything
        that is not a wrong field, e.g. not_enough_resources."""
        return ()

    def complete(self, new: Message, old: Message | None, world: World) -> None:
        """Last, once it is legal: what follows from the World, in place, e.g. an address claimed for it. What
        it sets is stored, save that the status of a reconciled kind changes only on create. Also run for
        children that reconcilers make; of those only the status is kept. May raise ApiError, e.g.
        not_enough_resources."""

    def born_with(self, resource: Message, world: World) -> Iterable[Resource]:
        """Rows that a Create makes together with the new resource, e.g. a network's route table. They are
        the rules' own, complete as they are."""
        return ()

    def changes_what_runs(self, new: Message, old: Message) -> bool:
        """Whether an update alters what the resource runs, or makes it run. Asked of resources that act as an
        account: such a change needs the right to act as it. Without an answer of its own, a kind says yes to
        every change of the spec."""
        return new.spec != old.spec  # type: ignore[attr-defined]

    def dependents(self, resource: Message) -> Iterable[str]:
        """Ids of those whose reconcilers must look when this one was made, changed (also its status or
        state) or removed. A kind without a reconciler passes it on to whom it wakes itself."""
        return ()

    def check_delete(self, resource: Message, world: World) -> None:
        """Raise ApiError (bad state) when the resource must not be deleted now."""


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
    rules: Rules = field(default_factory=Rules)
    initial_state: str = ""
    deleting_state: str = "DELETING"
    stopped_state: str = ""
    """The state to be in while the whole cloud is stopped; "" for kinds that workloads do not matter to."""
    working_states: frozenset[str] = frozenset()
    """The states in which a stop matters, e.g. of a job that runs; empty: all of them."""
    is_reconciled: bool = False
    reference_verb: str = "get"
    """The right that a caller needs on a resource of the kind to name it in another one's spec."""
    is_named_anyway: bool = False
    """The contract calls the kind unnamed, and clients give it names all the same."""
    is_named_by_rules: bool = False
    """What a name may be is the rules' word, instead of the letters, digits and dashes of our own nouns."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Standard verbs that another service of the contract has for this kind: verb to method path."""
    view: "View | None" = None
    """What is worked out anew each time a resource of the kind is read."""
    outside_view: "OutsideView | None" = None
    larger_request_bytes: int = 0
    """What a Create or Update may hold beyond what every request may; 0 where no field needs more."""

    @property
    def finalizers(self) -> tuple[str, ...]:
        """What a new resource of the kind is born with: a row with a finalizer goes only when its reconciler
        has cleaned up."""
        return (FINALIZER,) if self.is_reconciled else ()

    def dependents(self, row: Resource) -> Iterable[str]:
        """Whom a row of the kind wakes; it is decoded only where the rules want to know."""
        if type(self.rules).dependents is Rules.dependents:
            return ()
        return self.rules.dependents(wire.resource_message(row))

    def completed(self, row: Resource, old: Resource | None, world: World) -> Resource:
        """A new or changed child with the status that the rules complete. A reconciler that the kind has is
        alone with the status once the child is there."""
        if type(self.rules).complete is Rules.complete or (old is not None and self.is_reconciled):
            return row
        resource = wire.resource_message(row)
        self.rules.complete(resource, wire.resource_message(old) if old else None, world)
        state = wire.state_of(resource) or row.state
        return replace(row, status=resource.status.SerializeToString(), state=state)


@dataclass(frozen=True)
class Call:
    """Everything a custom method may know about the request it serves."""

    subject: Subject | None
    """None only for methods that say `permission=None` (token exchange)."""
    request_id: str
    headers: Mapping[str, str]
    dependencies: "Dependencies"


Handler = Callable[[Call, Any], Awaitable[Message]]


@dataclass(frozen=True)
class Method:
    """A verb beyond the standard six, or one that replaces a standard verb of its kind."""

    path: str
    """"neocloud.slurm.v1.JobService/Submit"."""
    handler: Handler
    permission: str | None
    """None: anyone may call it, even without a token. "": any signed-in subject."""
    target: Callable[[Any], str] | None = None
    """The id of the resource (or parent) in the request that the permission is checked on."""
    is_change: bool = False
    """Written to the audit log also when it succeeds."""
    larger_request_bytes: int = 0
    """What a request may hold beyond what every request may; 0 where no field needs more."""
    is_internal: bool = False
    """Called by another process of this cloud, which proves in the handler what it is: many people's requests
    come as one caller's, so they are not counted against a rate."""
    is_checked: bool = True
    """Whether the request must keep its annotations by itself. Not so of an update: what it leaves out stays
    as it is, so its handler checks the result."""
    is_ending: bool = False
    """A change that only stops what the target runs. Any other change of a resource that acts as an account
    also needs the right to act as that account."""


@dataclass(frozen=True)
class Twin:
    """A method that is another one in other words: another version of the API, or another way to name the
    resource. The other's endpoint serves it, with all its checks; the log tells the words that were used."""

    path: str
    of: str
    """The path of the other."""
    request: Callable[[Any], Any]
    """The other's request for one of this method's."""
    answer: Callable[[Any], Any] | None = None
    """This method's answer for one of the other's; None where both have one type."""


@dataclass(frozen=True)
class Dependencies:
    """The parts of the running control plane that handlers and reconcilers use."""

    store: Store
    clock: Clock
    engine: "Engine"
    settings: "Settings"
    provided: ServiceRegistry = field(default_factory=ServiceRegistry)
    """What services offer to one another: `dependencies.provided.get(BatchJobs)`."""


Seed = Callable[[Transaction, Resource, datetime, Any], None]
"""Puts its first things into a new resource: gets it, the time and the settings. Runs once for each."""


@dataclass(frozen=True)
class Service:
    """A brick, as the rest sees it."""

    name: str
    kinds: tuple[Kind, ...] = ()
    methods: tuple[Method, ...] = ()
    twins: tuple[Twin, ...] = ()
    reconcilers: Callable[[Dependencies], Sequence[Reconciler]] = lambda dependencies: ()
    meters: tuple[Meter, ...] = ()
    seeds: Mapping[str, Seed] = field(default_factory=dict)
    """By the kind, often another brick's, whose new resources start with something of this brick."""
    provides: Mapping[type, Callable[[Dependencies], object]] = field(default_factory=dict)
    """What the service offers to others and to itself: a factory by interface, run once a control plane. A
    value that the composition holds for the interface goes before it."""


def register_services(services: Iterable[Service], dependencies: Dependencies) -> None:
    """Add to `dependencies.provided` what these services declare."""
    found = tuple(services)
    provided = dependencies.provided
    for service in found:
        for interface, factory in service.provides.items():
            provided.add_factory(interface, partial(factory, dependencies))
    provided.add_factory(Meters, lambda: Meters(meter for service in found for meter in service.meters))


class Authenticator(Protocol):
    async def authenticate(self, token: str) -> Subject:
        """Raises ApiError (unauthenticated) when the token is missing, forged or expired."""
        ...


class Authorizer(Protocol):
    async def authorize(self, subject: Subject, permission: str, target_id: str) -> None:
        """Raises ApiError (permission denied) unless a permit grants it on the target, its parent project
        or tenant. A target the subject may not know of is denied in the same words as a missing one."""
        ...
