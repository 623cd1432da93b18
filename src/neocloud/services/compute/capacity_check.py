"""Check that this machine holds what a resource demands beside all others. Pure.

Every service that places a node checks here first. Memory and GPUs are never promised twice. A vCPU of the
published platforms is a thread of its own; one of the local platforms is a share of a core, as the catalogue
says.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from neocloud.core import contract
from neocloud.core.capacity import CapacityUses
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Capabilities
from neocloud.fleet.inventory import Inventory
from neocloud.services.compute.catalogue import Preset, preset

Demand = tuple[Preset, int]
"""A preset and how many nodes of it."""


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


def check_fits(capabilities: Capabilities | None, demands: Iterable[Demand]) -> None:
    """Raises ApiError (not enough resources) unless all demands fit together. None: the machine is unknown,
    so the engine will have to find out."""
    if capabilities is None:
        return
    wanted = list(demands)
    lacking = shortages(Inventory.of(capabilities), wanted)
    if lacking:
        nodes = " + ".join(f"{count} x {shape.platform} {shape.name}" for shape, count in wanted)
        raise contract.not_enough_resources(
            "compute.nodes",
            nodes,
            f"This machine cannot hold {nodes}: {'; '.join(lacking)}. "
            "Ask for fewer or smaller nodes, or delete what is no longer needed.",
        )


def shortages(inventory: Inventory, demands: Sequence[Demand]) -> list[str]:
    """What there is too little of, with the sum shown; empty when everything fits."""
    found = []
    cores = sum(Fraction(shape.vcpu * count, shape.vcpu_per_core) for shape, count in demands)
    if cores > inventory.cpus:
        terms = _sum((count, shape.vcpu) for shape, count in demands)
        found.append(f"{terms} vCPU need {_number(cores)} cores, {inventory.cpus} are there")
    memory_mib = sum(shape.memory_mib * count for shape, count in demands)
    if memory_mib > inventory.memory_mib:
        terms = _sum((count, shape.memory_gib) for shape, count in demands)
        found.append(f"{terms} GiB of memory, {_number(Fraction(inventory.memory_mib, 1024))} GiB are there")
    found.extend(_gpu_shortages(inventory, demands))
    return found


def _gpu_shortages(inventory: Inventory, demands: Sequence[Demand]) -> Iterable[str]:
    wanted: Counter[str] = Counter()
    for shape, count in demands:
        wanted[shape.gpu_type] += shape.gpus * count
    for gpu_type, number in wanted.items():
        there = inventory.gpu_count(gpu_type)
        if gpu_type and number > there:
            yield f"{number} GPUs of type {gpu_type}, {there} are there"
    if wanted[""] and wanted.total() > inventory.gpu_count(""):
        yield f"{wanted.total()} GPUs in all, {inventory.gpu_count('')} are there"


def _sum(terms: Iterable[tuple[int, int]]) -> str:
    parts = list(terms)
    total = sum(count * size for count, size in parts)
    text = " + ".join(f"{count} x {size}" for count, size in parts)
    return f"{text} = {total}"


def _number(value: Fraction | int) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
