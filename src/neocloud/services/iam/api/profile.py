"""Who am I: the caller's own account."""

from typing import Any

from neocloud.core import contract, wire
from neocloud.core.service import Call

GetProfileResponse = contract.message("nebius.iam.v1.GetProfileResponse")


async def get(call: Call, request: Any) -> Any:
    subject_id = call.subject.id if call.subject else ""
    row = await call.dependencies.store.read(lambda tx: tx.get(subject_id))
    if row is None:
        raise contract.not_found("service account", subject_id)
    profile = GetProfileResponse()
    profile.service_account_profile.info.CopyFrom(wire.resource_message(row))
    return profile
