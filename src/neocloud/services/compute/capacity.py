"""Capacity of a machine: its total, the demand of nodes, the rest, and the number of nodes that still fit.
Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from neocloud.engines.base import Capabilities
from neocloud.engines.gpu_types import gpu_type
from neocloud.services.compute.catalogue import Preset, platforms

Demand = tuple[Preset, int]
"""A preset and how many nodes of it."""
_CORES, _MEMORY, _GPUS = "cores", "memory", "gpus/"


@dataclass(frozen=True)
class Inventory:
    """The machine's capacity, from the engine's capabilities."""

    cpus: int
    memory_mib: int
    gpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """GPU type to how many there are."""

    @classmethod
    def of(cls, capabilities: Capabilities) -> "Inventory":
        found = Counter(gpu_type(accelerator.model) for accelerator in capabilities.accelerators)
        return cls(capabilities.cpus, capabilities.memory_mib, dict(found))

    def gpu_count(self, type_name: str) -> int:
        """GPUs of one type, or all of them for ""."""
        return self.gpus.get(type_name, 0) if type_name else sum(self.gpus.values())


def amounts(demands: Sequence[Demand]) -> dict[str, Fraction]:
    """Return the quantities that demands sum up to, in the terms of `shortages`."""
    memory_mib = sum(shape.memory_mib * count for shape, count in demands)
    found = {_CORES: _cores(demands), _MEMORY: Fraction(memory_mib)}
    for shape, count in demands:
        for what in {_GPUS, f"{_GPUS}{shape.gpu_type}"}:
            found[what] = found.get(what, Fraction()) + shape.gpus * count
    return found


def available(inventory: Inventory, what: str) -> int:
    if what.startswith(_GPUS):
        return inventory.gpu_count(what.removeprefix(_GPUS))
    return inventory.cpus if what == _CORES else inventory.memory_mib


def nodes_that_fit(inventory: Inventory, held: Sequence[Demand], shape: Preset) -> int:
    """Return how many nodes of the shape the machine can hold beside what is held."""
    needed, used = amounts([(shape, 1)]), amounts(held)
    fits = [
        (available(inventory, what) - used.get(what, Fraction())) // each
        for what, each in needed.items()
        if each
    ]
    return max(0, int(min(fits, default=0)))


def room_text(inventory: Inventory, wanted: Sequence[Demand], held: Sequence[Demand]) -> str:
    """Return what is free, what was asked for, and what would fit."""
    used = amounts(held)
    cores = max(Fraction(), inventory.cpus - used[_CORES])
    memory = max(Fraction(), inventory.memory_mib - used[_MEMORY]) / 1024
    shared = {shape.platform: shape.vcpu_per_core for shape, _ in wanted if shape.vcpu_per_core > 1}
    vcpus = "".join(f" ({number(cores * each)} vCPU of {name})" for name, each in sorted(shared.items()))
    asked = (
        f"{sum(shape.vcpu * count for shape, count in wanted)} vCPU,"
        f" {sum(shape.memory_gib * count for shape, count in wanted)} GiB"
    )
    gpus, free_gpus = sum(shape.gpus * count for shape, count in wanted), ""
    if gpus:
        types = sorted({shape.gpu_type for shape, _ in wanted if shape.gpus})
        left = [
            f"{max(0, int(available(inventory, f'{_GPUS}{each}') - used.get(f'{_GPUS}{each}', 0)))} GPUs"
            + (f" of type {each}" if each else "")
            for each in types
        ]
        asked, free_gpus = f"{asked}, {gpus} GPUs", f", {', '.join(left)}"
    free = f"{number(cores)} {'core' if cores == 1 else 'cores'}{vcpus}, {number(memory)} GiB{free_gpus}"
    return f"Free: {free}. You asked for {asked}. {_what_fits(inventory, wanted, held)}"


def _what_fits(inventory: Inventory, wanted: Sequence[Demand], held: Sequence[Demand]) -> str:
    fitting = [
        f"{count} x {shape.platform} {shape.name}"
        for shape in dict.fromkeys(shape for shape, _ in wanted)
        if (count := nodes_that_fit(inventory, held, shape))
    ]
    if fitting:
        return f"What fits: {' or '.join(fitting)}."
    of_platforms = {shape.platform for shape, _ in wanted}
    smaller = [
        shape
        for name in sorted(of_platforms & platforms().keys())
        for shape in platforms()[name].presets.values()
        if nodes_that_fit(inventory, held, shape)
    ]
    if not smaller:
        return f"Nothing of {' or '.join(sorted(of_platforms))} fits: stop or delete something first."
    largest = max(smaller, key=lambda shape: (shape.gpus, shape.memory_gib, shape.vcpu))
    return f"The largest that fits: {largest.platform} {largest.name}."


def amount(demands: Sequence[Demand]) -> str:
    memory = sum(shape.memory_gib * count for shape, count in demands)
    cores = number(_cores(demands))
    gpus = sum(shape.gpus * count for shape, count in demands)
    return f"{cores} {'core' if cores == '1' else 'cores'}, {memory} GiB" + (f", {gpus} GPUs" if gpus else "")


def _cores(demands: Sequence[Demand]) -> Fraction:
    return sum((Fraction(shape.vcpu * count, shape.vcpu_per_core) for shape, count in demands), Fraction())


def shortages(inventory: Inventory, demands: Sequence[Demand]) -> list[str]:
    """Return a text with the sum for each shortage; empty when everything fits."""
    found: list[str] = []
    cores = _cores(demands)
    if cores > inventory.cpus:
        terms = _sum((count, shape.vcpu) for shape, count in demands)
        shared = sorted(
            {(shape.vcpu_per_core, shape.platform) for shape, _ in demands if shape.vcpu_per_core > 1}
        )
        why = "".join(f" ({number} vCPU of {platform} share a core)" for number, platform in shared)
        found.append(f"{terms} vCPU need {number(cores)} cores{why}, {inventory.cpus} are available")
    memory_mib = sum(shape.memory_mib * count for shape, count in demands)
    if memory_mib > inventory.memory_mib:
        terms = _sum((count, shape.memory_gib) for shape, count in demands)
        found.append(
            f"{terms} GiB of memory, {number(Fraction(inventory.memory_mib, 1024))} GiB are available"
        )
    found.extend(_gpu_shortages(inventory, demands))
    return found


def _gpu_shortages(inventory: Inventory, demands: Sequence[Demand]) -> Iterable[str]:
    demanded: Counter[str] = Counter()
    for shape, count in demands:
        demanded[shape.gpu_type] += shape.gpus * count
    for type_name, number in demanded.items():
        available = inventory.gpu_count(type_name)
        if type_name and number > available:
            yield f"{number} GPUs of type {type_name}, {available} are available"
    if demanded[""] and demanded.total() > inventory.gpu_count(""):
        yield f"{demanded.total()} GPUs in total, {inventory.gpu_count('')} are available"


def _sum(terms: Iterable[tuple[int, int]]) -> str:
    parts = list(terms)
    total = sum(count * size for count, size in parts)
    text = " + ".join(f"{count} x {size}" for count, size in parts)
    return f"{text} = {total}"


def number(value: Fraction | int) -> str:
    return f"{float(value):.2f}".rstrip("0").rstrip(".")
