"""Invitations: an inactive account, and a code with which its person activates it once.

This cloud sends no mail. The inviter requests a code and passes it on. The account exists from the start, so
it can be added to groups before anybody has accepted. A code is stored as a hash, and a new code replaces it.
"""

import hashlib
import hmac
import secrets
from dataclasses import replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.service import Call, NewOperation, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.iam.v1 import (
    CreateInvitationRequest,
    Invitation,
    InvitationStatus,
    TenantUserAccountStatus,
    UserAttributes,
)
from neocloud.messages.neocloud.iam.v1 import (
    AcceptInvitationRequest,
    IssueInvitationCodeRequest,
    IssueInvitationCodeResponse,
    SignInResponse,
)
from neocloud.services.iam.access import sessions, users
from neocloud.services.iam.access.passwords import checker_of, put_password_hash
from neocloud.services.iam.api.sign_in import SERVICE, answer, start_session
from neocloud.services.iam.api.users import refuse_weak
from neocloud.services.iam.rules.people import InvitationState, invitation_lifetime, invitation_violations
from neocloud.services.iam.types import INVITATION, INVITATION_ID_PREFIX, IamState, is_tenant

_CODE = "code"
METHOD = "nebius.iam.v1.InvitationService/Create"


async def create(call: Call, request: CreateInvitationRequest) -> Write[Operation]:
    violations = list(invitation_violations(request))
    if violations:
        raise contract.bad_request(violations)
    now = call.dependencies.clock.now()

    def create_row(tx: Transaction) -> NewOperation:
        tenant = tx.get(request.metadata.parent_id)
        if tenant is None or not is_tenant(tenant):
            raise contract.bad_field("metadata.parent_id", "must be the id of a tenant")
        row = _insert(tx, request, now)
        return NewOperation(row, f"invitation {row.id}")

    return Write(create_row)


async def issue_code(call: Call, request: IssueInvitationCodeRequest) -> Write[IssueInvitationCodeResponse]:
    now = call.dependencies.clock.now()
    code = f"{request.id}.{secrets.token_urlsafe(32)}"

    def put(tx: Transaction) -> IssueInvitationCodeResponse:
        row = tx.get(request.id)
        if row is None or row.kind != INVITATION:
            raise contract.not_found("invitation", request.id)
        if not _is_open(row, now):
            raise contract.bad_state(
                row.id, "The invitation was accepted or has expired. Delete it and create another."
            )
        tx.put_secret(row.id, _CODE, _hash(code))
        left = _expires_at(row) - now
        return IssueInvitationCodeResponse(code=code, expires_in=int(left.total_seconds()))

    return Write(put)


async def accept(call: Call, request: AcceptInvitationRequest) -> SignInResponse:
    """Activate the account of a code, with the password that the holder of the code chooses."""
    store, now = call.dependencies.store, call.dependencies.clock.now()
    found = await store.read(lambda tx: _of_code(tx, request.code, now))
    if found is None:
        raise _no_invitation()
    email = await store.read(lambda tx: users.attributes_of(tx, _account_id(found)).email)
    refuse_weak(request.password, email)
    hashed = await checker_of(call.dependencies).hash(request.password)

    def take(tx: Transaction) -> sessions.OpenSession | contract.ApiError:
        row = _of_code(tx, request.code, now)
        account = tx.get(_account_id(row)) if row else None
        if row is None or account is None:
            return _no_invitation()
        account = _open_account(tx, account, request.name, now)
        put_password_hash(tx, account.id, hashed)
        _close(tx, row, now)
        return start_session(tx, call, account, "INVITATION", request.client, f"{SERVICE}/AcceptInvitation")

    return await answer(call, await store.write(take), has_password=True)


def _insert(tx: Transaction, request: CreateInvitationRequest, now: datetime) -> Resource:
    invitation = Invitation(spec=request.spec)
    row = Resource(
        id=contract.new_id(INVITATION_ID_PREFIX),
        kind=INVITATION,
        parent_id=request.metadata.parent_id,
        name="",
        created_at=now,
        updated_at=now,
        labels=dict(request.metadata.labels),
        spec=invitation.spec.SerializeToString(),
        state=IamState.PENDING,
    )
    tx.insert(row)
    attributes = UserAttributes(email=users.normal_address(request.spec.email))
    account = users.add_user(tx, row.parent_id, attributes, now, invitation_id=row.id)
    status = InvitationStatus(
        tenant_user_account_id=account.id,
        expires_at=now + invitation_lifetime(request),
        state=InvitationState.Value(IamState.PENDING),
    )
    row = replace(row, status=status.SerializeToString())
    tx.update(row)
    return row


def _open_account(tx: Transaction, account: Resource, name: str, now: datetime) -> Resource:
    """Activate the account. The invitation no longer owns it: deleting the invitation leaves it as it is."""
    status = TenantUserAccountStatus.FromString(account.status)
    status.state = users.AccountState.Value(IamState.ACTIVE)
    status.user_account_state = users.UserState.Value(IamState.ACTIVE)
    opened = replace(
        account, status=status.SerializeToString(), state=IamState.ACTIVE, owner_id="", updated_at=now
    )
    tx.update(opened)
    if name:
        attributes = users.attributes_of(tx, account.id)
        attributes.name = name
        users.put_attributes(tx, account.id, attributes)
    return opened


def _close(tx: Transaction, row: Resource, now: datetime) -> None:
    status = InvitationStatus.FromString(row.status)
    status.state = InvitationState.Value(IamState.ACCEPTED)
    tx.update(replace(row, status=status.SerializeToString(), state=IamState.ACCEPTED, updated_at=now))


def _of_code(tx: Transaction, code: str, now: datetime) -> Resource | None:
    row = tx.get(code.partition(".")[0])
    if row is None or row.kind != INVITATION or not _is_open(row, now):
        return None
    known = tx.secret(row.id, _CODE)
    return row if known is not None and hmac.compare_digest(known, _hash(code)) else None


def _is_open(row: Resource, now: datetime) -> bool:
    return row.state == IamState.PENDING and now < _expires_at(row)


def _expires_at(row: Resource) -> datetime:
    return contract.to_datetime(InvitationStatus.FromString(row.status).expires_at)


def _account_id(row: Resource) -> str:
    return InvitationStatus.FromString(row.status).tenant_user_account_id


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()


def _no_invitation() -> contract.ApiError:
    return contract.unauthenticated(
        "This invitation was used or replaced, or has expired. Ask an admin of the tenant for a new one."
    )
