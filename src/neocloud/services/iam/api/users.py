"""Local users: creation and deletion by admins, passwords, second factors, blocking, attributes."""

from dataclasses import replace

from pyotp import random_base32
from pyotp.totp import TOTP

from neocloud.core import contract, wire
from neocloud.core.kind import Violation
from neocloud.core.service import Call, NewOperation, Write
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.iam.v1 import (
    BlockTenantUserAccountRequest,
    GetTenantUserAccountWithAttributesRequest,
    ListTenantUserAccountsWithAttributesRequest,
    ListTenantUserAccountsWithAttributesResponse,
    TenantUserAccount,
    TenantUserAccountStatus,
    TenantUserAccountWithAttributes,
    UnblockTenantUserAccountRequest,
    UserAttributes,
)
from neocloud.messages.neocloud.iam.v1 import (
    ChangePasswordRequest,
    ChangePasswordResponse,
    ConfirmTotpRequest,
    ConfirmTotpResponse,
    CreateUserRequest,
    CreateUserResponse,
    DeleteUserRequest,
    DeleteUserResponse,
    RemoveTotpRequest,
    RemoveTotpResponse,
    SetPasswordRequest,
    SetPasswordResponse,
    StartTotpRequest,
    StartTotpResponse,
)
from neocloud.services.iam.access import sessions, users
from neocloud.services.iam.access.passwords import (
    checker_of,
    clear_address_attempts,
    clear_attempts,
    generate_password,
    has_second_factor,
    password_hash,
    propose_second_factor,
    put_password_hash,
    remove_second_factor,
    use_code,
)
from neocloud.services.iam.api.profile import own_credential_id
from neocloud.services.iam.api.sign_in import count_or_refuse
from neocloud.services.iam.rules.people import of_account, password_violations
from neocloud.services.iam.types import TENANT_USER_ACCOUNT, IamState, is_tenant

ACCOUNTS = "nebius.iam.v1.TenantUserAccountService"


async def create(call: Call, request: CreateUserRequest) -> Write[CreateUserResponse]:
    password = request.password or generate_password()
    refuse_weak(password, request.email)
    hashed = await checker_of(call.dependencies).hash(password)
    now = call.dependencies.clock.now()
    attributes = UserAttributes(email=users.normal_address(request.email), name=request.name)

    def create_account(tx: Transaction) -> CreateUserResponse:
        tenant = tx.get(request.parent_id)
        if tenant is None or not is_tenant(tenant):
            raise contract.bad_field("parent_id", "must be the id of a tenant")
        row = users.add_user(tx, tenant.id, attributes, now)
        put_password_hash(tx, row.id, hashed)
        shown = "" if request.password else password
        return CreateUserResponse(tenant_user_account_id=row.id, generated_password=shown)

    return Write(create_account)


async def delete(call: Call, request: DeleteUserRequest) -> Write[DeleteUserResponse]:
    def delete_account(tx: Transaction) -> DeleteUserResponse:
        row = account(tx, request.id)
        if row.state == IamState.INACTIVE:
            raise contract.bad_state(
                row.id, "The invitation of the account is not accepted yet. Delete the invitation instead."
            )
        users.remove(tx, row.id)
        return DeleteUserResponse()

    return Write(delete_account)


async def set_password(call: Call, request: SetPasswordRequest) -> Write[SetPasswordResponse]:
    email = await call.dependencies.store.read(lambda tx: _local_address(tx, request.id))
    password = request.password or generate_password()
    refuse_weak(password, email)
    hashed = await checker_of(call.dependencies).hash(password)

    def change(tx: Transaction) -> SetPasswordResponse:
        put_password_hash(tx, account(tx, request.id).id, hashed)
        sessions.close_all(tx, request.id)
        clear_address_attempts(tx, email)
        clear_attempts(tx, (of_account(request.id),))
        return SetPasswordResponse(generated_password="" if request.password else password)

    return Write(change)


async def change_password(call: Call, request: ChangePasswordRequest) -> Write[ChangePasswordResponse]:
    account_id, email = await _check_password(call, request.current_password, "current_password")
    refuse_weak(request.new_password, email, "new_password")
    hashed = await checker_of(call.dependencies).hash(request.new_password)
    credential_id = await own_credential_id(call)

    def change(tx: Transaction) -> ChangePasswordResponse:
        put_password_hash(tx, account_id, hashed)
        sessions.close_all(tx, account_id, except_id=credential_id)
        return ChangePasswordResponse()

    return Write(change)


async def start_totp(call: Call, request: StartTotpRequest) -> Write[StartTotpResponse]:
    account_id, email = await _check_password(call, request.current_password, "current_password")
    secret = random_base32()

    def propose(tx: Transaction) -> StartTotpResponse:
        if has_second_factor(tx, account_id):
            raise contract.bad_state(
                account_id, "The account has a second factor already. Ask an admin to remove it."
            )
        propose_second_factor(tx, account_id, secret)
        uri = TOTP(secret).provisioning_uri(name=email, issuer_name="Neocloud")
        return StartTotpResponse(secret=secret, uri=uri)

    return Write(propose)


async def confirm_totp(call: Call, request: ConfirmTotpRequest) -> Write[ConfirmTotpResponse]:
    account_id = _own_id(call)
    now = call.dependencies.clock.now()
    await call.dependencies.store.read(lambda tx: _local_address(tx, account_id))
    await count_or_refuse(call, (of_account(account_id),))

    def confirm(tx: Transaction) -> ConfirmTotpResponse:
        if not use_code(tx, account_id, request.totp_code, now, confirm=True):
            raise contract.bad_field(
                "totp_code", "is not the current code of the app. Check the clock of the phone"
            )
        clear_attempts(tx, (of_account(account_id),))
        return ConfirmTotpResponse()

    return Write(confirm)


async def remove_totp(call: Call, request: RemoveTotpRequest) -> Write[RemoveTotpResponse]:
    def remove(tx: Transaction) -> RemoveTotpResponse:
        remove_second_factor(tx, account(tx, request.id).id)
        return RemoveTotpResponse()

    return Write(remove)


async def block(call: Call, request: BlockTenantUserAccountRequest) -> Write[Operation]:
    return await _set_state(call, request, IamState.BLOCKED)


async def unblock(call: Call, request: UnblockTenantUserAccountRequest) -> Write[Operation]:
    return await _set_state(call, request, IamState.ACTIVE)


async def get_with_attributes(
    call: Call, request: GetTenantUserAccountWithAttributesRequest
) -> TenantUserAccountWithAttributes:
    return await call.dependencies.store.read(lambda tx: _with_attributes(tx, account(tx, request.id)))


async def list_with_attributes(
    call: Call, request: ListTenantUserAccountsWithAttributesRequest
) -> ListTenantUserAccountsWithAttributesResponse:
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")

    def read(tx: Transaction) -> ListTenantUserAccountsWithAttributesResponse:
        scope = f"usersOf/{request.parent_id}"
        wanted = Page(
            size=contract.page_size(request, default=contract.DEFAULT_PAGE_SIZE, most=contract.MAX_PAGE_SIZE),
            after=contract.page_after(request.page_token, scope, numbers=1),
        )
        rows, after = tx.list(TENANT_USER_ACCOUNT, parent_id=request.parent_id, page=wanted)
        items = [_with_attributes(tx, row) for row in rows]
        return ListTenantUserAccountsWithAttributesResponse(
            items=items, next_page_token=contract.page_token(after, scope)
        )

    return await call.dependencies.store.read(read)


def account(tx: Transaction, account_id: str) -> Resource:
    """Return the row of a user account. Raises ApiError (not found)."""
    row = tx.get(account_id)
    if row is None or row.kind != TENANT_USER_ACCOUNT:
        raise contract.not_found("user account", account_id)
    return row


def refuse_weak(password: str, email: str, field: str = "password") -> None:
    violations: list[Violation] = list(password_violations(password, email, field))
    if violations:
        raise contract.bad_request(violations)


async def _set_state(
    call: Call,
    request: BlockTenantUserAccountRequest | UnblockTenantUserAccountRequest,
    state: IamState,
) -> Write[Operation]:
    def change(tx: Transaction) -> NewOperation:
        row = account(tx, request.id)
        if row.state == IamState.INACTIVE:
            raise contract.bad_state(
                row.id, "The invitation of the account is not accepted yet. Delete the invitation instead."
            )
        status = TenantUserAccountStatus.FromString(row.status)
        status.state = users.AccountState.Value(state)
        now = call.dependencies.clock.now()
        changed = replace(row, status=status.SerializeToString(), state=state, updated_at=now)
        tx.update(changed)
        if state == IamState.BLOCKED:
            sessions.close_all(tx, row.id)
        return NewOperation(changed, f"user account {row.id}")

    return Write(change)


async def _check_password(call: Call, password: str, field: str) -> tuple[str, str]:
    """Check the password of the caller, and return the id and address of their account. A change of the means
    of signing in requires this, because an access token may be stolen."""
    account_id, store = _own_id(call), call.dependencies.store
    email = await store.read(lambda tx: _local_address(tx, account_id))
    counted = (of_account(account_id),)
    hashed = await store.read(lambda tx: password_hash(tx, account_id))
    checker = checker_of(call.dependencies)
    if not await checker.matches(password, hashed, first=lambda: count_or_refuse(call, counted)):
        raise contract.bad_field(field, "is not the password of the account")
    await store.write(lambda tx: clear_attempts(tx, counted))
    return account_id, email


def _own_id(call: Call) -> str:
    if call.subject is None or call.subject.kind != "user":
        raise contract.ApiError(
            contract.Code.FAILED_PRECONDITION, "Only people have passwords. Sign in as a user: neo login"
        )
    return call.subject.id


def _local_address(tx: Transaction, account_id: str) -> str:
    row = account(tx, account_id)
    if TenantUserAccountStatus.FromString(row.status).federation_id:
        raise contract.bad_state(row.id, "This user signs in by a federation and has no password here.")
    return users.attributes_of(tx, account_id).email


def _with_attributes(tx: Transaction, row: Resource) -> TenantUserAccountWithAttributes:
    found = TenantUserAccountWithAttributes(tenant_user_account=wire.message(row, TenantUserAccount))
    found.attributes.CopyFrom(users.attributes_of(tx, row.id))
    return found
