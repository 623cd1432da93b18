"""The methods of the gateway process: admit a caller, list routes, report traffic, get keys for files.

Each requires the gateway's key, and nothing else.
"""

from datetime import UTC

from neocloud.core import contract, wire
from neocloud.core.readers import Subject
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Transaction
from neocloud.data_plane.gateway_keys import GatewayKey
from neocloud.data_plane.metrics_keys import MACHINE_PERMISSION
from neocloud.messages.neocloud.inference.v1 import (
    AdmitRequest,
    AdmitResponse,
    FileBucket,
    IssueFileKeyRequest,
    IssueFileKeyResponse,
    ListRoutesRequest,
    ListRoutesResponse,
    ReleaseReport,
    ReportReleaseResponse,
    ReportTrafficRequest,
    ReportTrafficResponse,
)
from neocloud.services.billing.types import TokenPrices, TokenTerms
from neocloud.services.iam.types import (
    CONTAINER,
    SERVICE_ACCOUNT,
    SignedRequests,
    TenantRights,
    TokenAuthenticator,
    is_project,
    operators_tenant_id,
)
from neocloud.services.inference.api.releases import apply_report
from neocloud.services.inference.api.routes import TermsOf, read_routes
from neocloud.services.inference.gateway_link import RouteChanges, TrafficBoard
from neocloud.services.inference.types import DEPLOYMENT, FILE_BUCKET, FILE_FOLDER, FILE_ID
from neocloud.services.storage.public import (
    AccessProblem,
    KeyUse,
    ObjectAccessError,
    ObjectKeys,
    ObjectLocation,
)

PERMISSIONS = (
    "inference.deployments.invoke",
    "inference.models.list",
    *(f"inference.files.{verb}" for verb in ("create", "get", "list", "delete")),
    *(f"inference.batches.{verb}" for verb in ("create", "get", "list", "cancel")),
    *(f"inference.vectorStores.{verb}" for verb in ("create", "get", "list", "update", "delete")),
    *(f"inference.responses.{verb}" for verb in ("get", "delete")),
    *(f"inference.feedback.{verb}" for verb in ("list", "delete")),
    *(f"tuning.fineTuningJobs.{verb}" for verb in ("create", "get", "list", "cancel", "delete")),
)
"""The permissions that the gateway checks."""


def require_gateway(call: Call) -> None:
    """Raise ApiError unless the call carries the gateway's key; the message is the same for every cause."""
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
    if request.token:
        answer.renew_until.FromDatetime(await authenticator.proof_holds_until(request.token))
    for each in await provided.get(TenantRights)(subject, PERMISSIONS):
        answer.grants.add(
            project_id=each.project_id, project_name=each.project_name, permissions=each.permissions
        )
    store = call.dependencies.store
    answer.home_project_id = await store.read(lambda tx: _home_project(tx, subject.id))
    answer.is_operator = await _is_operator(call, subject, await store.read(operators_tenant_id))
    return answer


async def _is_operator(call: Call, subject: Subject, operators_tenant: str) -> bool:
    """Return whether the subject may read the metrics of all tenants."""
    if not operators_tenant or subject.tenant_id != operators_tenant:
        return False
    rights_of = call.dependencies.provided.get(SignedRequests).rights_of
    return bool(await rights_of(subject, (MACHINE_PERMISSION,), operators_tenant))


def _home_project(tx: Transaction, subject_id: str) -> str:
    """Return the project of a service account; of the operator's, in the tenant, the oldest project."""
    row = tx.get(subject_id)
    if row is None or row.kind != SERVICE_ACCOUNT:
        return ""
    above = tx.get(row.parent_id)
    if above is None or is_project(above):
        return row.parent_id
    projects = [each for each in tx.list(CONTAINER, parent_id=above.id)[0] if each.deleted_at is None]
    return projects[0].id if projects else ""


SERVICE = "neocloud.inference.v1.GatewayService"
LONGEST_WAIT_SECONDS = 60


async def list_routes(call: Call, request: ListRoutesRequest) -> ListRoutesResponse:
    require_gateway(call)
    changes = call.dependencies.provided.get(RouteChanges)
    store, clock = call.dependencies.store, call.dependencies.clock
    terms = _terms_of(call)
    until = clock.monotonic() + min(max(request.wait_seconds, 0), LONGEST_WAIT_SECONDS)
    while True:
        changed = changes.listen()
        # As a write: changes that were announced until now are committed before its turn comes.
        answer = await store.write(lambda tx: read_routes(tx, terms))
        remaining = until - clock.monotonic()
        if answer.version != request.version or remaining <= 0:
            return answer
        await changes.wait(changed, remaining)


def _terms_of(call: Call) -> TermsOf:
    """Return the terms of today; without a price list nothing has a price."""
    prices = call.dependencies.provided.find(TokenPrices)
    today = call.dependencies.clock.now().astimezone(UTC).date()
    return lambda name: prices(name, today) if prices else TokenTerms()


async def report_traffic(call: Call, request: ReportTrafficRequest) -> ReportTrafficResponse:
    require_gateway(call)
    board = call.dependencies.provided.get(TrafficBoard)
    waiting = board.report(request.items)
    if waiting:
        await call.dependencies.store.write(lambda tx: _enqueue(tx, waiting, call))
    return ReportTrafficResponse()


async def report_release(call: Call, request: ReleaseReport) -> ReportReleaseResponse:
    require_gateway(call)
    now = call.dependencies.clock.now()
    await call.dependencies.store.write(lambda tx: apply_report(tx, request, now))
    return ReportReleaseResponse()


def _enqueue(tx: Transaction, deployment_ids: set[str], call: Call) -> None:
    """Enqueue the deployments; the worker runs them within a second."""
    for deployment_id in sorted(deployment_ids):
        row = tx.get(deployment_id)
        if row is not None and row.kind == DEPLOYMENT:
            tx.enqueue(deployment_id, call.dependencies.clock.now())


USES = {
    IssueFileKeyRequest.READ: KeyUse.READ,
    IssueFileKeyRequest.WRITE: KeyUse.WRITE,
    IssueFileKeyRequest.DELETE: KeyUse.DELETE,
}


async def issue_file_key(call: Call, request: IssueFileKeyRequest) -> IssueFileKeyResponse:
    """Return a key for the object of one file. The gateway gets no other keys: they are for the file buckets
    that projects have chosen, and each opens one object."""
    require_gateway(call)
    if not FILE_ID.fullmatch(request.file_id) or request.use not in USES:
        raise contract.bad_field("file_id", "must be the id of a file, with a use")
    found = await call.dependencies.store.read(lambda tx: _file_bucket(tx, request))
    if found is None:
        raise contract.not_found("file bucket of this project", request.bucket_id)
    place = ObjectLocation(found.spec.bucket, FILE_FOLDER + request.file_id)
    try:
        keys = call.dependencies.provided.get(ObjectKeys)
        key = await keys.key(found.metadata.id, place, USES[request.use])
    except ObjectAccessError as error:
        if error.problem is AccessProblem.MISSING:
            raise contract.not_found("bucket", found.spec.bucket) from error
        raise contract.unavailable(str(error)) from error
    return IssueFileKeyResponse(
        aws_access_key_id=key.aws_access_key_id,
        secret=key.secret,
        expires_at=contract.timestamp(key.expires_at),
        endpoint=key.endpoint,
        region=key.region,
        bucket=found.spec.bucket,
    )


def _file_bucket(tx: Transaction, request: IssueFileKeyRequest) -> FileBucket | None:
    for row in tx.list(FILE_BUCKET, parent_id=request.project_id)[0]:
        found = wire.message(row, FileBucket)
        if row.deleted_at is None and found.status.bucket_id == request.bucket_id:
            return found
    return None


METHODS = (
    Method(f"{SERVICE}/Admit", admit, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ListRoutes", list_routes, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ReportTraffic", report_traffic, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ReportRelease", report_release, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/IssueFileKey", issue_file_key, None, is_internal=True, is_checked=False),
)
"""Not validated by the server: a caller without the key does not learn whether a request was well formed."""
