"""The caller's own account, and the roles that a permit can give. Any signed-in subject may read both."""

from typing import Any

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import GetProfileRequest, GetProfileResponse, TenantUserAccountStatus
from neocloud.messages.neocloud.iam.v1 import GetRoleRequest, ListRolesRequest, ListRolesResponse, Role
from neocloud.messages.neocloud.iam.v1 import Role as RoleMessage
from neocloud.services.iam.access.users import attributes_of
from neocloud.services.iam.api.pages import page
from neocloud.services.iam.rules.role_table import ROLES
from neocloud.services.iam.types import TENANT_USER_ACCOUNT


async def get(call: Call, request: GetProfileRequest) -> GetProfileResponse:
    subject_id = call.subject.id if call.subject else ""
    return await call.dependencies.store.read(lambda tx: _profile(tx, subject_id))


def _profile(tx: Transaction, subject_id: str) -> Any:
    row = tx.get(subject_id)
    if row is None:
        raise contract.not_found("account", subject_id)
    profile = GetProfileResponse()
    if row.kind == TENANT_USER_ACCOUNT:
        _fill_user(tx, row, profile.user_profile)
    else:
        profile.service_account_profile.info.CopyFrom(wire.resource_message(row))
    return profile


def _fill_user(tx: Transaction, row: Resource, profile: Any) -> None:
    """An account belongs to one tenant here, so the user and the account are the same."""
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


ROLES_SERVICE = "neocloud.iam.v1.RoleService"


def role_message(name: str) -> Any:
    role = RoleMessage(metadata={"id": name, "name": name})
    role.spec.description = ROLES[name].about
    role.spec.permissions.extend(ROLES[name].permissions)
    return role


async def get_role(call: Call, request: GetRoleRequest) -> Role:
    if request.id not in ROLES:
        raise contract.not_found("role", request.id)
    return role_message(request.id)


async def list_roles(call: Call, request: ListRolesRequest) -> ListRolesResponse:
    found, token = page(
        list(ROLES), request.page_size, request.page_token, scope="roles", key=lambda name: name
    )
    return ListRolesResponse(items=[role_message(name) for name in found], next_page_token=token)


METHODS = (
    Method(f"{ROLES_SERVICE}/Get", get_role, permission=""),
    Method(f"{ROLES_SERVICE}/List", list_roles, permission=""),
)
