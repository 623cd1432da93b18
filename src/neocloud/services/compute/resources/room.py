"""Is there room on this machine? Adds up what instances and workers of Slurm clusters hold together. Pure.

Whoever promises a node asks here, so that machines and clusters never get the same memory twice.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from neocloud.core import contract
from neocloud.core.store.protocol import Resource
from neocloud.services.compute.resources.capacity import Demand, check_capacity
from neocloud.services.compute.resources.catalogue import preset
from neocloud.services.compute.resources.instance import INSTANCE, InstanceSpec, InstanceState

CLUSTER = "neocloud.slurm.v1.Cluster"
ClusterSpec = contract.message("neocloud.slurm.v1.ClusterSpec")

_HOLDS_NOTHING = frozenset({InstanceState.STOPPED, InstanceState.ERROR})


class Tenants(Protocol):
    """As much of a World as the question for room needs."""

    @property
    def inventory(self) -> Any: ...

    def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]: ...


def check_room(tenants: Tenants, resource_id: str, wanted: Sequence[Demand], held: Sequence[Demand]) -> None:
    """Raises NOT_ENOUGH_RESOURCES unless this machine holds what the resource wants beside all others.
    Who asks for no more than it holds already gets it: becoming smaller is always possible."""
    if tenants.inventory is None or not _count(wanted) - _count(held):
        return
    if tenants.inventory.is_boundless and not any(shape.gpus for shape, _ in wanted):
        return
    check_capacity(tenants.inventory, [*wanted, *_others(tenants, resource_id)])


def instance_demands(spec: Any) -> list[Demand]:
    """What an instance holds."""
    return [] if spec.stopped else [(preset(spec.resources.platform, spec.resources.preset), 1)]


def cluster_demands(spec: Any) -> list[Demand]:
    """What the workers of a Slurm cluster hold."""
    return [
        (preset(node_set.platform, node_set.preset), node_set.count)
        for node_set in spec.node_sets
        if node_set.count
    ]


def _others(tenants: Tenants, resource_id: str) -> Iterable[Demand]:
    for row in tenants.list(CLUSTER):
        if row.id != resource_id:
            yield from cluster_demands(ClusterSpec.FromString(row.spec))
    for row in tenants.list(INSTANCE):
        if row.id != resource_id and row.state not in _HOLDS_NOTHING:
            yield from instance_demands(InstanceSpec.FromString(row.spec))


def _count(demands: Iterable[Demand]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for shape, number in demands:
        found[shape] += number
    return found
