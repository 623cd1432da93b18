"""Members of groups, with their attributes, the groups of an account, and the roles that a permit can
give.
"""

from collections.abc import Sequence

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.messages.nebius.iam.v1 import (
    GetGroupMembershipRequest,
    Group,
    GroupMemberKind,
    GroupMembership,
    GroupMembershipWithAttributes,
    ListGroupMembershipsRequest,
    ListGroupMembershipsResponse,
    ListGroupMembershipsWithAttributesResponse,
    ListMemberOfRequest,
    ListMemberOfResponse,
    ServiceAccount,
)
from neocloud.messages.neocloud.iam.v1 import GetRoleRequest, ListRolesRequest, ListRolesResponse, Role
from neocloud.services.iam.access.users import attributes_of
from neocloud.services.iam.api.keys import by_id
from neocloud.services.iam.rules.accounts import view_group, view_membership
from neocloud.services.iam.rules.roles import ROLES
from neocloud.services.iam.types import GROUP, GROUP_MEMBERSHIP, SERVICE_ACCOUNT, IamState

SERVICE = "nebius.iam.v1.GroupMembershipService"
MemberKind = GroupMemberKind.Kind


async def list_members(call: Call, request: ListGroupMembershipsRequest) -> ListGroupMembershipsResponse:
    def find(tx: Transaction) -> ListGroupMembershipsResponse:
        rows, token = _members(tx, request)
        return ListGroupMembershipsResponse(
            memberships=[_membership(tx, call, row) for row in rows], next_page_token=token
        )

    return await call.dependencies.store.read(find)


async def list_members_with_attributes(
    call: Call, request: ListGroupMembershipsRequest
) -> ListGroupMembershipsWithAttributesResponse:
    def find(tx: Transaction) -> ListGroupMembershipsWithAttributesResponse:
        rows, token = _members(tx, request)
        return ListGroupMembershipsWithAttributesResponse(
            memberships=[_with_attributes(tx, call, row) for row in rows], next_page_token=token
        )

    return await call.dependencies.store.read(find)


async def get_with_attributes(
    call: Call, request: GetGroupMembershipRequest
) -> GroupMembershipWithAttributes:
    def find(tx: Transaction) -> GroupMembershipWithAttributes:
        row = tx.get(request.id)
        if row is None or row.kind != GROUP_MEMBERSHIP:
            raise contract.not_found("group membership", request.id)
        return _with_attributes(tx, call, row)

    return await call.dependencies.store.read(find)


async def list_member_of(call: Call, request: ListMemberOfRequest) -> ListMemberOfResponse:
    _refuse_filter(request)

    def find(tx: Transaction) -> ListMemberOfResponse:
        found, token = contract.page(
            groups_of(tx, request.subject_id),
            request,
            scope=f"memberOf/{request.subject_id}",
            key=lambda row: row.id,
        )
        items = [wire.message(row, Group) for row in found]
        for item in items:
            view_group(item, tx, call.dependencies.clock.now())
        return ListMemberOfResponse(items=items, next_page_token=token)

    return await call.dependencies.store.read(find)


def groups_of(tx: Transaction, subject_id: str) -> Sequence[Resource]:
    memberships = [row for row in tx.owned(subject_id) if row.kind == GROUP_MEMBERSHIP]
    rows = [tx.get(membership.parent_id) for membership in memberships]
    return [row for row in rows if row is not None and row.kind == GROUP]


def _members(tx: Transaction, request: ListGroupMembershipsRequest) -> tuple[Sequence[Resource], str]:
    _refuse_filter(request)
    scope = f"{GROUP_MEMBERSHIP}/{request.parent_id}"
    wanted = Page(
        size=contract.page_size(request, default=contract.DEFAULT_PAGE_SIZE, most=contract.MAX_PAGE_SIZE),
        after=contract.page_after(request.page_token, scope, numbers=1),
    )
    rows, after = tx.list(GROUP_MEMBERSHIP, parent_id=request.parent_id, page=wanted)
    return rows, contract.page_token(after, scope)


def _refuse_filter(request: ListGroupMembershipsRequest | ListMemberOfRequest) -> None:
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud; leave it unset")


def _membership(tx: Transaction, call: Call, row: Resource) -> GroupMembership:
    message = wire.message(row, GroupMembership)
    view_membership(message, tx, call.dependencies.clock.now())
    return message


def _with_attributes(tx: Transaction, call: Call, row: Resource) -> GroupMembershipWithAttributes:
    membership = _membership(tx, call, row)
    answer = GroupMembershipWithAttributes(group_membership=membership)
    member = tx.get(membership.spec.member_id)
    if member is None:
        answer.error.message = f"{membership.spec.member_id} does not exist any more."
    elif member.kind == SERVICE_ACCOUNT:
        answer.group_member_kind.kind = MemberKind.Value("SERVICE_ACCOUNT")
        answer.service_account_attributes.name = member.name
        answer.service_account_attributes.description = wire.message(member, ServiceAccount).spec.description
    else:
        is_invited = member.state == IamState.INACTIVE
        kind = "INVITED_TENANT_USER_ACCOUNT" if is_invited else "ORDINARY_TENANT_USER_ACCOUNT"
        answer.group_member_kind.kind = MemberKind.Value(kind)
        answer.user_attributes.CopyFrom(attributes_of(tx, member.id))
    return answer


ROLES_SERVICE = "neocloud.iam.v1.RoleService"


def role_message(name: str) -> Role:
    role = Role(metadata={"id": name, "name": name})
    role.spec.description = ROLES[name].about
    role.spec.permissions.extend(ROLES[name].permissions)
    return role


async def get_role(call: Call, request: GetRoleRequest) -> Role:
    if request.id not in ROLES:
        raise contract.not_found("role", request.id)
    return role_message(request.id)


async def list_roles(call: Call, request: ListRolesRequest) -> ListRolesResponse:
    found, token = contract.page(list(ROLES), request, scope="roles", key=lambda name: name)
    return ListRolesResponse(items=[role_message(name) for name in found], next_page_token=token)


METHODS = (
    Method(
        f"{SERVICE}/ListMembers",
        list_members,
        "iam.groupMemberships.list",
        target=lambda request: request.parent_id,
    ),
    Method(
        f"{SERVICE}/ListMembersWithAttributes",
        list_members_with_attributes,
        "iam.groupMemberships.list",
        target=lambda request: request.parent_id,
    ),
    Method(f"{SERVICE}/GetWithAttributes", get_with_attributes, "iam.groupMemberships.get", target=by_id),
    Method(
        f"{SERVICE}/ListMemberOf",
        list_member_of,
        "iam.groupMemberships.list",
        target=lambda request: request.subject_id,
    ),
    Method(f"{ROLES_SERVICE}/Get", get_role, permission=""),
    Method(f"{ROLES_SERVICE}/List", list_roles, permission=""),
)
