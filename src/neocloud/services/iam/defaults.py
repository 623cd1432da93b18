"""The default resources of a new tenant: groups with their permits, a project, the operator's account.

The operator's account is in the tenant itself and in no project, so a right in a project does not reach it.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.store.group_commit import reading_own
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import (
    AccessPermit,
    AuthPublicKey,
    AuthPublicKeySpec,
    Container,
    Group,
    GroupMembership,
    ServiceAccount,
)
from neocloud.services.iam import types as iam
from neocloud.services.iam.rules.accounts import (
    GroupMembershipRules,
    GroupRules,
    ServiceAccountRules,
    active_container,
)
from neocloud.services.iam.rules.keys import AuthPublicKeyRules

_Default = Container | ServiceAccount | Group | GroupMembership | AccessPermit | AuthPublicKey
TENANT_NAME = "default"
EARLIER_TENANT_NAME = "innovation-bank"
"""The default of earlier releases. A tenant keeps its name, so their clouds still have it."""
OPERATOR_NAME = "operator"
OPERATOR_GROUP = "admins"
OPERATOR_KEY_DESCRIPTION = "Made by neo up"


@dataclass(frozen=True)
class TenantDefaults:
    """The first tenant, its default project and the operator's account."""

    tenant: Resource
    project: Resource
    service_account: Resource


def project_name(region: str) -> str:
    """Return the name of the default project. Clients look for a project whose name starts with
    "default-"."""
    return f"default-{region}"


def _first_tenant(tx: Transaction, name: str) -> Resource | None:
    """Return the first tenant, also of a cloud that an earlier release created."""
    found = tx.find(iam.CONTAINER, "", name)
    if found is None and name == TENANT_NAME:
        return tx.find(iam.CONTAINER, "", EARLIER_TENANT_NAME)
    return found


def find_defaults(tx: Transaction, tenant_name: str, region: str) -> TenantDefaults | None:
    tenant = _first_tenant(tx, tenant_name)
    project = tx.find(iam.CONTAINER, tenant.id, project_name(region)) if tenant else None
    account = tx.find(iam.SERVICE_ACCOUNT, tenant.id, OPERATOR_NAME) if tenant else None
    return TenantDefaults(tenant, project, account) if tenant and project and account else None


def ensure_defaults(tx: Transaction, tenant_name: str, region: str, now: datetime) -> TenantDefaults:
    tenant = _first_tenant(tx, tenant_name) or _container(tx, "", tenant_name, region, now)
    groups = {name: _group(tx, tenant, name, role, now) for name, role in iam.DEFAULT_GROUPS.items()}
    name = project_name(region)
    project = tx.find(iam.CONTAINER, tenant.id, name) or _container(tx, tenant.id, name, region, now)
    account = tx.find(iam.SERVICE_ACCOUNT, tenant.id, OPERATOR_NAME)
    if account is None:
        account = _operator(tx, tenant, groups[OPERATOR_GROUP], now)
    return TenantDefaults(tenant, project, account)


def find_misplaced_operator(
    tx: Transaction, tenant_name: str, region: str, held_account_id: str
) -> Resource | None:
    """Return the operator's account where earlier releases created it, in the first project.

    It must be the account of the credentials file, or an administrator of the tenant: anybody with a right
    over accounts in the project could create one of the same name.
    """
    tenant = _first_tenant(tx, tenant_name)
    project = tx.find(iam.CONTAINER, tenant.id, project_name(region)) if tenant else None
    if tenant is None or project is None or tx.find(iam.SERVICE_ACCOUNT, tenant.id, OPERATOR_NAME):
        return None
    account = tx.find(iam.SERVICE_ACCOUNT, project.id, OPERATOR_NAME)
    admins = tx.find(iam.GROUP, tenant.id, OPERATOR_GROUP)
    if account is None or admins is None:
        return None
    is_admin = any(row.parent_id == admins.id for row in tx.owned(account.id))
    return account if is_admin or account.id == held_account_id else None


def move_operator(tx: Transaction, account: Resource) -> list[str]:
    """Move the operator's account, and its keys, from its project into the tenant.

    Returns the ids of keys that `neo up` did not create: anybody with a right over accounts in the project
    could create them.
    """
    project = tx.get(account.parent_id)
    assert project is not None, "A project that holds an account is not deleted."
    others: list[str] = []
    for key in tx.owned(account.id):
        if key.parent_id != project.id:
            continue
        if key.kind != iam.AUTH_PUBLIC_KEY or _description(key) != OPERATOR_KEY_DESCRIPTION:
            others.append(key.id)
        tx.update(replace(key, parent_id=project.parent_id))
    tx.update(replace(account, parent_id=project.parent_id))
    return others


def add_operator_key(tx: Transaction, rows: TenantDefaults, public_pem: str, now: datetime) -> Resource:
    """Add a key for the operator. Delete earlier ones that were added here, whose private keys are lost."""
    for row in tx.owned(rows.service_account.id):
        if row.kind == iam.AUTH_PUBLIC_KEY and _description(row) == OPERATOR_KEY_DESCRIPTION:
            tx.delete(row.id)
    key = AuthPublicKey()
    key.spec.account.service_account.id = rows.service_account.id
    key.spec.description = OPERATOR_KEY_DESCRIPTION
    key.spec.data = public_pem
    with reading_own():
        AuthPublicKeyRules().defaults(key)
    prefix, owner_id = iam.AUTH_PUBLIC_KEY_ID_PREFIX, rows.service_account.id
    return _insert(tx, now, key, prefix, rows.tenant.id, owner_id=owner_id, state=iam.IamState.ACTIVE)


def _description(key: Resource) -> str:
    return AuthPublicKeySpec.FromString(key.spec).description


def _container(tx: Transaction, parent_id: str, name: str, region: str, now: datetime) -> Resource:
    container = Container(status=active_container(region))
    container.spec.region = region
    prefix = iam.PROJECT_ID_PREFIX if parent_id else iam.TENANT_ID_PREFIX
    return _insert(tx, now, container, prefix, parent_id, name=name, state=iam.IamState.ACTIVE)


def _group(tx: Transaction, tenant: Resource, name: str, role: str, now: datetime) -> Resource:
    found = tx.find(iam.GROUP, tenant.id, name)
    if found is not None:
        return found
    group = Group()
    GroupRules().defaults(group)
    row = _insert(tx, now, group, iam.GROUP_ID_PREFIX, tenant.id, name=name, state=iam.IamState.ACTIVE)
    permit = AccessPermit()
    permit.spec.resource_id = tenant.id
    permit.spec.role = role
    _insert(tx, now, permit, iam.ACCESS_PERMIT_ID_PREFIX, row.id, owner_id=row.id)
    return row


def _operator(tx: Transaction, tenant: Resource, group: Resource, now: datetime) -> Resource:
    account = ServiceAccount()
    account.spec.description = "The operator of this cloud"
    ServiceAccountRules().defaults(account)
    row = _insert(tx, now, account, iam.SERVICE_ACCOUNT_ID_PREFIX, tenant.id, name=OPERATOR_NAME)
    add_membership(tx, group, row, now)
    return row


def add_membership(tx: Transaction, group: Resource, member: Resource, now: datetime) -> Resource:
    membership = GroupMembership()
    membership.spec.member_id = member.id
    GroupMembershipRules().defaults(membership)
    return _insert(tx, now, membership, iam.GROUP_MEMBERSHIP_ID_PREFIX, group.id, owner_id=member.id)


def _insert(
    tx: Transaction,
    now: datetime,
    message: _Default,
    id_prefix: str,
    parent_id: str,
    *,
    name: str = "",
    owner_id: str = "",
    state: str = "",
) -> Resource:
    row = Resource(
        id=contract.new_id(id_prefix),
        kind=message.DESCRIPTOR.full_name,
        parent_id=parent_id,
        name=name,
        created_at=now,
        updated_at=now,
        spec=message.spec.SerializeToString(),
        status=message.status.SerializeToString(),
        state=state,
        owner_id=owner_id,
    )
    tx.insert(row)
    return row
