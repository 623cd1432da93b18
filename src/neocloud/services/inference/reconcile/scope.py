"""The state of one reconcile run of a deployment: spec, model, adapters, replicas, and decisions so far.

It is built in every run, so that no step acts on the findings of an earlier run. The part that must outlive a
run (failures, when to try again) is in the status.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from neocloud.core import wire
from neocloud.core.contract import ApiError
from neocloud.core.reconcile.reconciler import Context, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import CapacityUses
from neocloud.engines.base import Capabilities
from neocloud.messages.neocloud.inference.v1 import (
    Deployment,
    DeploymentSpec,
    Model,
    Replica,
    ReplicaReservationSpec,
    WeightsQuality,
)
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec
from neocloud.services.compute.public import check_fits, held_by_others, holder_name, needs_capacity_check
from neocloud.services.inference.render import ModelServerView
from neocloud.services.inference.rules.deployment import folder_in_memory, replica_demand
from neocloud.services.inference.rules.memory import GIB, LARGEST_RANK, MIB, MemoryPlan
from neocloud.services.inference.rules.scaling import LONGEST_RESYNC_SECONDS
from neocloud.services.inference.types import (
    MODEL,
    REPLICA_RESERVATION,
    RESERVATION_STOPPED,
    ModelState,
    called_name,
    is_withheld,
    namespace,
    replica_name,
    task_name,
)


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica as its backend observes it."""

    name: str
    is_running: bool
    """Its process exists; False while it waits for capacity."""
    is_healthy: bool
    """Its model server passes its health check. It may not have answered a request yet."""
    has_ended: bool
    """Its process has ended and is not restarted by its backend."""
    is_outdated: bool = False
    """It runs by an older spec."""
    address: str = ""
    """"10.89.3.4:8000"; "" until it is known."""
    started_at: datetime | None = None
    message: str = ""
    job_id: int = 0


@dataclass(frozen=True)
class ServedAdapter:
    id: str
    name: str
    """The name by which clients call it on this deployment."""
    model: Model


@dataclass
class DeploymentScope:
    context: Context
    deployment: Deployment
    """The stored deployment."""
    model: Model | None
    """None when its row is gone."""
    adapters: tuple[ServedAdapter, ...] = ()
    """Adapters that are READY, if the deployment serves any."""
    records: dict[str, Replica] = field(default_factory=dict[str, Replica])
    """The replicas of the new status, by name."""
    observed: Mapping[str, ReplicaStatus] = field(default_factory=dict[str, ReplicaStatus])
    plan: MemoryPlan | None = None
    quality: WeightsQuality | None = None
    """Quality of weights of fewer bits; None until they are made."""
    memory_folder: str = ""
    """The folder in memory of its cluster's workers that has room for the weights; "" without one."""
    desired: int = 0
    """How many replicas there should be."""
    resync_seconds: float = LONGEST_RESYNC_SECONDS
    no_host: str = ""
    """Why no new replica can be placed now; "" where one can."""
    server_key: bytes = b""
    """The bearer token of the deployment's model servers."""

    @property
    def id(self) -> str:
        return self.deployment.metadata.id

    @property
    def spec(self) -> DeploymentSpec:
        return self.deployment.spec

    @property
    def namespace(self) -> str:
        return namespace(self.id)

    @property
    def desired_names(self) -> tuple[str, ...]:
        return tuple(replica_name(number) for number in range(self.desired))

    @property
    def served_name(self) -> str:
        assert self.model is not None
        return called_name(self.model.metadata.name, self.spec)

    def record(self, name: str) -> Replica:
        """Return the record of a replica; a new one when there is none."""
        if name not in self.records:
            self.records[name] = Replica(name=name, state=Replica.PENDING)
        return self.records[name]


async def read_scope(context: Context) -> DeploymentScope:
    deployment = wire.resource_message(context.resource)
    row = await context.get(deployment.spec.model_id)
    model = wire.resource_message(row) if row is not None else None
    scope = DeploymentScope(context, deployment, model, desired=deployment.status.wanted_replicas)
    for replica in deployment.status.replicas:
        scope.records[replica.name] = Replica()
        scope.records[replica.name].CopyFrom(replica)
    if deployment.spec.weights_in_memory and model is not None:
        cluster = await context.get(deployment.spec.slurm_cluster_id)
        spec = ClusterSpec.FromString(cluster.spec) if cluster is not None else ClusterSpec()
        scope.memory_folder = folder_in_memory(spec, model.status.size_bytes)
    if deployment.status.HasField("weights_quality"):
        scope.quality = deployment.status.weights_quality
    if model is not None and deployment.spec.max_adapters:
        scope.adapters = await _ready_adapters(scope, model)
    return scope


async def _ready_adapters(scope: DeploymentScope, model: Model) -> tuple[ServedAdapter, ...]:
    found: list[ServedAdapter] = []
    for adapter_id in model.status.adapter_ids:
        row = await scope.context.get(adapter_id)
        if row is None or row.kind != MODEL or row.deleted_at or row.state != ModelState.READY:
            continue
        adapter: Model = wire.resource_message(row)
        if not is_withheld(adapter.spec):
            found.append(ServedAdapter(adapter_id, called_name(row.name, scope.spec), adapter))
    return tuple(found)


def server_view(scope: DeploymentScope, *, gpus: int, media_domains: tuple[str, ...]) -> ModelServerView:
    """Return how each model server of the deployment serves; requires a model and a plan."""
    assert scope.plan is not None and scope.model is not None
    return ModelServerView(
        served_name=scope.served_name,
        context_length=scope.plan.context_length,
        max_concurrency=scope.plan.max_concurrency,
        cache_gib=max(1, scope.plan.cache_bytes // GIB),
        gpus=gpus,
        max_adapters=scope.spec.max_adapters,
        adapter_rank=LARGEST_RANK,
        merged_mib=0 if gpus else scope.plan.spare_bytes // MIB,
        adapted_modules=tuple(scope.model.status.target_modules),
        tool_call_parser=scope.model.spec.tool_call_parser or scope.model.status.tool_call_parser,
        reasoning_parser=scope.model.spec.reasoning_parser,
        task=task_name(scope.spec),
        media_domains=media_domains,
    )


NO_CAPACITY_SECONDS = 5.0


async def reserve_replicas(scope: DeploymentScope, inventory: Capabilities, uses: CapacityUses) -> None:
    """Reserve capacity for each desired replica.

    Raises RetryLater, with the sum of what is held, while the machine lacks capacity for them.
    """
    held = await _reservations(scope)
    missing = [name for name in scope.desired_names if name not in held]
    if missing:
        await _require_capacity(scope, inventory, uses, len(held))
    for name in missing:
        metadata = scope.deployment.metadata
        await scope.context.ensure_child(
            REPLICA_RESERVATION,
            name=_reservation_name(scope, name),
            parent_id=metadata.parent_id,
            spec=_spec(scope),
            labels={},
        )


async def release_replicas(scope: DeploymentScope, keep: Sequence[str]) -> None:
    """Release the reservations of all replicas but these."""
    for name, row in (await _reservations(scope)).items():
        if name not in keep:
            await scope.context.delete_child(row.id)


async def _reservations(scope: DeploymentScope) -> Mapping[str, Resource]:
    """Return them by replica, after releasing those of an older shape or from before a stop."""
    found: dict[str, Resource] = {}
    spec = _spec(scope)
    for row in await scope.context.list(REPLICA_RESERVATION, scope.deployment.metadata.parent_id):
        if row.owner_id != scope.id or row.deleted_at is not None:
            continue
        if row.state == RESERVATION_STOPPED or ReplicaReservationSpec.FromString(row.spec) != spec:
            await scope.context.delete_child(row.id)
        else:
            found[row.name.removeprefix(f"{scope.id}.")] = row
    return found


async def _require_capacity(
    scope: DeploymentScope, inventory: Capabilities, uses: CapacityUses, held: int
) -> None:
    least = scope.spec.scaling.min_replicas
    demand = replica_demand(scope.spec, scope.desired)
    if not needs_capacity_check(inventory, demand, replica_demand(scope.spec, max(held, least))):
        return
    rows = {kind: await scope.context.list(kind) for kind in uses.kinds}
    project = scope.deployment.metadata.parent_id
    names = {row.id: holder_name(row) for found in rows.values() for row in found if row.parent_id == project}
    try:
        check_fits(inventory, demand, held_by_others(uses, rows, scope.id), names)
    except ApiError as error:
        raise RetryLater(error.message, delay_seconds=NO_CAPACITY_SECONDS) from error


def _reservation_name(scope: DeploymentScope, replica: str) -> str:
    return f"{scope.id}.{replica}"


def _spec(scope: DeploymentScope) -> ReplicaReservationSpec:
    spec = scope.spec
    return ReplicaReservationSpec(
        deployment_id=scope.id, platform=spec.platform, preset=spec.preset, charge=spec.charge
    )
