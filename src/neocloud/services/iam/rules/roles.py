"""Whether a role holds a permission.

Rights come only through groups: an access permit gives a group a role on a tenant, a project or one resource,
and on everything inside it.
"""

from fnmatch import fnmatchcase
from functools import lru_cache

from neocloud.services.iam.rules.role_table import ROLES

__all__ = ["ROLES", "allows"]


@lru_cache(maxsize=4096)
def allows(role: str, permission: str) -> bool:
    """The last pattern that matches decides; an unknown role holds nothing."""
    is_allowed = False
    for pattern in ROLES[role].permissions if role in ROLES else ():
        if fnmatchcase(permission, pattern.removeprefix("!")):
            is_allowed = not pattern.startswith("!")
    return is_allowed
