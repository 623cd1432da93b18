"""What a subject may do: walks from the resource up to its tenant and looks for a permit.

A yes is believed for a second; a no is always looked up afresh, so a right works the moment it is given and
is gone a second after it is taken. Where a resource lies never changes, so that is remembered.
A resource of another tenant is refused in the same words as one that does not exist. What came with the cloud
belongs to no tenant: everybody may look at it, nobody may change it.
"""

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.service import Subject
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.access.recent import Recent
from neocloud.services.iam.resources import CLOUDS_PROJECT_ID, GROUP_MEMBERSHIP, lineage
from neocloud.services.iam.rules.grants import Grant, group_grants, is_granted, is_in_scope, is_looking

LOOK_AGAIN_SECONDS = 1.0


class StoreAuthorizer:
    """The Authorizer of core, over the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._lineages: Recent[str, tuple[str, ...]] = Recent(clock)
        self._grants: Recent[str, frozenset[Grant]] = Recent(clock, max_age_seconds=LOOK_AGAIN_SECONDS)

    async def authorize(self, subject: Subject, permission: str, target_id: str) -> None:
        path, grants = self._lineages.get(target_id), self._grants.get(subject.id)
        in_scope = is_in_scope(subject.scopes, permission)
        if (
            in_scope
            and path
            and grants
            and path[-1] == subject.tenant_id
            and is_granted(grants, permission, path)
        ):
            return
        path, grants = await self._store.read(
            lambda tx: (_lineage_ids(tx, target_id), subject_grants(tx, subject.id))
        )
        if path and path[-1] == CLOUDS_PROJECT_ID and in_scope and is_looking(permission):
            return
        if not path or path[-1] != subject.tenant_id:
            raise contract.not_found("resource", target_id)
        self._lineages.put(target_id, path)
        self._grants.put(subject.id, grants)
        if not in_scope:
            raise contract.permission_denied(
                permission,
                target_id,
                f'The key that signs this call is for other services: it cannot be used for "{permission}".',
            )
        if not is_granted(grants, permission, path):
            raise contract.permission_denied(
                permission,
                target_id,
                f'{subject.name or subject.id} may not do this: it needs "{permission}" on {target_id}. '
                "Ask an admin of the tenant to add it to a group that may.",
            )


def subject_grants(tx: Transaction, subject_id: str) -> frozenset[Grant]:
    """Everything that the subject's groups are permitted; memberships are owned by their member."""
    groups = [row.parent_id for row in tx.owned(subject_id) if row.kind == GROUP_MEMBERSHIP]
    return frozenset(grant for group in groups for grant in group_grants(tx.children(group)))


def _lineage_ids(tx: Transaction, resource_id: str) -> tuple[str, ...]:
    """Ids from the resource up to its tenant, or to the project that is the cloud's own and no row."""
    if resource_id == CLOUDS_PROJECT_ID:
        return (CLOUDS_PROJECT_ID,)
    rows = tuple(lineage(resource_id, tx.get))
    is_clouds = bool(rows) and rows[-1].parent_id == CLOUDS_PROJECT_ID
    return tuple(row.id for row in rows) + ((CLOUDS_PROJECT_ID,) if is_clouds else ())
