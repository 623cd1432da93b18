"""The check that this machine holds what a resource demands beside all others. Pure.

Whoever promises a node checks here first, so that the same memory is never promised twice.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from neocloud.core.capacity import CapacityUses
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Capabilities
from neocloud.services.compute.resources.capacity import Demand, check_fits
from neocloud.services.compute.resources.catalogue import preset


def check_capacity(
    reader: ResourceReader, resource_id: str, wanted: Sequence[Demand], held: Sequence[Demand]
) -> None:
    """Raises NOT_ENOUGH_RESOURCES unless this machine holds what the resource demands beside all others. A
    demand for no more than the resource holds already is met: becoming smaller is always possible."""
    if needs_capacity_check(reader.inventory, wanted, held):
        uses = reader.provided.get(CapacityUses)
        check_fits(reader.inventory, [*wanted, *held_by_others(uses, reader.list, resource_id)])


def needs_capacity_check(
    inventory: Capabilities | None, wanted: Sequence[Demand], held: Sequence[Demand]
) -> bool:
    """Return whether this demand has to be compared with what others hold."""
    if inventory is None or not _count(wanted) - _count(held):
        return False
    return not inventory.is_boundless or any(shape.gpus for shape, _ in wanted)


def held_by_others(
    uses: CapacityUses, rows_of: Callable[[str], Sequence[Resource]], resource_id: str
) -> Iterable[Demand]:
    """Return what all resources but this one hold of the machine."""
    rows = {kind: rows_of(kind) for kind in uses.kinds}
    return [demand for holder_id, demand in uses.demands(rows) if holder_id != resource_id]


def instance_demands(spec: Any) -> list[Demand]:
    """Return what an instance holds."""
    return [] if spec.stopped else [(preset(spec.resources.platform, spec.resources.preset), 1)]


def _count(demands: Iterable[Demand]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for shape, number in demands:
        found[shape] += number
    return found
