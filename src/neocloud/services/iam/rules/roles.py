"""The table of roles: which permissions each holds.

A permission is "<service>.<nouns>.<verb>". A role is a list of patterns read from left to right; the last one
that matches decides, and "!" takes away. Nothing matches: refused. Rights come only through groups: an access
permit gives a group a role on a tenant, a project or one resource, and on everything inside it.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

READ = ("*.get", "*.list")

ROLES: Mapping[str, tuple[str, ...]] = {
    # Everything, including who may do what.
    "admin": ("*",),
    # Everything but who may do what.
    "editor": ("*", "!emulator.*", "!iam.*", "iam.*.get", "iam.*.list"),
    # Looking only; never secrets.
    "viewer": READ,
    "iam.admin": ("iam.*",),
    "iam.viewer": ("iam.*.get", "iam.*.list"),
    "compute.editor": ("compute.*",),
    "compute.viewer": ("compute.*.get", "compute.*.list"),
    "slurm.editor": ("slurm.*", "compute.platforms.list", "compute.platforms.get"),
    "slurm.viewer": ("slurm.*.get", "slurm.*.list"),
    # Runs jobs on clusters that others manage.
    "slurm.jobs.submitter": ("slurm.jobs.*", "slurm.clusters.get", "slurm.clusters.list"),
    "billing.viewer": ("billing.*.get", "billing.*.list"),
}


@lru_cache(maxsize=4096)
def allows(role: str, permission: str) -> bool:
    """Whether the role holds the permission; an unknown role holds none."""
    is_allowed = False
    for pattern in ROLES.get(role, ()):
        if fnmatchcase(permission, pattern.removeprefix("!")):
            is_allowed = not pattern.startswith("!")
    return is_allowed
