"""Declarations of a service: Service, Method, MethodAlias, and the arguments of handlers.

The server, the reconcile worker and billing are built from these tables and know no service by name. A kind
that needs nothing special is one `Kind(...)` line: the six standard verbs are generic.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message
from prometheus_client import Metric

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.kind import Kind
from neocloud.core.readers import ServiceRegistry, Subject
from neocloud.core.reconcile.reconciler import AnyReconciler
from neocloud.core.reconcile.wakes import Wakes
from neocloud.core.store.protocol import Resource, Store, Transaction, Watcher
from neocloud.core.usage import CapacityUse, CapacityUses, Meter, Meters
from neocloud.messages.nebius.common.v1 import Operation

if TYPE_CHECKING:
    from neocloud.engines.base import Engine
    from neocloud.settings.settings import Settings

DEFAULTS_NAMESPACE = "seeds"
"""The reservations of a resource in "seeds/<its id>" are the services that have created their defaults in it.
Stored: the name stays."""


@dataclass(frozen=True)
class Call:
    """Everything a custom method may know about the request it serves."""

    subject: Subject | None
    """None only for methods that say `permission=None` (token exchange)."""
    request_id: str
    headers: Mapping[str, str]
    dependencies: "Dependencies"


AnswerT = TypeVar("AnswerT", bound=Message, covariant=True)
RequestT = TypeVar("RequestT", bound=Message)


@dataclass(frozen=True)
class NewOperation:
    """The answer of a change that is an Operation, which the server writes for this row."""

    row: Resource
    """The row that the work of the change has stored, or found."""
    title: str
    """Names the row to people: "instance web"."""
    is_done: bool = True
    """False: the reconciler of the row ends the operation, which replaces unfinished ones."""
    has_removed: bool = False
    """The work has removed the row. The audit event names it anyway."""
    answer: Callable[[Operation], Message] | None = None
    """Makes the answer where the operation is only a part of it."""


@dataclass(frozen=True)
class Write(Generic[AnswerT]):
    """A change that the server commits in one transaction, with its audit event and idempotency key."""

    work: Callable[[Transaction], AnswerT | NewOperation]
    """Makes the change and returns the answer. May run more than once, so it touches only the transaction."""
    after_commit: Callable[[], None] = lambda: None
    """Tells parts of this process that keep their state in memory."""
    complete: Callable[[Any], Awaitable[AnswerT]] | None = None
    """Adds what is known only after the commit. A repeated request gets the answer without it."""


Handler = Callable[[Call, RequestT], Awaitable[Message | Write[Message]]]
"""Returns the answer of a read, or a Write for a change:
`async def stop(call: Call, request: StopInstanceRequest) -> Write[Operation]`. Everything that waits (for the
engine, the network, a password hash) happens in the handler itself, before the transaction."""


@dataclass(frozen=True)
class Method(Generic[RequestT]):
    """A verb beyond the standard six, or one that replaces a standard verb of its kind."""

    path: str
    """"neocloud.slurm.v1.JobService/Submit"."""
    handler: Handler[RequestT]
    permission: str | None
    """None: anyone may call it, even without a token. "": any signed-in subject."""
    target: Callable[[RequestT], str] | None = None
    """The id of the resource (or parent) in the request that the permission is checked on."""
    is_change: bool = False
    """Written to the audit log also when it succeeds."""
    larger_request_bytes: int = 0
    """Bytes that a request may hold beyond what every request may; 0 where no field needs more."""
    is_internal: bool = False
    """Called by another process of this cloud, which proves in the handler what it is: many people's requests
    come as one caller's, so they are not counted against a rate."""
    is_checked: bool = True
    """Whether the request must keep its annotations by itself. Not so of an update: what it leaves out stays
    as it is, so its handler checks the result."""
    has_outside_effects: bool = False
    """A change that is made outside of the store, e.g. by Slurm, so no transaction can hold it. The handler
    returns the answer; the audit event and the idempotency key are written after it."""
    is_ending: bool = False
    """A change that only stops what the target runs. Any other change of a resource that acts as an account
    also needs the right to act as that account."""


AnyMethod: TypeAlias = Method[Any]
"""A method with one type of request, which a list of methods cannot name."""


@dataclass(frozen=True)
class MethodAlias:
    """A method that another one serves: another version of the API, or another way to name the resource. The
    request is translated and passes all checks of the other method; the log has it as it was sent."""

    path: str
    of: str
    """The path of the other."""
    request: Callable[[Any], Message]
    """The other's request for one of this method's."""
    answer: Callable[[Any], Message] | None = None
    """This method's answer for one of the other's; None where both have one type."""


@dataclass(frozen=True)
class HttpRoute:
    """Another program's HTTP API, served by methods, so that clients of that program work with this cloud.

    The request of each method has the parameters of the pattern, `query`, and `body` where one is sent. Its
    answer has `status` and `body`, which is JSON."""

    pattern: str
    """"/clusters/{cluster_id}/{path:path}"."""
    methods: Mapping[str, str]
    """The paths of methods by HTTP verb."""
    token_header: str = ""
    """The header in which clients of that API send a token, taken where they send no Authorization."""


@dataclass(frozen=True)
class Dependencies:
    """The parts of the running control plane that handlers and reconcilers use."""

    store: Store
    clock: Clock
    engine: "Engine"
    settings: "Settings"
    provided: ServiceRegistry = field(default_factory=ServiceRegistry)
    """Interfaces that services offer to one another: `dependencies.provided.get(BatchJobs)`."""


CreateDefaults = Callable[[Transaction, Resource, datetime, "Settings"], None]
"""Creates the default resources in a new resource of another service: gets it, the time and the settings.

It runs once for each resource: in the transaction that creates it, or when the server starts. The defaults
carry no desired state: what a user deletes of them stays deleted."""

FindDefaults = Callable[[Transaction, Resource], Sequence[Resource]]
"""Returns the default resources in a resource that are there and unused, in the order of deletion."""


FindWoken = Callable[[Transaction, Resource], Iterable[str]]
"""Returns the ids of the resources to reconcile after a change of this one. Each such change waits for it."""


@dataclass(frozen=True)
class Service:
    """The declaration of a service, which the server, the worker and billing are built from."""

    name: str
    kinds: tuple[Kind, ...] = ()
    methods: tuple[AnyMethod, ...] = ()
    aliases: tuple[MethodAlias, ...] = ()
    http_routes: tuple[HttpRoute, ...] = ()
    reconcilers: Callable[[Dependencies], Sequence[AnyReconciler]] = lambda dependencies: ()
    meters: tuple[Meter, ...] = ()
    defaults: Mapping[str, CreateDefaults] = field(default_factory=dict[str, CreateDefaults])
    """Kinds, often another service's, whose new resources start with default resources of this service."""
    made_with: Mapping[str, FindDefaults] = field(default_factory=dict[str, FindDefaults])
    """Functions by kind that find the default resources to delete with the resource that they came with."""
    capacity: tuple[CapacityUse, ...] = ()
    """Capacity of the machine that resources of the service hold."""
    wakes: Mapping[str, "FindWoken"] = field(default_factory=dict[str, "FindWoken"])
    """Functions by kind, mostly another service's, that find the resources to reconcile when one of it is
    made or removed, or gets another spec or state. For those that no rule of that kind can name
    (`Rules.dependents`).
    """
    report: Callable[[Dependencies], Awaitable[Mapping[str, object]]] | None = None
    """The service's part of `neo status` for the operator, in the form of JSON."""
    metrics: Callable[[Dependencies], Awaitable[Iterable[Metric]]] | None = None
    """The service's part of `/metrics`, as of now; asked at each reading, so it must be cheap."""
    provides: Mapping[type[object], Callable[[Dependencies], object]] = field(
        default_factory=dict[type[object], Callable[[Dependencies], object]]
    )
    """Interfaces that the service offers to others and to itself: a factory by interface, run once a control
    plane. A value that the composition holds for the interface goes before it.
    """


class KindTable(dict[str, Kind]):
    """The kinds of all services that are served, by message name."""


def register_services(services: Iterable[Service], dependencies: Dependencies) -> None:
    """Add to `dependencies.provided` what these services declare."""
    found = tuple(services)
    provided = dependencies.provided
    for service in found:
        for interface, factory in service.provides.items():
            provided.add_factory(interface, partial(factory, dependencies))
    provided.add_factory(
        CapacityUses, lambda: CapacityUses(use for service in found for use in service.capacity)
    )
    provided.add_factory(
        KindTable, lambda: KindTable({kind.message: kind for service in found for kind in service.kinds})
    )
    provided.add_factory(Wakes, Wakes)
    provided.add_factory(Meters, lambda: Meters(meter for service in found for meter in service.meters))


def waking(services: Iterable[Service], clock: Clock) -> Watcher:
    """Return what enqueues the resources that services have woken by changes, in the same transaction."""
    found: dict[str, list[FindWoken]] = {}
    for service in services:
        for kind, find in service.wakes.items():
            found.setdefault(kind, []).append(find)

    def watch(tx: Transaction, old: Resource | None, new: Resource | None) -> None:
        row = new or old
        if row is None:
            return
        for find in found.get(row.kind, ()):
            for resource_id in find(tx, row):
                tx.enqueue(resource_id, clock.now())

    return watch


def row_to_change(tx: Transaction, kind: str, resource_id: str, word: str) -> Resource:
    """Return the row that a verb changes. Raise ApiError when there is none, or it is being deleted.

    `word` is what people call the kind."""
    row = tx.get(resource_id)
    if row is None or row.kind != kind:
        raise contract.not_found(word, resource_id)
    if row.deleted_at is not None:
        raise contract.bad_state(row.id, f"{row.id} is being deleted.")
    return row


class Authenticator(Protocol):
    async def authenticate(self, token: str) -> Subject:
        """Raises ApiError (unauthenticated) when the token is missing, forged or expired."""
        ...


class Authorizer(Protocol):
    async def authorize(self, subject: Subject, permission: str, target_id: str) -> None:
        """Raises ApiError (permission denied) unless a permit grants it on the target, its parent project
        or tenant. A target the subject may not know of is denied in the same words as a missing one."""
        ...


Defaults = Mapping[str, tuple[tuple[str, CreateDefaults], ...]]
"""The name of each service and the function that creates its defaults, by kind."""


def defaults_of(services: Iterable[Service]) -> Defaults:
    found: dict[str, tuple[tuple[str, CreateDefaults], ...]] = {}
    for service in services:
        for kind, create in service.defaults.items():
            found[kind] = (*found.get(kind, ()), (service.name, create))
    return found


def create_defaults(
    tx: Transaction, defaults: Defaults, row: Resource, now: datetime, settings: "Settings"
) -> None:
    """Create those that have not been created in this resource yet."""
    for name, create in defaults.get(row.kind, ()):
        if name not in tx.reservations(f"{DEFAULTS_NAMESPACE}/{row.id}"):
            tx.reserve(f"{DEFAULTS_NAMESPACE}/{row.id}", name, row.id)
            create(tx, row, now, settings)


async def backfill_defaults(
    store: Store, services: Iterable[Service], now: datetime, settings: "Settings"
) -> None:
    """Create defaults in resources that are older than the service, or were created without the server."""
    defaults = defaults_of(services)

    def work(tx: Transaction) -> None:
        for kind in defaults:
            for row in tx.list(kind)[0]:
                if row.deleted_at is None:
                    create_defaults(tx, defaults, row, now, settings)

    await store.write(work)
