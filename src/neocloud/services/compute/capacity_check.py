"""Checks that this machine has capacity for a resource beside all others. Pure.

Every service that runs nodes checks here first. Memory and GPUs are never promised twice. A vCPU of the
published platforms is one thread; the catalogue says how many vCPUs of a local platform share a core.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from neocloud.core import contract
from neocloud.core.capacity import CapacityUses
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import Capabilities
from neocloud.fleet.inventory import Inventory
from neocloud.messages.nebius.compute.v1 import InstanceSpec
from neocloud.services.compute.catalogue import Preset, preset

Demand = tuple[Preset, int]
"""A preset and how many nodes of it."""


def check_capacity(
    reader: ResourceReader, resource_id: str, demanded: Sequence[Demand], held: Sequence[Demand]
) -> None:
    """Raise NOT_ENOUGH_RESOURCES unless this machine has capacity for the demand beside all others.

    A demand for no more than the resource holds already is met: a resource can always become smaller.
    """
    if needs_capacity_check(reader.inventory, demanded, held):
        uses = reader.provided.get(CapacityUses)
        check_fits(reader.inventory, [*demanded, *held_by_others(uses, reader.list, resource_id)])


def needs_capacity_check(
    inventory: Capabilities | None, demanded: Sequence[Demand], held: Sequence[Demand]
) -> bool:
    """Return whether this demand has to be compared with what others hold."""
    if inventory is None or not _count(demanded) - _count(held):
        return False
    return not inventory.is_boundless or any(shape.gpus for shape, _ in demanded)


def held_by_others(
    uses: CapacityUses, rows_of: Callable[[str], Sequence[Resource]], resource_id: str
) -> Iterable[Demand]:
    """Return what all resources but this one hold of the machine."""
    rows = {kind: rows_of(kind) for kind in uses.kinds}
    return [demand for holder_id, demand in uses.demands(rows) if holder_id != resource_id]


def instance_demands(spec: InstanceSpec) -> list[Demand]:
    """Return what an instance holds."""
    return [] if spec.stopped else [(preset(spec.resources.platform, spec.resources.preset), 1)]


def _count(demands: Iterable[Demand]) -> Counter[Preset]:
    found: Counter[Preset] = Counter()
    for shape, number in demands:
        found[shape] += number
    return found


def check_fits(capabilities: Capabilities | None, demands: Iterable[Demand]) -> None:
    """Raise NOT_ENOUGH_RESOURCES unless all demands fit together. Without capabilities nothing is refused
    here: the engine refuses what does not fit."""
    if capabilities is None:
        return
    listed = list(demands)
    lacking = shortages(Inventory.of(capabilities), listed)
    if lacking:
        nodes = " + ".join(f"{count} x {shape.platform} {shape.name}" for shape, count in listed)
        raise contract.not_enough_resources(
            "compute.nodes",
            nodes,
            f"This machine cannot hold {nodes}: {'; '.join(lacking)}. "
            "Request fewer or smaller nodes, or delete resources that are no longer needed.",
        )


def shortages(inventory: Inventory, demands: Sequence[Demand]) -> list[str]:
    """Return a text with the sum for each shortage; empty when everything fits."""
    found = []
    cores = sum(Fraction(shape.vcpu * count, shape.vcpu_per_core) for shape, count in demands)
    if cores > inventory.cpus:
        terms = _sum((count, shape.vcpu) for shape, count in demands)
        found.append(f"{terms} vCPU need {_number(cores)} cores, {inventory.cpus} are available")
    memory_mib = sum(shape.memory_mib * count for shape, count in demands)
    if memory_mib > inventory.memory_mib:
        terms = _sum((count, shape.memory_gib) for shape, count in demands)
        found.append(
            f"{terms} GiB of memory, {_number(Fraction(inventory.memory_mib, 1024))} GiB are available"
        )
    found.extend(_gpu_shortages(inventory, demands))
    return found


def _gpu_shortages(inventory: Inventory, demands: Sequence[Demand]) -> Iterable[str]:
    demanded: Counter[str] = Counter()
    for shape, count in demands:
        demanded[shape.gpu_type] += shape.gpus * count
    for gpu_type, number in demanded.items():
        available = inventory.gpu_count(gpu_type)
        if gpu_type and number > available:
            yield f"{number} GPUs of type {gpu_type}, {available} are available"
    if demanded[""] and demanded.total() > inventory.gpu_count(""):
        yield f"{demanded.total()} GPUs in total, {inventory.gpu_count('')} are available"


def _sum(terms: Iterable[tuple[int, int]]) -> str:
    parts = list(terms)
    total = sum(count * size for count, size in parts)
    text = " + ".join(f"{count} x {size}" for count, size in parts)
    return f"{text} = {total}"


def _number(value: Fraction | int) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
