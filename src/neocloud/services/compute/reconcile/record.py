"""What is known of a machine that neither its spec nor the engine says, kept beside the instance.

`halt`: why it does not run although it should. Only a start takes it away, so a guest that powered itself
off stays off over restarts of the server and the machine. `pod_spec`: the pod as it was when it was started;
a new version of this program must not replace the pods of machines that run.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from neocloud.core.store.protocol import Transaction
from neocloud.services.compute.resources.instance import Halt

_NAME = "machine"


@dataclass(frozen=True)
class MachineRecord:
    halt: Halt = Halt.NONE
    pod_spec: dict[str, Any] = field(default_factory=dict)


def read_record(tx: Transaction, instance_id: str) -> MachineRecord:
    raw = tx.secret(instance_id, _NAME)
    if raw is None:
        return MachineRecord()
    content = json.loads(raw)
    return MachineRecord(Halt(content["halt"]), content["pod_spec"])


def write_record(tx: Transaction, instance_id: str, record: MachineRecord) -> None:
    tx.put_secret(instance_id, _NAME, json.dumps(asdict(record)).encode())
