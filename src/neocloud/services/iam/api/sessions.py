"""Which sessions there are, and ending them: one, all of somebody, all of one's own."""

from neocloud.core import contract, wire
from neocloud.core.service import Call, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import RevokeSessionRequest, RevokeSessionResponse
from neocloud.messages.neocloud.iam.v1 import (
    ListSessionsRequest,
    ListSessionsResponse,
    RevokeOneSessionRequest,
    RevokeOneSessionResponse,
)
from neocloud.services.iam.access import sessions
from neocloud.services.iam.access.authentication import REVOKED_BEFORE
from neocloud.services.iam.access.authorization import require
from neocloud.services.iam.access.tokens import find_signing_key, read_access_token
from neocloud.services.iam.api.pages import page
from neocloud.services.iam.types import SERVICE_ACCOUNT, SESSION, TENANT_USER_ACCOUNT

REVOKE, LIST = "iam.sessions.revoke", "iam.sessions.list"


async def list_sessions(call: Call, request: ListSessionsRequest) -> ListSessionsResponse:
    own_id = call.subject.id if call.subject else ""
    account_id = request.parent_id or own_id
    if account_id != own_id:
        await require(call, LIST, account_id, record_as="neocloud.iam.v1.SessionService/List")
    rows = await call.dependencies.store.read(lambda tx: sessions.sessions_of(tx, account_id))
    scope = f"sessionsOf/{account_id}"
    found, token = page(rows, request.page_size, request.page_token, scope=scope, key=lambda row: row.id)
    return ListSessionsResponse(items=[wire.resource_message(row) for row in found], next_page_token=token)


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
    """The published call: everything of one account."""
    own_id = call.subject.id if call.subject else ""
    which = request.WhichOneof("revoke")
    if which is None or (which == "all_my_active" and not request.all_my_active):
        raise contract.bad_request([], "Say whose sessions: an account's id, or all_my_active.")
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


async def proof_of(call: Call) -> str:
    """What the caller's access token stands on: for a user, the id of the present session."""
    token = call.headers.get("authorization", "").partition(" ")[2].strip()
    key = await call.dependencies.store.read(find_signing_key)
    return read_access_token(token, key).proof_id if key else ""


def _end_all(tx: Transaction, row: Resource, call: Call) -> None:
    if row.kind == SERVICE_ACCOUNT:
        now = call.dependencies.clock.now()
        tx.put_secret(row.id, REVOKED_BEFORE, now.isoformat().encode())
    else:
        sessions.close_all(tx, row.id)
