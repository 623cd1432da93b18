"""The runtime state of an instance: what neither its spec nor the engine holds, stored beside the instance.

`stop_reason`: why the instance does not run although it should. Only a start clears it, so a guest that
powered itself off stays off when the server or the host restarts. `pod_spec`: the pod as it was when it was
started; a new version of this program must not replace the pods of running instances.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from neocloud.core.store.protocol import Transaction
from neocloud.services.compute.types import StopReason

_SECRET_NAME = "machine"
_STOP_REASON, _POD_SPEC = "halt", "pod_spec"


@dataclass(frozen=True)
class RuntimeState:
    stop_reason: StopReason = StopReason.NONE
    pod_spec: dict[str, Any] = field(default_factory=dict)


def read_runtime_state(tx: Transaction, instance_id: str) -> RuntimeState:
    raw = tx.secret(instance_id, _SECRET_NAME)
    if raw is None:
        return RuntimeState()
    content = json.loads(raw)
    return RuntimeState(StopReason(content[_STOP_REASON]), content[_POD_SPEC])


def write_runtime_state(tx: Transaction, instance_id: str, state: RuntimeState) -> None:
    content = {_STOP_REASON: state.stop_reason, _POD_SPEC: state.pod_spec}
    tx.put_secret(instance_id, _SECRET_NAME, json.dumps(content).encode())
