"""The state of one reconcile run of a deployment: spec, model, adapters, replicas, and decisions so far.

It is built in every run, so that no step acts on the findings of an earlier run. The part that must outlive a
run (failures, when to try again) is in the status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import Context
from neocloud.messages.neocloud.inference.v1 import Deployment, DeploymentSpec, Model, Replica
from neocloud.services.inference.render import ModelServerView
from neocloud.services.inference.rules.memory import GIB, LARGEST_RANK, Plan
from neocloud.services.inference.rules.scaling import LONGEST_RESYNC_SECONDS
from neocloud.services.inference.types import (
    MODEL,
    ModelState,
    called_name,
    embeds,
    namespace,
    replica_name,
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
class Scope:
    context: Context
    deployment: Deployment
    """As stored."""
    model: Model | None
    """None when its row is gone."""
    adapters: tuple[ServedAdapter, ...] = ()
    """Those that are READY, if the deployment serves any."""
    records: dict[str, Replica] = field(default_factory=dict)
    """The replicas of the new status, by name."""
    observed: Mapping[str, ReplicaStatus] = field(default_factory=dict)
    plan: Plan | None = None
    desired: int = 0
    """How many replicas there should be."""
    resync_seconds: float = LONGEST_RESYNC_SECONDS
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


async def read_scope(context: Context) -> Scope:
    deployment = wire.resource_message(context.resource)
    row = await context.get(deployment.spec.model_id)
    model = wire.resource_message(row) if row is not None else None
    scope = Scope(context, deployment, model, desired=deployment.status.wanted_replicas)
    for replica in deployment.status.replicas:
        scope.records[replica.name] = Replica()
        scope.records[replica.name].CopyFrom(replica)
    if model is not None and deployment.spec.max_adapters:
        scope.adapters = await _ready_adapters(scope, model)
    return scope


async def _ready_adapters(scope: Scope, model: Model) -> tuple[ServedAdapter, ...]:
    found = []
    for adapter_id in model.status.adapter_ids:
        row = await scope.context.get(adapter_id)
        if row is None or row.kind != MODEL or row.deleted_at or row.state != ModelState.READY:
            continue
        name = called_name(row.name, scope.spec)
        found.append(ServedAdapter(adapter_id, name, wire.resource_message(row)))
    return tuple(found)


def server_view(scope: Scope, *, gpus: int, media_domains: tuple[str, ...]) -> ModelServerView:
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
        adapted_modules=tuple(scope.model.status.target_modules),
        tool_call_parser=scope.model.spec.tool_call_parser,
        reasoning_parser=scope.model.spec.reasoning_parser,
        embeds=embeds(scope.spec),
        media_domains=media_domains,
    )
