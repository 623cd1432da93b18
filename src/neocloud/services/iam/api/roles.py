"""The roles there are, for whoever is signed in: what a permit can give is no secret."""

from typing import Any

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.messages.neocloud.iam.v1 import GetRoleRequest, ListRolesRequest, ListRolesResponse, Role
from neocloud.messages.neocloud.iam.v1 import Role as RoleMessage
from neocloud.services.iam.api.pages import page
from neocloud.services.iam.rules.role_table import ROLES

SERVICE = "neocloud.iam.v1.RoleService"


def role_message(name: str) -> Any:
    role = RoleMessage(metadata={"id": name, "name": name})
    role.spec.description = ROLES[name].about
    role.spec.permissions.extend(ROLES[name].permissions)
    return role


async def get(call: Call, request: GetRoleRequest) -> Role:
    if request.id not in ROLES:
        raise contract.not_found("role", request.id)
    return role_message(request.id)


async def list_roles(call: Call, request: ListRolesRequest) -> ListRolesResponse:
    found, token = page(
        list(ROLES), request.page_size, request.page_token, scope="roles", key=lambda name: name
    )
    return ListRolesResponse(items=[role_message(name) for name in found], next_page_token=token)


METHODS = (
    Method(f"{SERVICE}/Get", get, permission=""),
    Method(f"{SERVICE}/List", list_roles, permission=""),
)
