"""Preemption: stop a preemptible instance that its owner wants to run.

Operators and the emulator's faults call this; no method of the API does. The caller enqueues the instance
afterwards.
"""

from dataclasses import replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.store.protocol import Store, Transaction
from neocloud.messages.nebius.compute.v1 import InstanceSpec, InstanceStatus
from neocloud.services.compute.maintenance import live_instance
from neocloud.services.compute.runtime_state import read_runtime_state, write_runtime_state
from neocloud.services.compute.types import (
    InstanceState,
    InstanceStateEnum,
    StopReason,
)


async def preempt(store: Store, instance_id: str, now: datetime) -> None:
    """Stop a preemptible instance until its owner starts it again."""

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
