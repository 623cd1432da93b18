"""Temporary keys for S3: the signed-in account gets one for itself."""

from datetime import timedelta

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.storage.v1 import IssueTemporaryKeyRequest, TemporaryKey
from neocloud.services.iam.types import SignedRequests
from neocloud.services.storage.gateway_link import BucketBoard

SERVICE = "neocloud.storage.v1.TemporaryKeyService"
DEFAULT_LIFETIME = timedelta(hours=1)


async def issue(call: Call, request: IssueTemporaryKeyRequest) -> TemporaryKey:
    """Return a key that acts as the caller. It grants nothing that the caller's token does not."""
    provided = call.dependencies.provided
    token = call.headers.get("authorization", "").partition(" ")[2].strip()
    lifetime = request.lifetime.ToTimedelta() if request.HasField("lifetime") else DEFAULT_LIFETIME
    found = await provided.get(SignedRequests).issue(token, request.parent_id, lifetime)
    board = provided.get(BucketBoard)
    return TemporaryKey(
        aws_access_key_id=found.aws_access_key_id,
        secret=found.secret,
        expires_at=contract.timestamp(found.expires_at),
        endpoint=board.endpoint,
        tls_port=board.tls_port,
        region=call.dependencies.settings.region,
    )


METHODS = (Method(f"{SERVICE}/Issue", issue, permission=""),)
"""The methods, open to any signed-in account: what a key may do is decided where it is used."""
