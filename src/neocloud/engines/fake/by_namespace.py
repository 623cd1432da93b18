"""A dict by reference that finds what a namespace holds without looking at everything else."""

from collections.abc import Sequence
from typing import Any, TypeVar

from neocloud.engines.base import Reference

Value = TypeVar("Value")


class ByNamespace(dict[Reference, Value]):
    """Change it by items, `pop`, `setdefault` and `del` only: they keep the index."""

    def __new__(cls, *given: Any) -> "ByNamespace[Value]":
        made = super().__new__(cls)
        made._names = {}  # here, because unpickling sets items before anything else
        return made

    _names: dict[str, dict[Reference, None]]

    def __setitem__(self, reference: Reference, value: Value) -> None:
        self._names.setdefault(reference.namespace, {})[reference] = None
        super().__setitem__(reference, value)

    def __delitem__(self, reference: Reference) -> None:
        super().__delitem__(reference)
        names = self._names[reference.namespace]
        del names[reference]
        if not names:
            del self._names[reference.namespace]

    def pop(self, reference: Reference, default: Any = None) -> Any:
        """Without KeyError: what is not there is None."""
        value = self.get(reference, default)
        if reference in self:
            del self[reference]
        return value

    def setdefault(self, reference: Reference, default: Any = None) -> Any:
        if reference not in self:
            self[reference] = default
        return self[reference]

    def of(self, namespace: str) -> Sequence[Reference]:
        """The references in this namespace, in the order in which they came."""
        return tuple(self._names.get(namespace, ()))
