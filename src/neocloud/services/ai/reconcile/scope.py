"""What one run over an endpoint or a job knows."""

from dataclasses import dataclass
from typing import Any

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import Context
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine, Observation, ObservedPod, PodPhase
from neocloud.services.ai.record import Record, read_record
from neocloud.services.ai.render import RUN_LABEL, InterfaceView, MountView
from neocloud.services.ai.resources import POD, namespace


@dataclass
class WorkloadScope:
    context: Context
    message: Any
    """The Endpoint or Job as stored."""
    record: Record
    observation: Observation
    interface: InterfaceView | None = None
    """Found by a step, like the mounts."""
    mounts: tuple[MountView, ...] = ()

    @property
    def id(self) -> str:
        return self.message.metadata.id

    @property
    def spec(self) -> Any:
        return self.message.spec

    @property
    def state(self) -> str:
        return self.context.resource.state

    @property
    def is_deleting(self) -> bool:
        return self.context.resource.deleted_at is not None

    @property
    def should_run(self) -> bool:
        return not (self.record.is_stopped or self.record.outcome or self.is_deleting)

    @property
    def run(self) -> str:
        return f"{self.record.round}-{self.record.attempt}"

    @property
    def pod(self) -> ObservedPod | None:
        return self.observation.pod(POD)

    @property
    def current_pod(self) -> ObservedPod | None:
        """The one of this attempt."""
        pod = self.pod
        return pod if pod is not None and pod.labels.get(RUN_LABEL) == self.run else None

    @property
    def is_up(self) -> bool:
        pod = self.current_pod
        return pod is not None and pod.phase is PodPhase.RUNNING


async def read_scope(context: Context, engine: Engine, store: Store, attempts: int) -> WorkloadScope:
    """`attempts` is how many there are after the first."""
    resource_id = context.resource.id
    record = await store.read(lambda tx: read_record(tx, resource_id))
    return WorkloadScope(
        context=context,
        message=wire.resource_message(context.resource),
        record=record or Record(attempts_left=attempts),
        observation=await engine.observe(namespace(resource_id)),
    )
