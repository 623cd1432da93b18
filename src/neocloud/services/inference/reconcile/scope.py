"""What one run over a deployment knows: the spec, its model and adapters, and what was decided so far.

Built in every run, so that no step acts on what an earlier run believed; what must outlive a run
(failures, when to try again) is in the status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import Context
from neocloud.messages.neocloud.inference.v1 import Replica
from neocloud.services.inference.resources import MODEL, ModelState, called_name, namespace, replica_name
from neocloud.services.inference.rules.memory import Plan

if TYPE_CHECKING:
    from neocloud.services.inference.reconcile.placement import Seen


@dataclass(frozen=True)
class ServedAdapter:
    id: str
    name: str
    """As clients call it here."""
    model: Any
    """The Model message."""


@dataclass
class Scope:
    context: Context
    deployment: Any
    """The Deployment message as stored."""
    model: Any | None
    """The Model message; None when its row is gone."""
    adapters: tuple[ServedAdapter, ...] = ()
    """Those that are READY, if the deployment serves any."""
    records: dict[str, Any] = field(default_factory=dict)
    """Replica messages by name, as the status will show them."""
    seen: Mapping[str, "Seen"] = field(default_factory=dict)
    plan: Plan | None = None
    wanted: int = 0
    look_again_seconds: float = 10.0
    engine_key: bytes = b""

    @property
    def id(self) -> str:
        return self.deployment.metadata.id

    @property
    def spec(self) -> Any:
        return self.deployment.spec

    @property
    def namespace(self) -> str:
        return namespace(self.id)

    @property
    def wanted_names(self) -> tuple[str, ...]:
        return tuple(replica_name(number) for number in range(self.wanted))

    @property
    def served_name(self) -> str:
        assert self.model is not None
        return called_name(self.model.metadata.name, self.spec)

    def record(self, name: str) -> Any:
        """What is known of a replica; a fresh one when nothing is."""
        if name not in self.records:
            self.records[name] = Replica(name=name, state=Replica.PENDING)
        return self.records[name]


async def read_scope(context: Context) -> Scope:
    deployment = wire.resource_message(context.resource)
    row = await context.get(deployment.spec.model_id)
    model = wire.resource_message(row) if row is not None else None
    scope = Scope(context, deployment, model, wanted=deployment.status.wanted_replicas)
    for replica in deployment.status.replicas:
        scope.records[replica.name] = Replica()
        scope.records[replica.name].CopyFrom(replica)
    if model is not None and deployment.spec.max_adapters:
        scope.adapters = await _ready_adapters(scope, model)
    return scope


async def _ready_adapters(scope: Scope, model: Any) -> tuple[ServedAdapter, ...]:
    found = []
    for adapter_id in model.status.adapter_ids:
        row = await scope.context.get(adapter_id)
        if row is None or row.kind != MODEL or row.deleted_at or row.state != ModelState.READY:
            continue
        name = called_name(row.name, scope.spec)
        found.append(ServedAdapter(adapter_id, name, wire.resource_message(row)))
    return tuple(found)
