"""Does it fit on this machine? Adds up what is asked for and compares it with what is there. Pure.

Memory and GPUs are never promised twice. A vCPU of the published platforms is a thread of its own; one of the
local platforms is a share of a core, as the catalogue says.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from neocloud.core import contract
from neocloud.engines.base import Capabilities
from neocloud.fleet.inventory import Inventory
from neocloud.services.compute.resources.catalogue import Preset

Demand = tuple[Preset, int]
"""A preset and how many nodes of it."""


def check_fits(capabilities: Capabilities | None, demands: Iterable[Demand]) -> None:
    """Raises ApiError (not enough resources) unless all demands fit together. None: the machine is unknown,
    so the engine will have to find out."""
    if capabilities is None:
        return
    asked = list(demands)
    lacking = shortages(Inventory.of(capabilities), asked)
    if lacking:
        nodes = " + ".join(f"{count} x {preset.platform} {preset.name}" for preset, count in asked)
        raise contract.not_enough_resources(
            "compute.nodes",
            nodes,
            f"This machine cannot hold {nodes}: {'; '.join(lacking)}. "
            "Ask for fewer or smaller nodes, or delete what is no longer needed.",
        )


def shortages(inventory: Inventory, demands: Sequence[Demand]) -> list[str]:
    """What there is too little of, with the sum shown; empty when everything fits."""
    found = []
    cores = sum(Fraction(preset.vcpu * count, preset.vcpu_per_core) for preset, count in demands)
    if cores > inventory.cpus:
        terms = _sum((count, preset.vcpu) for preset, count in demands)
        found.append(f"{terms} vCPU need {_number(cores)} cores, {inventory.cpus} are there")
    memory_mib = sum(preset.memory_mib * count for preset, count in demands)
    if memory_mib > inventory.memory_mib:
        terms = _sum((count, preset.memory_gib) for preset, count in demands)
        found.append(f"{terms} GiB of memory, {_number(Fraction(inventory.memory_mib, 1024))} GiB are there")
    found.extend(_gpu_shortages(inventory, demands))
    return found


def _gpu_shortages(inventory: Inventory, demands: Sequence[Demand]) -> Iterable[str]:
    wanted: Counter[str] = Counter()
    for preset, count in demands:
        wanted[preset.gpu_type] += preset.gpus * count
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
