"""Look-ups for rules and services: rows and reservations, and the interfaces that services offer to one
another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, cast

from neocloud.core.store.protocol import Resource, Transaction

if TYPE_CHECKING:
    from neocloud.engines.base import Capabilities


T = TypeVar("T")


class NotProvided(LookupError):
    """An interface that nothing in this control plane provides."""


class ServiceRegistry:
    """Values by interface type. A factory runs at the first lookup, and its result is kept."""

    def __init__(self) -> None:
        self._values: dict[type[object], object] = {}
        self._factories: dict[type[object], Callable[[], object]] = {}

    def add(self, interface: type[T], value: T) -> Self:
        """Provide this value, in place of any other; return the registry, so that calls can be chained."""
        self._values[interface] = value
        return self

    def add_factory(self, interface: type[T], factory: Callable[[], T]) -> None:
        """Provide what the factory makes, unless the interface is provided already."""
        self._factories.setdefault(interface, factory)

    def find(self, interface: type[T]) -> T | None:
        """Return the value, or None when nothing provides it."""
        if interface not in self._values and interface in self._factories:
            self._values[interface] = self._factories[interface]()
        return cast(T | None, self._values.get(interface))

    def get(self, interface: type[T]) -> T:
        """Return the value. Raise NotProvided when nothing provides it."""
        found = self.find(interface)
        if found is None:
            raise NotProvided(
                f"Nothing provides {interface.__qualname__}. Serve the service that declares it "
                f"({interface.__module__}), or add a value to the registry of the composition."
            )
        return found

    def build(self) -> None:
        """Run all factories now, so that what cannot be made is reported at the start."""
        for interface in list(self._factories):
            self.find(interface)

    def update(self, other: "ServiceRegistry") -> Self:
        """Add everything that the other one holds, in place of what is here; return the registry."""
        self._values.update(other._values)
        self._factories.update(other._factories)
        return self

    def copy(self) -> "ServiceRegistry":
        return ServiceRegistry().update(self)


@dataclass(frozen=True)
class Subject:
    """The caller: a service account or user id, and the tenant it belongs to."""

    id: str
    kind: str
    """"service_account" or "user"."""
    name: str
    tenant_id: str
    scopes: tuple[str, ...] | None = None
    """Patterns of permissions that this sign-in is limited to, whatever the account may; None: no limit."""
    impersonator_id: str = ""
    """The real caller, when they act as the subject."""


class ResourceReader(Protocol):
    """The rows and reservations that rules may look up, and the circumstances of the request."""

    now: datetime
    inventory: "Capabilities | None"
    """The capacity of the engine's machine, as last read."""
    subject: Subject | None
    """The caller; rules that grant rights check that the caller has them."""
    provided: ServiceRegistry
    """Interfaces that services offer to one another, as in Dependencies; empty where no request is behind it.
    """

    def get(self, resource_id: str) -> Resource | None: ...

    def find(self, kind: str, parent_id: str, name: str) -> Resource | None: ...

    def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]: ...

    def owned(self, owner_id: str) -> Sequence[Resource]:
        """Resources that go when this one is deleted, e.g. the keys of a service account."""
        ...

    def reservations(self, namespace: str) -> Mapping[str, str]:
        """Return the holders of all values in the namespace: resource ids by value."""
        ...

    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        """Take the value for the resource (its `metadata.id`) until that is deleted; False when another
        holds it. Taken back when the request is refused after all."""
        ...

    def release(self, namespace: str, value: str) -> None:
        """Give the value back before its holder is deleted, also only if the request succeeds."""
        ...

    def write(self, work: Callable[[Transaction], None]) -> None:
        """Run other writes that follow from the request in its transaction; undone if it is refused."""
        ...


class TransactionReader:
    """A ResourceReader over the transaction that writes the resource."""

    def __init__(
        self,
        tx: Transaction,
        now: datetime,
        *,
        inventory: "Capabilities | None" = None,
        subject: Subject | None = None,
        provided: ServiceRegistry | None = None,
    ) -> None:
        """A reader without a `subject` serves no request: a reconciler creates a child."""
        self._tx = tx
        self.now = now
        self.inventory = inventory
        self.subject = subject
        self.provided = provided or ServiceRegistry()

    def get(self, resource_id: str) -> Resource | None:
        return self._tx.get(resource_id)

    def find(self, kind: str, parent_id: str, name: str) -> Resource | None:
        return self._tx.find(kind, parent_id, name)

    def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]:
        return self._tx.list(kind, parent_id=parent_id)[0]

    def owned(self, owner_id: str) -> Sequence[Resource]:
        return self._tx.owned(owner_id)

    def reservations(self, namespace: str) -> Mapping[str, str]:
        return self._tx.reservations(namespace)

    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        return self._tx.reserve(namespace, value, resource_id)

    def release(self, namespace: str, value: str) -> None:
        self._tx.release(namespace, value)

    def write(self, work: Callable[[Transaction], None]) -> None:
        work(self._tx)
