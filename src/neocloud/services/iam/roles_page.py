"""Write the reference page of all roles from their table.

    python -m neocloud.services.iam.roles_page docs/reference/roles.md

`make docs` runs it, and a test fails when the page is not what this would write.
"""

import sys
from pathlib import Path

from neocloud.services.iam.rules.roles import ROLES
from neocloud.services.iam.types import FIRST_GROUPS

HEAD = """# Roles

<!-- Written by `make docs` from services/iam/rules/roles.py; change that table, not this page. -->

Rights come only through groups: an access permit gives a group a role on a tenant, a project or one resource,
and on everything inside it. `neo iam role list` shows the roles of a running cloud.

    neo iam group create --name nightly
    neo iam group-membership create --parent-id GROUP --member-id SERVICE_ACCOUNT
    neo iam access-permit create --parent-id GROUP --resource-id PROJECT --role slurm.jobs.submitter

A permission is `<service>.<nouns>.<verb>`. A role is a list of patterns, read from left to right; the last
that matches decides, and `!` takes away. What nothing matches is refused. Looking (`get`, `list`) never shows
a secret: that takes a permission of its own, such as `iam.accessKeys.getSecret` for the secret of an access
key, or `compute.instances.getSecret` for the user data of a machine. Roles that may change such a resource
hold it too. To everybody else the fields that the API marks as sensitive are shown empty, and an update that
sends them back empty keeps them as they are.

A right over accounts, keys, groups or federations reaches only those that hold no more than the caller: the
caller needs each of their permissions, on the same resource or on what that lies in. Nobody makes a key for,
impersonates, changes or deletes an account that holds more than they do, nor adds anybody to such a group.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "| role | for | permissions |", "|---|---|---|"]
    for name, role in ROLES.items():
        patterns = " ".join(f"`{pattern}`" for pattern in role.permissions)
        lines.append(f"| `{name}` | {role.about} | {patterns} |")
    lines += ["", "## Groups of a new tenant", "", "| group | role on the tenant |", "|---|---|"]
    lines += [f"| `{group}` | `{role}` |" for group, role in FIRST_GROUPS.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    Path(arguments[0]).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
