"""Who is in a group, and which groups somebody is in."""

from collections.abc import Sequence
from typing import Any

from neocloud.core import contract, wire
from neocloud.core.service import Call
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.services.iam.api.pages import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, page
from neocloud.services.iam.resources import GROUP, GROUP_MEMBERSHIP

ListGroupMembershipsResponse = contract.message("nebius.iam.v1.ListGroupMembershipsResponse")
ListMemberOfResponse = contract.message("nebius.iam.v1.ListMemberOfResponse")


async def list_members(call: Call, request: Any) -> Any:
    scope = f"{GROUP_MEMBERSHIP}/{request.parent_id}"
    wanted = Page(
        size=min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE),
        after=contract.page_after(request.page_token, scope),
    )
    rows, after = await call.dependencies.store.read(
        lambda tx: tx.list(GROUP_MEMBERSHIP, parent_id=request.parent_id, page=wanted)
    )
    return ListGroupMembershipsResponse(
        memberships=[wire.resource_message(row) for row in rows],
        next_page_token=contract.page_token(after, scope),
    )


async def list_member_of(call: Call, request: Any) -> Any:
    groups = await call.dependencies.store.read(lambda tx: groups_of(tx, request.subject_id))
    found, token = page(
        groups,
        request.page_size,
        request.page_token,
        scope=f"memberOf/{request.subject_id}",
        key=lambda row: row.id,
    )
    return ListMemberOfResponse(items=[wire.resource_message(row) for row in found], next_page_token=token)


def groups_of(tx: Transaction, subject_id: str) -> Sequence[Resource]:
    memberships = [row for row in tx.owned(subject_id) if row.kind == GROUP_MEMBERSHIP]
    rows = [tx.get(membership.parent_id) for membership in memberships]
    return [row for row in rows if row is not None and row.kind == GROUP]
