"""The permission check of methods whose target only their handler knows."""

from neocloud.core import contract
from neocloud.core.service import Call
from neocloud.services.iam.access.authorize import StoreAuthorizer
from neocloud.services.iam.access.sign_in_log import write_event


async def require(call: Call, permission: str, target_id: str, *, record_as: str = "") -> None:
    """Raises ApiError unless the caller has the permission on the target. The server records refusals of
    changes by itself; `record_as` is the method's path for those of other calls."""
    subject = call.subject
    if subject is None:
        raise contract.unauthenticated("This call needs a token; sign in first.")
    authorizer = StoreAuthorizer(call.dependencies.store, call.dependencies.clock)
    try:
        await authorizer.authorize(subject, permission, target_id)
    except contract.ApiError as denial:
        if record_as:
            error = denial
            await call.dependencies.store.write(
                lambda tx: write_event(tx, call, record_as, subject, target_id, error=error)
            )
        raise
