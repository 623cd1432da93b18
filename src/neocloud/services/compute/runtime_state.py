"""The runtime state of an instance: what neither its spec nor the engine holds, stored beside the instance.

`stop_reason`: why the instance does not run although it should. Only a start clears it, so a guest that
powered itself off stays off when the server or the host restarts. `pod_spec`: the pod as it was when it was
started; a new version of this program must not replace the pods of running instances.
"""

import json
from dataclasses import dataclass, field, replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.engines.base import KubernetesObject
from neocloud.messages.nebius.compute.v1 import InstanceSpec, InstanceStatus
from neocloud.services.compute.types import (
    INSTANCE,
    InstanceState,
    InstanceStateEnum,
    StopReason,
)

_SECRET_NAME = "machine"
_STOP_REASON, _POD_SPEC = "halt", "pod_spec"


@dataclass(frozen=True)
class RuntimeState:
    stop_reason: StopReason = StopReason.NONE
    pod_spec: KubernetesObject = field(default_factory=dict)


def read_runtime_state(tx: Transaction, instance_id: str) -> RuntimeState:
    raw = tx.secret(instance_id, _SECRET_NAME)
    if raw is None:
        return RuntimeState()
    content = json.loads(raw)
    return RuntimeState(StopReason(content[_STOP_REASON]), content[_POD_SPEC])


def write_runtime_state(tx: Transaction, instance_id: str, state: RuntimeState) -> None:
    content = {_STOP_REASON: state.stop_reason, _POD_SPEC: state.pod_spec}
    tx.put_secret(instance_id, _SECRET_NAME, json.dumps(content).encode())


async def preempt(store: Store, instance_id: str, now: datetime) -> None:
    """Stop a preemptible instance until its owner starts it again.

    Operators and the emulator's faults call this; no method of the API does. The caller enqueues
    the instance.
    """

    def work(tx: Transaction) -> None:
        row = live_instance(tx, instance_id)
        if not InstanceSpec.FromString(row.spec).HasField("preemptible"):
            raise contract.bad_state(
                row.id,
                f"{row.id} is not preemptible. Set spec.preemptible first.",
            )
        runtime = read_runtime_state(tx, row.id)
        if runtime.stop_reason or row.state == InstanceState.STOPPED:
            raise contract.bad_state(row.id, f"{row.id} does not run. Start it before you preempt it.")
        write_runtime_state(tx, row.id, replace(runtime, stop_reason=StopReason.PREEMPTED))
        status = InstanceStatus.FromString(row.status)
        status.state, status.reconciling = InstanceStateEnum.Value(InstanceState.STOPPING), True
        tx.update(
            replace(row, state=InstanceState.STOPPING, status=status.SerializeToString(), updated_at=now)
        )

    await store.write(work)


def live_instance(tx: Transaction, instance_id: str) -> Resource:
    """Return the row of an instance that is not being deleted. Raises NOT_FOUND."""
    row = tx.get(instance_id)
    if row is None or row.kind != INSTANCE or row.deleted_at is not None:
        raise contract.not_found("instance", instance_id)
    return row
