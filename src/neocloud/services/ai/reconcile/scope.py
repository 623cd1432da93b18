"""The scope of one run over an endpoint or a job, and the status fields that both have."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from neocloud.core import wire
from neocloud.core.reconcile.reconciler import Context
from neocloud.core.store.protocol import Store
from neocloud.engines.base import Engine, Observation, ObservedPod, PodPhase
from neocloud.engines.manifest import Interface
from neocloud.messages.nebius.ai.v1 import EndpointStatus, JobStatus
from neocloud.services.ai.render import RUN_LABEL, MountView
from neocloud.services.ai.types import (
    POD,
    RuntimeState,
    Workload,
    WorkloadSpec,
    namespace,
    read_runtime_state,
)

WorkloadStatus = EndpointStatus | JobStatus


@dataclass
class WorkloadScope:
    context: Context
    message: Workload
    """The Endpoint or Job as stored."""
    runtime: RuntimeState
    observation: Observation
    interface: Interface | None = None
    """Set by a step, like the mounts."""
    mounts: tuple[MountView, ...] = ()

    @property
    def id(self) -> str:
        return self.message.metadata.id

    @property
    def spec(self) -> WorkloadSpec:
        return self.message.spec

    @property
    def state(self) -> str:
        return self.context.resource.state

    @property
    def is_deleting(self) -> bool:
        return self.context.resource.deleted_at is not None

    @property
    def should_run(self) -> bool:
        return not (self.runtime.is_stopped or self.runtime.outcome or self.is_deleting)

    @property
    def run(self) -> str:
        """The name of the attempt, which its pod has as a label."""
        return f"{self.runtime.round}-{self.runtime.attempt}"

    @property
    def pod(self) -> ObservedPod | None:
        return self.observation.pod(POD)

    @property
    def current_pod(self) -> ObservedPod | None:
        """The pod of this attempt."""
        pod = self.pod
        return pod if pod is not None and pod.labels.get(RUN_LABEL) == self.run else None

    @property
    def is_up(self) -> bool:
        pod = self.current_pod
        return pod is not None and pod.phase is PodPhase.RUNNING


async def read_scope(context: Context, engine: Engine, store: Store, attempts: int) -> WorkloadScope:
    """Read the state of a workload, which has this many attempts after the first."""
    resource_id = context.resource.id
    runtime = await store.read(lambda tx: read_runtime_state(tx, resource_id))
    return WorkloadScope(
        context=context,
        message=wire.resource_message(context.resource),
        runtime=runtime or RuntimeState(attempts_left=attempts),
        observation=await engine.observe(namespace(resource_id)),
    )


def set_addresses(status: WorkloadStatus, scope: WorkloadScope, state: str) -> None:
    """Set the one instance and the endpoints of its ports. They stay until the new ones are known."""
    view = scope.interface
    if view is not None:
        private, public = str(view.address), str(view.public_address or "")
        for field, address in (("private_endpoints", private), ("public_endpoints", public)):
            endpoints = getattr(status, field)
            del endpoints[:]
            if address:
                endpoints.extend(f"{address}:{port.container_port}" for port in scope.spec.ports)
        del status.instances[:]
        status.instances.add(private_ip=private, public_ip=public)
    instance: Any  # of two classes, with states of the same names
    for instance in cast(Iterable[Any], status.instances):
        instance.state = instance.State.Value(state)


def set_details(status: WorkloadStatus, code: str, message: str) -> None:
    status.ClearField("state_details")
    if code or message:
        status.state_details.code, status.state_details.message = code, message
