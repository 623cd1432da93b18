"""Grants of an account, and whether one account holds all grants of another. Pure: reads rows.

Grants follow from group memberships and the permits of those groups. A caller who can create a key for an
account, impersonate it, or change it or its means of signing in, can act as it. Each of these therefore
requires, besides its permission, every permission of that account. Otherwise a right over accounts would be a
right to everything that any of them may do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from neocloud.core import contract
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource
from neocloud.messages.nebius.iam.v1 import AccessPermitSpec, GroupMembershipSpec, InvitationStatus
from neocloud.messages.neocloud.iam.v1 import OidcFederationSpec
from neocloud.services.iam import types as iam
from neocloud.services.iam.rules.roles import allows, covers
from neocloud.services.iam.types import ACCESS_PERMIT


@dataclass(frozen=True)
class Grant:
    """One role on one resource and everything inside it."""

    resource_id: str
    role: str


def is_in_scope(scopes: Sequence[str] | None, permission: str) -> bool:
    """Return whether a sign-in that is limited to these patterns can be used for the permission at all."""
    return scopes is None or any(fnmatchcase(permission, pattern) for pattern in scopes)


def is_read(permission: str) -> bool:
    return permission.endswith((".get", ".list"))


def member_id(membership: Resource) -> str:
    return GroupMembershipSpec.FromString(membership.spec).member_id


def group_grants(children: Iterable[Resource]) -> Iterable[Grant]:
    """Return the grants of a group's permits, from the group's child rows."""
    for row in children:
        if row.kind == ACCESS_PERMIT:
            spec = AccessPermitSpec.FromString(row.spec)
            yield Grant(spec.resource_id, spec.role)


def is_granted(grants: Iterable[Grant], permission: str, lineage_ids: Iterable[str]) -> bool:
    """Return whether a grant on the resource or on a container of it holds the permission."""
    ids = frozenset(lineage_ids)
    return any(grant.resource_id in ids and allows(grant.role, permission) for grant in grants)


_PRINCIPALS = frozenset({iam.SERVICE_ACCOUNT, iam.TENANT_USER_ACCOUNT, iam.GROUP, iam.OIDC_FEDERATION})
"""The kinds that hold rights: accounts, groups, and federations, whose provider decides who its users are."""
_OF_THE_PARENT = frozenset({iam.GROUP_MEMBERSHIP, iam.ACCESS_PERMIT, iam.SESSION})


class Rows(Protocol):
    def get(self, resource_id: str) -> Resource | None: ...

    def owned(self, owner_id: str) -> Sequence[Resource]: ...


def acts_on_principals(permission: str) -> bool:
    """Return whether the permission may change who can act as an account, or show what it signs in with."""
    return permission.startswith("iam.") and not is_read(permission)


def principals_of(rows: Rows, resource_id: str) -> frozenset[str]:
    """Return the ids of the accounts, groups and federations that a change of the resource may let a
    caller act as."""
    row = rows.get(resource_id)
    if row is None:
        return frozenset()
    if row.kind in _PRINCIPALS:
        return frozenset({row.id})
    found = {row.parent_id if row.kind in _OF_THE_PARENT else ""}
    if row.kind == iam.INVITATION:
        found.add(InvitationStatus.FromString(row.status).tenant_user_account_id)
    owner = rows.get(row.owner_id) if row.owner_id else None
    if owner is not None and owner.kind in _PRINCIPALS:
        found.add(owner.id)
    return frozenset(found - {""})


def grants_of(rows: Rows, principal_id: str) -> frozenset[Grant]:
    """Return the grants of an account by its groups, of a group by its permits, or of all users of a
    federation."""
    row = rows.get(principal_id)
    if row is None:
        return frozenset()
    if row.kind == iam.GROUP:
        return frozenset(group_grants(rows.owned(row.id)))
    if row.kind == iam.OIDC_FEDERATION:
        users = [each.id for each in rows.owned(row.id) if each.kind == iam.TENANT_USER_ACCOUNT]
        groups = OidcFederationSpec.FromString(row.spec).group_ids
        return frozenset(grant for each in (*users, *groups) for grant in grants_of(rows, each))
    groups = [each.parent_id for each in rows.owned(row.id) if each.kind == iam.GROUP_MEMBERSHIP]
    return frozenset(grant for group in groups for grant in group_grants(rows.owned(group)))


def holds_at_least(rows: Rows, caller_id: str, target_id: str) -> bool:
    """Return whether the caller holds every permission of the target, wherever the target holds it."""
    if caller_id == target_id:
        return True
    wanted = grants_of(rows, target_id)
    held = grants_of(rows, caller_id) if wanted else frozenset[Grant]()
    return all(_is_covered(rows, grant, held) for grant in wanted)


def mightier_than(rows: Rows, caller_id: str, target_ids: Iterable[str]) -> str:
    """The id of a target that holds more than the caller; "" when none does."""
    return next((each for each in sorted(target_ids) if not holds_at_least(rows, caller_id, each)), "")


def refuse_mightier(permission: str, target_id: str, reader: ResourceReader) -> None:
    """Raises ApiError when a request is behind this and its caller holds less than the target."""
    if reader.subject is not None and not holds_at_least(reader, reader.subject.id, target_id):
        raise refusal(permission, target_id)


def refusal(permission: str, target_id: str, resource_id: str = "") -> contract.ApiError:
    """Return the error for a caller who holds less than the target."""
    return contract.permission_denied(
        permission,
        resource_id or target_id,
        f"{target_id} holds rights that you do not hold, so you may not act as it or change who can."
        " Ask an admin of the tenant.",
    )


def _is_covered(rows: Rows, grant: Grant, held: frozenset[Grant]) -> bool:
    if grant in held:
        return True
    path = {row.id for row in iam.lineage(grant.resource_id, rows.get)}
    if not path:
        return True  # The resource of the grant was deleted, and the right with it.
    return covers([each.role for each in held if each.resource_id in path], grant.role)
