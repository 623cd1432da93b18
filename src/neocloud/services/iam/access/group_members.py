"""The people in groups, for services that give each of them an account of their own."""

from collections.abc import Sequence

from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.access.users import is_usable, name_of, ssh_keys_of
from neocloud.services.iam.rules.grants import member_id
from neocloud.services.iam.types import GROUP, GROUP_MEMBERSHIP, GroupMembers, Member, tenant_of


def group_members(store: Store) -> GroupMembers:
    async def members(project_id: str, group_ids: Sequence[str]) -> Sequence[Member]:
        return await store.read(lambda tx: _members(tx, project_id, group_ids))

    return members


def _members(tx: Transaction, project_id: str, group_ids: Sequence[str]) -> list[Member]:
    tenant_id = tenant_of(project_id, tx.get)
    account_ids: set[str] = set()
    for group_id in group_ids:
        group = tx.get(group_id)
        if group is None or group.kind != GROUP or group.deleted_at or group.parent_id != tenant_id:
            continue
        memberships, _ = tx.list(GROUP_MEMBERSHIP, parent_id=group_id)
        account_ids.update(member_id(row) for row in memberships if row.deleted_at is None)
    accounts = [row for row in map(tx.get, account_ids) if row is not None and is_usable(tx, row)]
    accounts.sort(key=lambda row: (row.created_at, row.id))
    return [Member(row.id, name_of(tx, row), tuple(ssh_keys_of(tx, row.id))) for row in accounts]
