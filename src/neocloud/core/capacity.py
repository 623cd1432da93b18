# pyright: strict
"""What resources hold of the machine, as each service declares it for its kinds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neocloud.core.store.protocol import Resource

Rows = Mapping[str, Sequence[Resource]]
"""All rows by kind."""


@dataclass(frozen=True)
class CapacityUse:
    """The use of the machine by resources of some kinds."""

    kinds: tuple[str, ...]
    """Kinds whose rows decide it."""
    demands: Callable[[Rows], Iterable[tuple[str, Any]]]
    """Return the id of each holder with what it holds, a `Demand` of compute."""


class CapacityUses(tuple[CapacityUse, ...]):
    """The uses of the machine by all services that are served."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for use in self for kind in use.kinds)

    def demands(self, rows: Rows) -> Iterable[tuple[str, Any]]:
        for use in self:
            yield from use.demands(rows)
