"""The words a brick's reconciler is written in: Scope, Step, RetryLater, Failed.

A reconciler is a list of named steps run in order over one scope, then `status` computes the status once, at
the end, also after a failed step. A step reads the world again each time and may be repeated at any moment.
Steps never sleep and never write to the store directly.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from google.protobuf.message import Message

from neocloud.core.contract import Code
from neocloud.core.store.protocol import Resource

FINALIZER = "reconcile"
"""The finalizer that the worker drops when the delete steps have succeeded and nothing is owned any more."""


class RetryLater(Exception):
    """Not yet true; look again after `delay_seconds`. Not an error: nothing is logged above debug."""

    def __init__(self, message: str, *, delay_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


class Failed(Exception):
    """Cannot become true without a change of the spec or of the machine. `reason` is CamelCase and stable;
    `code` is how the operation ends, RESOURCE_EXHAUSTED where there is no room."""

    def __init__(self, reason: str, message: str, *, code: Code = Code.FAILED_PRECONDITION) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code


@dataclass(frozen=True)
class Condition:
    """A fact about a resource: `Ready`, `NetworkReady`, ... `is_true` None means unknown."""

    type: str
    is_true: bool | None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class StepResult:
    name: str
    outcome: str
    """ok, waiting, failed or pending (not reached)."""
    message: str = ""


@dataclass(frozen=True)
class Outcome:
    """How the pass ended; handed to the reconciler's `status`."""

    steps: tuple[StepResult, ...]
    waiting: str = ""
    failed: Failed | None = None
    observed_version: int = 0

    @property
    def is_done(self) -> bool:
        return not self.waiting and self.failed is None


@dataclass(frozen=True)
class Step:
    name: str
    """Shown to people as progress: "Start the controller"."""
    run: Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class Settled:
    """What a pass leaves behind."""

    status: Message
    state: str
    """Name of the state enum value, e.g. "READY"; goes into the history that metering reads."""
    resync_seconds: float | None = None
    """Look again after this long although nothing happened; None means only when woken."""


class Context(Protocol):
    """What a pass may know and do besides its engine. Given by the worker; each call is one transaction."""

    resource: Resource
    """The row as it was when the lease was taken."""
    now: datetime

    async def get(self, resource_id: str) -> Resource | None: ...

    async def find(self, kind: str, parent_id: str, name: str) -> Resource | None: ...

    async def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]: ...

    async def children(self, resource_id: str) -> Sequence[Resource]:
        """Resources with this parent, whatever the kind, also those being deleted."""
        ...

    async def reserve(self, namespace: str, candidates: Iterable[str]) -> str | None:
        """The value of the namespace that is this resource's: the one it holds already, else the first free
        candidate, taken until the resource is deleted; None when all are taken."""
        ...

    async def reservations(self, namespace: str) -> Mapping[str, str]:
        """Who holds what in the namespace: resource ids by value."""
        ...

    async def release(self, namespace: str, value: str) -> None:
        """Give back what this resource holds; what another holds stays."""
        ...

    async def ensure_child(
        self, kind: str, *, name: str, parent_id: str, spec: Message, labels: dict[str, str]
    ) -> Resource:
        """The owned resource of this kind and name, created or given this spec. Its rules complete it, its
        own reconciler does the rest. Raises RetryLater while one of this name is still being deleted, and
        Failed where its rules refuse, e.g. because a subnet is full."""
        ...

    async def delete_child(self, resource_id: str) -> None:
        """Ask for the deletion of one owned resource; one that is gone, or somebody else's, is left alone."""
        ...

    async def delete_owned(self) -> bool:
        """Ask for the deletion of all owned resources; True once none is left."""
        ...

    async def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The resource's secret of this name, made on first use."""
        ...


class Reconciler(Protocol):
    """One kind's way from wish to fact. Instances hold their dependencies (engine, clock), no state."""

    kind: str

    async def scope(self, context: Context) -> Any:
        """Decode the resource and look at the world."""
        ...

    def steps(self, scope: Any) -> Sequence[Step]: ...

    def delete_steps(self, scope: Any) -> Sequence[Step]:
        """Until all of these succeed the finalizer stays and the resource is DELETING."""
        ...

    def status(self, scope: Any, outcome: Outcome) -> Settled: ...
