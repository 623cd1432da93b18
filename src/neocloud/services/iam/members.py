"""What follows from other rows about groups and memberships: how many members, and how each member is."""

from collections import Counter
from datetime import datetime
from typing import Any

from neocloud.core import wire
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.iam.v1 import TenantUserAccountStatus
from neocloud.services.iam.resources import GROUP_MEMBERSHIP, SERVICE_ACCOUNT, TENANT_USER_ACCOUNT
from neocloud.services.iam.rules.grants import member_id


def view_group(group: Any, tx: Transaction, now: datetime) -> None:
    memberships, _ = tx.list(GROUP_MEMBERSHIP, parent_id=group.metadata.id)
    members = [tx.get(member_id(row)) for row in memberships]
    kinds = Counter(member.kind for member in members if member is not None)
    group.status.members_count = kinds.total()
    group.status.service_accounts_count = kinds[SERVICE_ACCOUNT]
    group.status.tenant_user_accounts_count = kinds[TENANT_USER_ACCOUNT]


def view_membership(membership: Any, tx: Transaction, now: datetime) -> None:
    member = tx.get(membership.spec.member_id)
    if member is None:
        return
    status = membership.status
    status.group_member_metadata.CopyFrom(wire.metadata(member))
    if member.kind == SERVICE_ACCOUNT:
        status.service_account_status.active = member.deleted_at is None
    else:
        status.tenant_user_account_status.CopyFrom(TenantUserAccountStatus.FromString(member.status))
