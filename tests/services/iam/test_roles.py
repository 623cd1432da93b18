"""The table of roles: IAM-01, IAM-09."""

import pytest

from neocloud.services.iam.resources import FIRST_GROUPS
from neocloud.services.iam.rules.roles import ROLES, allows


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
    ],
)
def test_a_role_allows_what_the_table_says(role: str, permission: str, expected: bool) -> None:
    assert allows(role, permission) is expected


def test_the_first_groups_have_roles_that_exist() -> None:
    assert set(FIRST_GROUPS.values()) <= set(ROLES)
