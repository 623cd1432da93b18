"""Whether a call is the gateway's, and what it is told of those who call it."""

from neocloud.core import contract
from neocloud.core.gateway_key import GatewayKey
from neocloud.core.service import Call
from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.inference.v1 import AdmitRequest, AdmitResponse
from neocloud.services.iam.public import TenantRights, TokenAuthenticator
from neocloud.services.iam.types import CONTAINER, SERVICE_ACCOUNT, is_project

PERMISSIONS = (
    "inference.deployments.invoke",
    "inference.models.list",
    *(f"inference.files.{verb}" for verb in ("create", "get", "list", "delete")),
    *(f"inference.batches.{verb}" for verb in ("create", "get", "list", "cancel")),
    *(f"tuning.fineTuningJobs.{verb}" for verb in ("create", "get", "list", "cancel", "delete")),
)
"""What the gateway decides by."""


def require_gateway(call: Call) -> None:
    """Raises ApiError unless the call carries the gateway's key, in the same words whatever it is."""
    key = call.dependencies.provided.find(GatewayKey)
    if key is None or not key.is_shown(call.headers):
        raise contract.permission_denied("", "", "Only this cloud's gateway may call this.")


async def admit(call: Call, request: AdmitRequest) -> AdmitResponse:
    """Return the subject of a token or earlier proof, and its rights. Raises ApiError (unauthenticated)."""
    require_gateway(call)
    provided = call.dependencies.provided
    authenticator = provided.get(TokenAuthenticator)
    if request.proof and not request.token:
        subject, proof = await authenticator.authenticate_proof(request.proof), request.proof
    else:
        subject = await authenticator.authenticate(request.token)
        proof = await authenticator.proof_of(request.token)
    answer = AdmitResponse(
        subject_id=subject.id, subject_name=subject.name, tenant_id=subject.tenant_id, proof=proof
    )
    for each in await provided.get(TenantRights)(subject, PERMISSIONS):
        answer.grants.add(
            project_id=each.project_id, project_name=each.project_name, permissions=each.permissions
        )
    answer.home_project_id = await call.dependencies.store.read(lambda tx: _home_project(tx, subject.id))
    return answer


def _home_project(tx: Transaction, subject_id: str) -> str:
    """Where a service account lies; the oldest project for the operator's, which lies in the tenant."""
    row = tx.get(subject_id)
    if row is None or row.kind != SERVICE_ACCOUNT:
        return ""
    above = tx.get(row.parent_id)
    if above is None or is_project(above):
        return row.parent_id
    projects = [each for each in tx.list(CONTAINER, parent_id=above.id)[0] if each.deleted_at is None]
    return projects[0].id if projects else ""
