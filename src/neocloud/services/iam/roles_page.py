"""Write the reference page of all roles from their table.

    python -m neocloud.services.iam.roles_page docs/reference/roles.md

`make docs` runs it, and a test fails when the page is out of date.
"""

import sys
from pathlib import Path

from neocloud.services.iam.rules.roles import ROLES
from neocloud.services.iam.types import DEFAULT_GROUPS

HEAD = """# Roles

<!-- Written by `make docs` from services/iam/rules/roles.py; change that table, not this page. -->

Rights come only from groups: an access permit grants a group a role on a tenant, a project or one resource,
and on everything inside it. `neo iam role list` shows the roles of a running cloud.

    neo iam group create nightly
    neo iam group-membership create --parent-id GROUP --member-id SERVICE_ACCOUNT
    neo iam access-permit create --parent-id GROUP --resource-id PROJECT --role slurm.jobs.submitter

A permission is `<service>.<nouns>.<verb>`. A role is a list of patterns, read from left to right. The last
pattern that matches decides, and `!` denies. A permission that no pattern matches is denied. Read access
(`get`, `list`) never includes secrets. Those require a permission of their own, such as
`iam.accessKeys.getSecret` for the secret of an access key, or `compute.instances.getSecret` for the user data
of a machine. Roles that may change such a resource have it too. For everybody else, fields that the API marks
as sensitive are empty, and an update that sends them back empty leaves them unchanged.

A right over accounts, keys, groups or federations covers only those that have no more rights than the caller:
the caller needs each of their permissions, on the same resource or on a container of it. Nobody can create a
key for, impersonate, change or delete an account that has more rights, or add members to such a group.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD, "| role | for | permissions |", "|---|---|---|"]
    for name, role in ROLES.items():
        patterns = " ".join(f"`{pattern}`" for pattern in role.permissions)
        lines.append(f"| `{name}` | {role.about} | {patterns} |")
    lines += ["", "## Groups of a new tenant", "", "| group | role on the tenant |", "|---|---|"]
    lines += [f"| `{group}` | `{role}` |" for group, role in DEFAULT_GROUPS.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    Path(arguments[0]).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
