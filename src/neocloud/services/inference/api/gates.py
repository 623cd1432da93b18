"""OverrideGate: serve a model although it failed the gate of its fine-tuning job."""

from dataclasses import replace

from neocloud.core import contract, wire
from neocloud.core.service import Call, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.neocloud.inference.v1 import Model, OverrideGateRequest
from neocloud.services.inference.types import DEPLOYMENT, MODEL, is_withheld, users_namespace


async def override_gate(call: Call, request: OverrideGateRequest) -> Write[Operation]:
    reason = request.reason.strip()
    if not reason:
        raise contract.bad_field("reason", "is required: the audit log keeps it")
    now, subject = call.dependencies.clock.now(), call.subject
    assert subject is not None, "The method needs a permission."

    def work(tx: Transaction) -> NewOperation:
        row = row_to_change(tx, MODEL, request.id, "model")
        model: Model = wire.resource_message(row)
        if not is_withheld(model.spec):
            raise contract.bad_state(
                row.id, f"No gate withholds the model {row.name}; there is nothing to override."
            )
        made = model.spec.gate_override
        made.subject_id, made.subject_name, made.reason = subject.id, subject.name, reason
        made.at.FromDatetime(now)
        changed = replace(
            row,
            spec=model.spec.SerializeToString(),
            updated_at=now,
            resource_version=row.resource_version + 1,
        )
        tx.update(changed)
        for user_id in tx.reservations(users_namespace(model.spec.base_model_id)):
            user = tx.get(user_id)
            if user is not None and user.kind == DEPLOYMENT:
                tx.enqueue(user_id, now)  # it loads the adapter
        return NewOperation(changed, f"gate of model {row.name}")

    return Write(work)
