"""The vocabulary of a reconciler: Step, RetryLater, Failed, ReconcileResult, and the Context it works with.

A reconciler is a list of named steps that run in order over one scope. `status` computes the status once, at
the end, also after a failed step. A step reads the current state each time and may be repeated at any moment.
Steps never sleep and never write the status themselves.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message

from neocloud.core.contract import Code
from neocloud.core.operations import ProgressStep
from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Resource, Transaction

DAEMON_POLL_SECONDS = 0.1
"""Until the next run while a step waits for a daemon that takes a second or two to start."""
CHILD_POLL_SECONDS = 0.2
"""While a step waits for another resource. Its change usually enqueues this one sooner."""
POLL_SECONDS = 0.5
"""While a step waits for a program to start, to answer or to end."""
RETRY_SECONDS = 2.0
"""After the engine, or a cluster, did not answer or could not do what a step needs."""
RESYNC_SECONDS = 10.0
"""For a resource that has reached its desired state, and may change without being woken."""
IDLE_RESYNC_SECONDS = 60.0
"""The same for one that runs nothing (a volume, a network, a stopped machine), or that is woken by all that
concerns it: its resync repairs what a lost event has left."""


class RetryLater(Exception):
    """The desired state is not reached yet; run again after `delay_seconds`. Not an error."""

    def __init__(self, message: str, *, delay_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


LONGEST_MESSAGE = 4_000
"""Characters of what is kept: names in it may be a tenant's, of any length."""


class Failed(Exception):
    """The desired state cannot be reached without a change of the spec or of the machine.

    `reason` is CamelCase and stable. `code` ends the operation: RESOURCE_EXHAUSTED where capacity is missing.
    """

    def __init__(self, reason: str, message: str, *, code: Code = Code.FAILED_PRECONDITION) -> None:
        super().__init__(message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}...")
        self.reason = reason
        self.code = code


ScopeT = TypeVar("ScopeT")
InT = TypeVar("InT", contravariant=True)


@dataclass(frozen=True)
class Step(Generic[InT]):
    """One step over a scope: `Step[Scope]`."""

    name: str
    """Shown to people as progress: "Start the controller"."""
    run: Callable[[InT], Awaitable[object]]


@dataclass(frozen=True)
class ReconcileResult:
    """The result of a run.

    `Reconciler.status` receives one without a status and returns it `with_status`.
    """

    progress: tuple[ProgressStep, ...] = ()
    waiting: str = ""
    """Why the desired state is not reached yet; empty when it is reached and when it cannot be."""
    error: Failed | None = None
    """Why the desired state cannot be reached."""
    requeue_after: float | None = None
    """Seconds until the next run; None: not before the resource is enqueued."""
    is_unexpected: bool = False
    """`waiting` is an error that nobody foresaw: the next run comes after a growing back-off."""
    status: Message | None = None
    state: str = ""
    """Name of the state enum value, e.g. "READY"; goes into the history that metering reads."""
    wakes: frozenset[str] = frozenset()
    """The ids of other resources to reconcile once this result is written: those that act on what it says,
    and that no rule of the kind names (`Rules.dependents`)."""

    @property
    def is_done(self) -> bool:
        return not self.waiting and self.error is None

    @property
    def message(self) -> str:
        """Why the resource waits or has failed; empty when the desired state is reached."""
        return str(self.error) if self.error else self.waiting

    def with_status(
        self, status: Message, state: str, resync_seconds: float | None = None
    ) -> "ReconcileResult":
        """Return the result with this status; run again after `resync_seconds` unless a step chose a
        delay."""
        requeue_after = resync_seconds if self.requeue_after is None else self.requeue_after
        return replace(self, status=status, state=state, requeue_after=requeue_after)


class Context(Protocol):
    """The reads and writes that a run may do besides those of its engine. Given by the worker; each call is
    one transaction.
    """

    resource: Resource
    """The row as it was when the lease was taken."""
    now: datetime

    async def get(self, resource_id: str) -> Resource | None: ...

    async def find(self, kind: str, parent_id: str, name: str) -> Resource | None: ...

    async def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]: ...

    async def children(self, resource_id: str) -> Sequence[Resource]:
        """Return the resources with this parent, whatever the kind, also those being deleted."""
        ...

    async def reserve(self, namespace: str, candidates: Iterable[str]) -> str | None:
        """Return this resource's value in the namespace: the one it holds already, else the first free
        candidate, reserved until the resource is deleted; None when all are taken."""
        ...

    async def reservations(self, namespace: str) -> Mapping[str, str]:
        """Return the ids of the resources that hold values in the namespace, by value."""
        ...

    async def release(self, namespace: str, value: str) -> None:
        """Release the value if this resource holds it."""
        ...

    async def ensure_child(
        self, kind: str, *, name: str, parent_id: str, spec: Message, labels: dict[str, str]
    ) -> Resource:
        """Return the owned resource of this kind and name, created or updated to this spec. Its rules
        complete it, its own reconciler does the rest. Raises RetryLater while one of this name is still being
        deleted, and Failed where its rules refuse, e.g. because a subnet is full."""
        ...

    async def delete_child(self, resource_id: str) -> None:
        """Mark one owned resource for deletion; ignore one that is gone or has another owner."""
        ...

    async def delete_owned(self) -> bool:
        """Mark all owned resources for deletion; True once none is left."""
        ...

    async def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the resource's secret of this name, made on first use."""
        ...

    async def append_events(
        self, log: str, events: Sequence[LogEvent], claim: Callable[[Transaction], None] | None = None
    ) -> None:
        """Append to a log, all or none. The consequences of an event are carried out after this returns.
        `claim` takes in the same transaction what the events use up, and what it raises appends nothing.
        """
        ...


class Reconciler(Protocol[ScopeT]):
    """Brings resources of one kind to their desired state. Holds its dependencies (engine, clock), no
    state: what a run has read is in its scope."""

    kind: str

    async def scope(self, context: Context) -> ScopeT:
        """Decode the resource and read the current state."""
        ...

    def steps(self, scope: ScopeT) -> Sequence[Step[ScopeT]]: ...

    def delete_steps(self, scope: ScopeT) -> Sequence[Step[ScopeT]]:
        """Until all of these succeed the finalizer stays and the resource is DELETING."""
        ...

    def status(self, scope: ScopeT, result: ReconcileResult) -> ReconcileResult:
        """Return the result with the status computed from what the run saw."""
        ...


AnyStep: TypeAlias = Step[Any]
AnyReconciler: TypeAlias = Reconciler[Any]
"""A reconciler with the scope of its kind, which a list of them cannot name."""
