"""Rules of projects, service accounts, groups, memberships and permits, and their computed status.

A caller can give no right that the caller does not have.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from neocloud.core import contract, wire
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import (
    AccessPermit,
    Container,
    ContainerStatus,
    Group,
    GroupMembership,
    GroupStatus,
    ServiceAccount,
    SuspensionState,
    TenantUserAccountStatus,
)
from neocloud.messages.nebius.iam.v1 import State as ContainerState
from neocloud.services.iam.rules.grants import grants_of, is_granted, member_id
from neocloud.services.iam.rules.roles import ROLES
from neocloud.services.iam.types import (
    GROUP,
    GROUP_MEMBERSHIP,
    PROJECT_ID_PREFIX,
    SERVICE_ACCOUNT,
    TENANT_USER_ACCOUNT,
    TENANT_USER_ACCOUNT_ID_PREFIX,
    is_project,
    is_tenant,
    lineage,
    tenant_of,
)

GroupState = GroupStatus.State
CREATE_PERMIT = "iam.accessPermits.create"
DEFAULT_REGION = "eu-north1"


def active_container(region: str) -> ContainerStatus:
    return ContainerStatus(
        container_state=ContainerState.Value("ACTIVE"),
        suspension_state=SuspensionState.Value("NONE"),
        region=region,
    )


class ProjectRules(Rules[Container]):
    def quota_demand(self, resource: Container) -> Mapping[str, int]:
        return {"iam.project.count": 1} if resource.metadata.parent_id else {}

    def defaults(self, resource: Container) -> None:
        resource.status.CopyFrom(active_container(resource.spec.region or DEFAULT_REGION))

    def violations(
        self, new: Container, old: Container | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is None:
            parent = reader.get(new.metadata.parent_id)
            if parent is None or not is_tenant(parent):
                yield Violation(
                    "metadata.parent_id",
                    "must be the id of a tenant, tenant-...",
                )
            if not new.metadata.name:
                yield Violation("metadata.name", "a project needs a name")
        elif not new.metadata.id.startswith(f"{PROJECT_ID_PREFIX}-"):
            yield Violation("metadata.id", "is the id of a tenant; this method changes projects only")
        elif old.status.region != (new.spec.region or DEFAULT_REGION):
            yield Violation(
                "spec.region",
                f'cannot be changed: the region is "{old.status.region}"; create another project',
            )

    def check_delete(self, resource: Container, reader: ResourceReader) -> None:
        if not resource.metadata.parent_id:
            raise contract.bad_state(resource.metadata.id, "A tenant cannot be deleted through the API.")


def show_region(resource: Container, *_: object) -> None:
    """Set the region that a client left out: version 1 marks it as a default, version 2 does not."""
    resource.spec.region = resource.spec.region or resource.status.region


class ServiceAccountRules(Rules[ServiceAccount]):
    def quota_demand(self, resource: ServiceAccount) -> Mapping[str, int]:
        return {"iam.service-account.count": 1}

    def defaults(self, resource: ServiceAccount) -> None:
        resource.status.active = True

    def violations(
        self, new: ServiceAccount, old: ServiceAccount | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is None and not _is_in_project(new, reader):
            yield Violation("metadata.parent_id", "must be the id of a project, project-...")


def _is_in_project(new: ServiceAccount, reader: ResourceReader) -> bool:
    parent = reader.get(new.metadata.parent_id)
    return parent is not None and is_project(parent)


class GroupRules(Rules[Group]):
    def quota_demand(self, resource: Group) -> Mapping[str, int]:
        return {"iam.group.count": 1}

    def defaults(self, resource: Group) -> None:
        resource.status.state = GroupState.Value("ACTIVE")

    def violations(self, new: Group, old: Group | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is not None:
            return
        parent = reader.get(new.metadata.parent_id)
        if parent is None or not is_tenant(parent):
            yield Violation("metadata.parent_id", "must be the id of a tenant, tenant-...")
        if not new.metadata.name:
            yield Violation("metadata.name", "a group needs a name")


class GroupMembershipRules(Rules[GroupMembership]):
    def quota_demand(self, resource: GroupMembership) -> Mapping[str, int]:
        return {"iam.group-membership.count": 1}

    def owner_id(self, resource: GroupMembership) -> str:
        return resource.spec.member_id

    def defaults(self, resource: GroupMembership) -> None:
        if contract.id_prefix(resource.spec.member_id) == TENANT_USER_ACCOUNT_ID_PREFIX:
            resource.status.tenant_user_account_status.SetInParent()
        else:
            resource.status.service_account_status.active = True

    def violations(
        self, new: GroupMembership, old: GroupMembership | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None:
            return
        group = _group(new, reader)
        if group is None:
            yield Violation("metadata.parent_id", "must be the id of a group, group-...")
            return
        member = reader.get(new.spec.member_id) if new.spec.member_id else None
        is_account = member is not None and member.kind in (SERVICE_ACCOUNT, TENANT_USER_ACCOUNT)
        if not is_account or tenant_of(new.spec.member_id, reader.get) != group.parent_id:
            yield Violation(
                "spec.member_id",
                f'"{new.spec.member_id}" is not a user or service account of the group\'s tenant',
            )
        if any(member_id(row) == new.spec.member_id for row in reader.list(GROUP_MEMBERSHIP, group.id)):
            raise contract.already_exists("group membership", new.spec.member_id, group.id)


class AccessPermitRules(Rules[AccessPermit]):
    def quota_demand(self, resource: AccessPermit) -> Mapping[str, int]:
        return {"iam.access-permit.count": 1}

    def owner_id(self, resource: AccessPermit) -> str:
        return resource.metadata.parent_id

    def violations(
        self, new: AccessPermit, old: AccessPermit | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None:
            return
        group = _group(new, reader)
        if group is None:
            yield Violation("metadata.parent_id", "must be the id of a group, group-...")
            return
        if new.spec.role not in ROLES:
            known = ", ".join(sorted(ROLES))
            yield Violation("spec.role", f'"{new.spec.role}" is not a role; use one of: {known}')
        target = [row.id for row in lineage(new.spec.resource_id, reader.get)]
        if not target or target[-1] != group.parent_id:
            yield Violation(
                "spec.resource_id", f'"{new.spec.resource_id}" is not a resource of the group\'s tenant'
            )
        elif reader.subject and not is_granted(grants_of(reader, reader.subject.id), CREATE_PERMIT, target):
            raise contract.permission_denied(
                CREATE_PERMIT,
                new.spec.resource_id,
                f'Creating a permit for "{new.spec.resource_id}" requires the right to create permits on it.'
                " Ask an admin of the tenant.",
            )


def _group(new: GroupMembership | AccessPermit, reader: ResourceReader) -> Resource | None:
    parent = reader.get(new.metadata.parent_id)
    return parent if parent is not None and parent.kind == GROUP else None


def view_group(group: Group, tx: Transaction, now: datetime) -> None:
    memberships, _ = tx.list(GROUP_MEMBERSHIP, parent_id=group.metadata.id)
    members = [tx.get(member_id(row)) for row in memberships]
    kinds = Counter(member.kind for member in members if member is not None)
    group.status.members_count = kinds.total()
    group.status.service_accounts_count = kinds[SERVICE_ACCOUNT]
    group.status.tenant_user_accounts_count = kinds[TENANT_USER_ACCOUNT]


def view_membership(membership: GroupMembership, tx: Transaction, now: datetime) -> None:
    member = tx.get(membership.spec.member_id)
    if member is None:
        return
    status = membership.status
    status.group_member_metadata.CopyFrom(wire.metadata(member))
    if member.kind == SERVICE_ACCOUNT:
        status.service_account_status.active = member.deleted_at is None
    else:
        status.tenant_user_account_status.CopyFrom(TenantUserAccountStatus.FromString(member.status))
