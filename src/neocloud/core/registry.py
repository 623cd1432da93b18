# pyright: strict
"""What services offer to one another, looked up by interface type."""

from collections.abc import Callable
from typing import Self, TypeVar, cast

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
