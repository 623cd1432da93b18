"""The table of roles: IAM-01, IAM-09."""

import pytest

from neocloud.services.iam.rules.roles import ROLES, allows
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
        ("container-registry.images.puller", "registry.images.pull", True),
        ("container-registry.images.puller", "registry.images.push", False),
    ],
)
def test_a_role_allows_what_the_table_says(role: str, permission: str, expected: bool) -> None:
    assert allows(role, permission) is expected


def test_the_first_groups_have_roles_that_exist() -> None:
    assert set(DEFAULT_GROUPS.values()) <= set(ROLES)
