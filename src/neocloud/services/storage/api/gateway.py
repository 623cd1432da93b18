"""The methods that the object gateway calls: who signs, what they may do, which buckets and transfers
there are, reports.

Each requires the key of the object gateway, and nothing else.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Protocol, TypeVar

from neocloud.core import contract, wire
from neocloud.core.resource_changes import ResourceChanges
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.data_plane.gateway_keys import ObjectGatewayKey
from neocloud.messages.nebius.storage.v1 import Bucket, TransferSpec
from neocloud.messages.neocloud.storage.v1 import (
    AuthenticateRequest,
    AuthenticateResponse,
    AuthorizeRequest,
    AuthorizeResponse,
    GatewayBucket,
    GatewayTransfer,
    IssueTokenRequest,
    IssueTokenResponse,
    KeyLimit,
    ListGatewayBucketsRequest,
    ListGatewayBucketsResponse,
    ListGatewayTransfersRequest,
    ListGatewayTransfersResponse,
    ReportBucketsRequest,
    ReportBucketsResponse,
    ReportTransfersRequest,
    ReportTransfersResponse,
    SignRequest,
    SignResponse,
)
from neocloud.services.iam.types import SignedRequests, TokenAuthenticator, tenant_of
from neocloud.services.storage.gateway_link import (
    AccessChanges,
    BucketBoard,
    BucketChanges,
    TransferBoard,
    TransferChanges,
)
from neocloud.services.storage.public import BucketSources
from neocloud.services.storage.report import note_scrub
from neocloud.services.storage.types import (
    BUCKET,
    PERMISSIONS,
    TRANSFER,
    mode_of,
    read_folder,
    read_run,
    write_iteration,
)

SERVICE = "neocloud.storage.v1.ObjectGatewayService"
LONGEST_WAIT_SECONDS = 60
VERSION_CHARS = 32
_SERVE = GatewayBucket.Mode.Value("SERVE")


class VersionedList(Protocol):
    """A response with a digest of its content, which the gateway shows in its next request."""

    version: str

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...


_List = TypeVar("_List", bound=VersionedList)


def require_object_gateway(call: Call) -> None:
    """Raise ApiError unless the call carries the key; the message is the same for every cause."""
    key = call.dependencies.provided.find(ObjectGatewayKey)
    if key is None or not key.is_shown(call.headers):
        raise contract.permission_denied("", "", "Only this cloud's object gateway may call this.")


async def sign(call: Call, request: SignRequest) -> SignResponse:
    """Return the signing key of a day. Raises ApiError (not found) for a key that must not be used."""
    require_object_gateway(call)
    requests = call.dependencies.provided.get(SignedRequests)
    found = await requests.signer(request.aws_access_key_id, request.day, request.region)
    if found is None:
        raise contract.not_found("access key", request.aws_access_key_id)
    answer = SignResponse(
        signing_key=found.signing_key,
        access_key_id=found.access_key_id,
        subject_id=found.subject.id,
        subject_name=found.subject.name,
        tenant_id=found.subject.tenant_id,
        project_id=found.project_id,
        group_ids=found.group_ids,
    )
    if found.expires_at is not None:
        answer.expires_at.CopyFrom(contract.timestamp(found.expires_at))
    if found.limit is not None:
        limit = found.limit
        answer.limit.CopyFrom(
            KeyLimit(
                bucket_id=limit.bucket_id,
                prefix=limit.prefix,
                writes=limit.writes,
                deletes=limit.deletes,
                project_id=limit.project_id,
            )
        )
    return answer


async def authenticate(call: Call, request: AuthenticateRequest) -> AuthenticateResponse:
    """Return the owner of a token. Raises ApiError (not found) for one that must not be used."""
    require_object_gateway(call)
    authenticator = call.dependencies.provided.get(TokenAuthenticator)
    try:
        subject = await authenticator.authenticate(request.token)
        proof = await authenticator.proof_of(request.token)
    except contract.ApiError as error:
        raise contract.not_found("token", "") from error
    return AuthenticateResponse(
        subject_id=subject.id, subject_name=subject.name, tenant_id=subject.tenant_id, proof=proof
    )


async def authorize(call: Call, request: AuthorizeRequest) -> AuthorizeResponse:
    require_object_gateway(call)
    provided = call.dependencies.provided
    requests = provided.get(SignedRequests)
    permissions = await _permissions_on(call, request.target_id)
    if not request.proof:
        found = await requests.rights(request.subject_id, permissions, request.target_id)
        return AuthorizeResponse(permissions=found)
    try:
        subject = await provided.get(TokenAuthenticator).authenticate_proof(request.proof)
    except contract.ApiError:
        return AuthorizeResponse()
    return AuthorizeResponse(permissions=await requests.rights_of(subject, permissions, request.target_id))


async def _permissions_on(call: Call, target_id: str) -> Sequence[str]:
    """Return the permissions that the gateway checks on a target."""
    row = await call.dependencies.store.read(lambda tx: tx.get(target_id))
    of_others = {source.kind: source.permissions for source in _sources(call)}
    return of_others.get(row.kind, PERMISSIONS) if row is not None else ()


def _sources(call: Call) -> BucketSources:
    return call.dependencies.provided.find(BucketSources) or BucketSources()


async def issue_token(call: Call, request: IssueTokenRequest) -> IssueTokenResponse:
    require_object_gateway(call)
    found = await call.dependencies.provided.get(SignedRequests).token(request.aws_access_key_id)
    if found is None:
        raise contract.not_found("access key", request.aws_access_key_id)
    token, expires_at = found
    return IssueTokenResponse(token=token, expires_at=contract.timestamp(expires_at))


async def list_buckets(call: Call, request: ListGatewayBucketsRequest) -> ListGatewayBucketsResponse:
    require_object_gateway(call)
    provided, store, clock = call.dependencies.provided, call.dependencies.store, call.dependencies.clock
    buckets, access = provided.get(BucketChanges), provided.get(AccessChanges)
    requests, sources = provided.get(SignedRequests), _sources(call)
    until = clock.monotonic() + min(max(request.wait_seconds, 0), LONGEST_WAIT_SECONDS)
    while True:
        changed, access_changed, access_version = buckets.listen(), access.listen(), access.version
        # As a write: changes that were announced until now are committed before its turn comes.
        answer = await store.write(lambda tx: read_buckets(tx, requests, sources))
        answer.access_version = access_version
        is_known = (answer.version, answer.access_version) == (request.version, request.access_version)
        remaining = until - clock.monotonic()
        if not is_known or remaining <= 0:
            return answer
        await buckets.wait_any((changed, access_changed), remaining)


def read_buckets(
    tx: Transaction, requests: SignedRequests, sources: BucketSources
) -> ListGatewayBucketsResponse:
    """Return all buckets, also of other services; the version is a digest of them."""
    answer = ListGatewayBucketsResponse()
    found = (_bucket(tx, row, requests) for row in all_rows(tx, BUCKET))
    answer.buckets.extend(each for each in found if _can_be_served(each))
    for source in sources:
        answer.buckets.extend(source.bucket(tx, row) for row in all_rows(tx, source.kind))
    return with_version(answer)


def _can_be_served(bucket: GatewayBucket) -> bool:
    """Return whether the gateway can do what is wanted: a filesystem has to be mounted for it first."""
    is_away = bucket.spec.HasField("filesystem_bucket") and not bucket.filesystem_folder
    return bucket.mode != _SERVE or not is_away


async def newer_list(
    call: Call,
    changes: ResourceChanges,
    version: str,
    wait_seconds: int,
    read: Callable[[Transaction], _List],
) -> _List:
    """Return the list once its version differs, or as it is after the wait."""
    store, clock = call.dependencies.store, call.dependencies.clock
    until = clock.monotonic() + min(max(wait_seconds, 0), LONGEST_WAIT_SECONDS)
    while True:
        changed = changes.listen()
        answer = await store.write(read)  # as a write: see list_buckets
        remaining = until - clock.monotonic()
        if answer.version != version or remaining <= 0:
            return answer
        await changes.wait(changed, remaining)


def with_version(answer: _List) -> _List:
    """Return the list with a digest of its content as its version."""
    content = answer.SerializeToString(deterministic=True)
    answer.version = sha256(content).hexdigest()[:VERSION_CHARS]
    return answer


def all_rows(tx: Transaction, kind: str) -> list[Resource]:
    return sorted(tx.list(kind)[0], key=lambda row: row.id)


def _bucket(tx: Transaction, row: Resource, requests: SignedRequests) -> GatewayBucket:
    bucket = wire.message(row, Bucket)
    found = GatewayBucket(
        id=row.id,
        name=row.name,
        project_id=row.parent_id,
        tenant_id=tenant_of(row.parent_id, tx.get) or "",
        generation=row.resource_version,
        mode=mode_of(row),
        created_at=contract.timestamp(row.created_at),
        spec=bucket.spec,
        labels=row.labels,
        filesystem_folder=read_folder(tx, row.id),
    )
    for rule in bucket.spec.bucket_policy.rules:
        found.policy.add(
            paths=rule.paths,
            permissions=_permissions(rule.roles, requests, is_anonymous=not rule.group_id),
            group_id=rule.group_id,
        )
    return found


def _permissions(roles: Sequence[str], requests: SignedRequests, *, is_anonymous: bool) -> list[str]:
    return [
        permission
        for permission in PERMISSIONS
        if any(requests.is_allowed(role, permission) for role in roles)
        and (not is_anonymous or permission.endswith((".get", ".list")))
    ]


async def report_buckets(call: Call, request: ReportBucketsRequest) -> ReportBucketsResponse:
    require_object_gateway(call)
    board = call.dependencies.provided.get(BucketBoard)
    scrub_before = board.scrub
    changed = board.report(request)
    if changed:
        await call.dependencies.store.write(lambda tx: _enqueue(tx, changed, call))
    if request.HasField("scrub") and request.scrub != scrub_before:
        await call.dependencies.store.write(lambda tx: note_scrub(tx, request.scrub))
    return ReportBucketsResponse()


def _enqueue(tx: Transaction, bucket_ids: set[str], call: Call) -> None:
    kinds = {BUCKET, *(source.kind for source in _sources(call))}
    for bucket_id in sorted(bucket_ids):
        row = tx.get(bucket_id)
        if row is not None and row.kind in kinds:
            tx.enqueue(bucket_id, call.dependencies.clock.now())


async def list_transfers(call: Call, request: ListGatewayTransfersRequest) -> ListGatewayTransfersResponse:
    require_object_gateway(call)
    changes = call.dependencies.provided.get(TransferChanges)
    return await newer_list(call, changes, request.version, request.wait_seconds, read_transfers)


def read_transfers(tx: Transaction) -> ListGatewayTransfersResponse:
    answer = ListGatewayTransfersResponse()
    answer.transfers.extend(_transfer(tx, row) for row in all_rows(tx, TRANSFER))
    return with_version(answer)


def _transfer(tx: Transaction, row: Resource) -> GatewayTransfer:
    run, mode = read_run(tx, row.id), GatewayTransfer.Mode
    wanted = "REMOVE" if row.deleted_at is not None else "STOP" if run.is_stopped else "RUN"
    spec = TransferSpec.FromString(row.spec)
    found = GatewayTransfer(
        id=row.id,
        generation=row.resource_version,
        mode=mode.Value(wanted),
        run=run.number,
        tenant_id=tenant_of(row.parent_id, tx.get) or "",
        source_secret=_secret(spec, "source"),
        destination_secret=_secret(spec, "destination"),
    )
    contract.clear_input_only(spec)
    found.spec.CopyFrom(spec)
    return found


def _secret(spec: TransferSpec, name: str) -> str:
    whole = spec.source if name == "source" else spec.destination
    provider = whole.nebius if whole.HasField("nebius") else whole.s3_compatible
    return provider.access_key.secret_access_key


def _is_transfer(row: Resource | None) -> bool:
    return row is not None and row.kind == TRANSFER


async def report_transfers(call: Call, request: ReportTransfersRequest) -> ReportTransfersResponse:
    require_object_gateway(call)
    board = call.dependencies.provided.get(TransferBoard)
    changed = board.report(request)

    def work(tx: Transaction) -> set[str]:
        """Return the ids that no longer belong to a transfer."""
        known = {each.id for each in request.transfers if _is_transfer(tx.get(each.id))}
        for each in request.transfers:
            for iteration in each.ended_iterations if each.id in known else ():
                write_iteration(tx, each.id, iteration)
        for transfer_id in sorted(changed & known):
            tx.enqueue(transfer_id, call.dependencies.clock.now())
        return {each.id for each in request.transfers} - known

    if changed or any(each.ended_iterations for each in request.transfers):
        board.forget(await call.dependencies.store.write(work))
    return ReportTransfersResponse()


METHODS = (
    Method(f"{SERVICE}/Sign", sign, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/Authenticate", authenticate, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/Authorize", authorize, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/IssueToken", issue_token, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ListBuckets", list_buckets, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ReportBuckets", report_buckets, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ListTransfers", list_transfers, None, is_internal=True, is_checked=False),
    Method(f"{SERVICE}/ReportTransfers", report_transfers, None, is_internal=True, is_checked=False),
)
"""Not validated by the server: a caller without the key does not learn whether a request was well formed."""
