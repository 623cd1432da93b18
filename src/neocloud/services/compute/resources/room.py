"""Is there room on this machine? Adds up what instances, workers, replicas and jobs hold together. Pure.

Whoever promises a node asks here, so that they never get the same memory twice.
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

DEPLOYMENT = "neocloud.inference.v1.Deployment"
DeploymentSpec = contract.message("neocloud.inference.v1.DeploymentSpec")
PLACE = "neocloud.inference.v1.Place"
PlaceSpec = contract.message("neocloud.inference.v1.PlaceSpec")

JOB = "neocloud.tuning.v1.FineTuningJob"
JobSpec = contract.message("neocloud.tuning.v1.FineTuningJobSpec")
_TRAINING = frozenset({"VALIDATING_FILES", "QUEUED", "RUNNING"})

ENDPOINT = "nebius.ai.v1.Endpoint"
AI_JOB = "nebius.ai.v1.Job"
HOLDERS = (CLUSTER, INSTANCE, DEPLOYMENT, PLACE, JOB, ENDPOINT, AI_JOB)
"""Kinds that hold room on this machine, or say how much: what a reconciler lists before it asks."""
_AI_SPECS = {kind: contract.message(f"{kind}Spec") for kind in (ENDPOINT, AI_JOB)}
_AI_RESTS = frozenset({"STOPPED", "COMPLETED", "FAILED", "CANCELLED"})

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
    yield from _replicas_of_others(tenants, resource_id)
    for row in tenants.list(JOB):
        spec = JobSpec.FromString(row.spec)
        if row.id != resource_id and row.state in _TRAINING and spec.platform:
            yield preset(spec.platform, spec.preset), 1
    for kind, spec_class in _AI_SPECS.items():
        for row in tenants.list(kind):
            if row.id != resource_id and row.state not in _AI_RESTS:
                spec = spec_class.FromString(row.spec)
                yield preset(spec.platform, spec.preset), 1
    for row in tenants.list(INSTANCE):
        if row.id != resource_id and row.state not in _HOLDS_NOTHING:
            yield from instance_demands(InstanceSpec.FromString(row.spec))


def _replicas_of_others(tenants: Tenants, resource_id: str) -> Iterable[Demand]:
    """A deployment holds its fewest replicas always, and those beyond while they have a place."""
    places = Counter(PlaceSpec.FromString(row.spec).deployment_id for row in tenants.list(PLACE))
    for row in tenants.list(DEPLOYMENT):
        spec = DeploymentSpec.FromString(row.spec)
        replicas = max(spec.scaling.min_replicas, places[row.id])
        if row.id != resource_id and spec.platform and replicas:
            yield preset(spec.platform, spec.preset), replicas


def _count(demands: Iterable[Demand]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for shape, number in demands:
        found[shape] += number
    return found
