"""The table of roles: IAM-01, IAM-09."""

import pytest

from neocloud.control_plane.composition import SERVICES
from neocloud.services.iam.rules.roles import ROLES, allows, permissions_of, smallest_role
from neocloud.services.iam.types import DEFAULT_GROUPS


@pytest.mark.parametrize(
    ("role", "permission", "expected"),
    [
        ("admin", "iam.accessPermits.create", True),
        ("editor", "slurm.clusters.create", True),
        ("editor", "slurm.jobs.submit", True),
        ("editor", "iam.groups.list", True),
        ("editor", "iam.groups.create", False),
        ("editor", "iam.authPublicKeys.create", False),
        ("viewer", "slurm.clusters.get", True),
        ("viewer", "slurm.jobs.submit", False),
        ("viewer", "mysterybox.payloads.getSecret", False),
        ("compute.viewer", "compute.filesystems.list", True),
        ("compute.viewer", "slurm.clusters.list", False),
        ("slurm.jobs.submitter", "slurm.jobs.cancel", True),
        ("slurm.jobs.submitter", "slurm.clusters.delete", False),
        ("billing.viewer", "billing.reports.get", True),
        ("emperor", "slurm.clusters.get", False),
        ("viewer", "iam.accessKeys.getSecret", False),
        ("viewer", "audit.events.list", False),
        ("auditor", "audit.events.list", True),
        ("auditor", "iam.accessKeys.getSecret", False),
        ("auditor", "compute.disks.delete", False),
        ("editor", "iam.accessKeys.getSecret", False),
        ("editor", "iam.serviceAccounts.impersonate", False),
        ("editor", "quotas.allowances.update", False),
        ("iam.serviceAccounts.user", "iam.serviceAccounts.impersonate", True),
        ("iam.serviceAccounts.user", "iam.serviceAccounts.delete", False),
        ("compute.editor", "vpc.subnets.get", True),
        ("compute.editor", "vpc.subnets.delete", False),
        ("compute.instances.operator", "compute.instances.stop", True),
        ("compute.instances.operator", "compute.instances.delete", False),
        ("vpc.securityGroups.editor", "vpc.securityRules.create", True),
        ("vpc.securityGroups.editor", "vpc.subnets.create", False),
        ("editor", "inference.gates.override", False),
        ("inference.editor", "inference.gates.override", False),
        ("tuning.editor", "inference.gates.override", False),
        ("inference.gates.overrider", "inference.gates.override", True),
        ("inference.gates.overrider", "inference.models.delete", False),
        ("container-registry.images.puller", "registry.images.pull", True),
        ("container-registry.images.puller", "registry.images.push", False),
    ],
)
def test_a_role_allows_what_the_table_says(role: str, permission: str, expected: bool) -> None:
    assert allows(role, permission) is expected


def test_the_first_groups_have_roles_that_exist() -> None:
    assert set(DEFAULT_GROUPS.values()) <= set(ROLES)


def permissions() -> list[str]:
    """Every permission that a served method asks for."""
    custom = {method.permission for each in SERVICES for method in each.methods}
    verbs = ("get", "list", "create", "update", "delete", "getSecret")
    standard = {f"{kind.permission}.{verb}" for each in SERVICES for kind in each.kinds for verb in verbs}
    return sorted(each for each in custom | standard if each)


def test_a_refusal_names_the_smallest_role() -> None:
    """It has the permission, and no role with less has it: of reading, none that may change anything."""
    wrong = []
    for permission in permissions():
        named = smallest_role(permission)
        held = permissions_of(named)
        smaller = [each for each in ROLES if allows(each, permission) and permissions_of(each) < held]
        may_look = any(allows(each, permission) and is_reading(each) for each in ROLES)
        if not allows(named, permission) or smaller or (may_look and not is_reading(named)):
            wrong.append((permission, named, smaller))
    assert not wrong and len(permissions()) > 200


def is_reading(role: str) -> bool:
    return all(each.endswith((".get", ".list")) for each in permissions_of(role))


@pytest.mark.parametrize(
    ("permission", "role"),
    [
        ("iam.projects.list", "iam.viewer"),
        ("iam.tenantUserAccounts.list", "iam.viewer"),
        ("iam.serviceAccounts.get", "iam.viewer"),
        ("audit.events.list", "audit.viewer"),
        ("billing.reports.get", "billing.viewer"),
        ("quotas.quotaAllowances.list", "quotas.viewer"),
        ("slurm.jobs.submit", "slurm.jobs.submitter"),
        ("compute.instances.start", "compute.instances.operator"),
        ("inference.deployments.invoke", "inference.user"),
        ("registry.images.pull", "container-registry.images.puller"),
        ("iam.groups.create", "iam.admin"),
        ("operator.hosts.update", "admin"),
    ],
)
def test_the_smallest_role_of(permission: str, role: str) -> None:
    assert smallest_role(permission) == role
