"""Which roles a subject holds where: from its group memberships to the permits of those groups."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.iam.v1 import AccessPermitSpec, GroupMembershipSpec
from neocloud.services.iam.resources import ACCESS_PERMIT
from neocloud.services.iam.rules.roles import allows


@dataclass(frozen=True)
class Grant:
    """One role on one resource and everything inside it."""

    resource_id: str
    role: str


def is_in_scope(scopes: Sequence[str] | None, permission: str) -> bool:
    """Whether a sign-in that is limited to these patterns can be used for the permission at all."""
    return scopes is None or any(fnmatchcase(permission, pattern) for pattern in scopes)


def is_looking(permission: str) -> bool:
    return permission.endswith((".get", ".list"))


def member_id(membership: Resource) -> str:
    return GroupMembershipSpec.FromString(membership.spec).member_id


def group_grants(children: Iterable[Resource]) -> Iterable[Grant]:
    """What a group's permits give, out of the group's child rows."""
    for row in children:
        if row.kind == ACCESS_PERMIT:
            spec = AccessPermitSpec.FromString(row.spec)
            yield Grant(spec.resource_id, spec.role)


def is_granted(grants: Iterable[Grant], permission: str, lineage_ids: Iterable[str]) -> bool:
    """Whether a grant on the resource or anything it lies in holds the permission."""
    ids = frozenset(lineage_ids)
    return any(grant.resource_id in ids and allows(grant.role, permission) for grant in grants)
