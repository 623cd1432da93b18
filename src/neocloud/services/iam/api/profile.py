"""The caller's own account, and sessions: list them, end one, end all of an account."""

from neocloud.core import contract, wire
from neocloud.core.service import Call, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import (
    GetProfileRequest,
    GetProfileResponse,
    RevokeSessionRequest,
    RevokeSessionResponse,
    ServiceAccount,
    TenantUserAccountStatus,
    UserProfile,
)
from neocloud.messages.neocloud.iam.v1 import (
    ListSessionsRequest,
    ListSessionsResponse,
    RevokeOneSessionRequest,
    RevokeOneSessionResponse,
    Session,
)
from neocloud.services.iam.access import sessions
from neocloud.services.iam.access.authentication import REVOKED_BEFORE
from neocloud.services.iam.access.authorization import require
from neocloud.services.iam.access.tokens import find_signing_key, read_access_token
from neocloud.services.iam.access.users import attributes_of
from neocloud.services.iam.types import SERVICE_ACCOUNT, SESSION, TENANT_USER_ACCOUNT


async def get(call: Call, request: GetProfileRequest) -> GetProfileResponse:
    subject_id = call.subject.id if call.subject else ""
    return await call.dependencies.store.read(lambda tx: _profile(tx, subject_id))


def _profile(tx: Transaction, subject_id: str) -> GetProfileResponse:
    row = tx.get(subject_id)
    if row is None:
        raise contract.not_found("account", subject_id)
    profile = GetProfileResponse()
    if row.kind == TENANT_USER_ACCOUNT:
        _fill_user(tx, row, profile.user_profile)
    else:
        profile.service_account_profile.info.CopyFrom(wire.message(row, ServiceAccount))
    return profile


def _fill_user(tx: Transaction, row: Resource, profile: UserProfile) -> None:
    """Fill in the profile of a user. In this cloud an account belongs to one tenant, so user and account are
    the same."""
    status, attributes = TenantUserAccountStatus.FromString(row.status), attributes_of(tx, row.id)
    profile.id = row.id
    profile.attributes.CopyFrom(attributes)
    profile.user_account_state = status.user_account_state
    profile.tenants.add(
        tenant_id=row.parent_id, tenant_user_account_id=row.id, tenant_user_account_state=status.state
    )
    if status.federation_id:
        profile.federation_info.federation_id = status.federation_id
        profile.federation_info.federation_user_account_id = attributes.sub


REVOKE, LIST = "iam.sessions.revoke", "iam.sessions.list"


async def list_sessions(call: Call, request: ListSessionsRequest) -> ListSessionsResponse:
    own_id = call.subject.id if call.subject else ""
    account_id = request.parent_id or own_id
    if account_id != own_id:
        await require(call, LIST, account_id, record_as="neocloud.iam.v1.SessionService/List")
    rows = await call.dependencies.store.read(lambda tx: sessions.sessions_of(tx, account_id))
    scope = f"sessionsOf/{account_id}"
    found, token = contract.page(rows, request, scope=scope, key=lambda row: row.id)
    return ListSessionsResponse(items=[wire.message(row, Session) for row in found], next_page_token=token)


async def revoke_one(call: Call, request: RevokeOneSessionRequest) -> Write[RevokeOneSessionResponse]:
    row = await call.dependencies.store.read(lambda tx: tx.get(request.id))
    if row is None or row.parent_id != (call.subject.id if call.subject else ""):
        await require(call, REVOKE, request.id)

    def close(tx: Transaction) -> RevokeOneSessionResponse:
        found = tx.get(request.id)
        if found is None or found.kind != SESSION:
            raise contract.not_found("session", request.id)
        tx.delete(found.id)
        return RevokeOneSessionResponse()

    return Write(close)


async def revoke(call: Call, request: RevokeSessionRequest) -> Write[RevokeSessionResponse]:
    """End all sessions of an account, or make the tokens of a service account invalid."""
    own_id = call.subject.id if call.subject else ""
    which = request.WhichOneof("revoke")
    if which is None or (which == "all_my_active" and not request.all_my_active):
        raise contract.bad_request([], "Give the id of an account, or set all_my_active.")
    account_id = own_id if which == "all_my_active" else getattr(request, which)
    if which != "all_my_active":
        await require(call, REVOKE, account_id)
    wanted = {"service_account_id": SERVICE_ACCOUNT, "tenant_user_account_id": TENANT_USER_ACCOUNT}.get(which)

    def close(tx: Transaction) -> RevokeSessionResponse:
        row = tx.get(account_id)
        if row is None or (wanted and row.kind != wanted):
            raise contract.not_found("account", account_id)
        _end_all(tx, row, call)
        return RevokeSessionResponse()

    return Write(close)


async def own_credential_id(call: Call) -> str:
    """Return the id of the credential behind the caller's access token: for a user, the current session."""
    token = call.headers.get("authorization", "").partition(" ")[2].strip()
    key = await call.dependencies.store.read(find_signing_key)
    return read_access_token(token, key).credential_id if key else ""


def _end_all(tx: Transaction, row: Resource, call: Call) -> None:
    if row.kind == SERVICE_ACCOUNT:
        now = call.dependencies.clock.now()
        tx.put_secret(row.id, REVOKED_BEFORE, now.isoformat().encode())
        tx.update(row)  # tells the object gateway, which remembers keys that were issued to its tokens
    else:
        sessions.close_all(tx, row.id)
