"""What a subject may do: walks from the resource up to its tenant and looks for a permit.

A yes is believed for a second; a no is always looked up afresh, so a right works the moment it is given and
is gone a second after it is taken. Where a resource lies never changes, so that is remembered.
A resource of another tenant is refused in the same words as one that does not exist. What came with the cloud
belongs to no tenant: everybody may look at it, nobody may change it.
Whatever lets somebody act as an account also needs everything that the account holds (rules/privilege.py).
"""

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.access.recent import Recent
from neocloud.services.iam.resources import CLOUDS_PROJECT_ID, CONTAINER, lineage
from neocloud.services.iam.rules.grants import Grant, is_granted, is_in_scope, is_looking
from neocloud.services.iam.rules.privilege import (
    acts_on_principals,
    grants_of,
    mightier_than,
    principals_of,
)
from neocloud.services.iam.rules.privilege import refusal as privilege_refusal

LOOK_AGAIN_SECONDS = 1.0


class StoreAuthorizer:
    """The Authorizer of core, over the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._lineages: Recent[str, tuple[str, ...]] = Recent(clock)
        self._grants: Recent[str, frozenset[Grant]] = Recent(clock, max_age_seconds=LOOK_AGAIN_SECONDS)
        self._containers: Recent[str, bool] = Recent(clock)

    async def authorize(self, subject: Subject, permission: str, target_id: str) -> None:
        needs_all_rights = acts_on_principals(permission) and not self._containers.get(target_id)
        if not needs_all_rights and self._is_known(subject, permission, target_id):
            return
        refusal = await self._store.read(lambda tx: self._look_up(tx, subject, permission, target_id))
        if refusal is not None:
            raise refusal

    def _look_up(
        self, tx: Transaction, subject: Subject, permission: str, target_id: str
    ) -> contract.ApiError | None:
        path = _lineage_ids(tx, target_id)
        if path and path[-1] == subject.tenant_id:
            self._lineages.put(target_id, path)
            self._grants.put(subject.id, subject_grants(tx, subject.id))
            target = tx.get(target_id)
            # Tenants and projects hold no rights themselves, so a new resource in one needs no more.
            self._containers.put(target_id, target is not None and target.kind == CONTAINER)
        return refused(tx, subject, permission, target_id)

    def _is_known(self, subject: Subject, permission: str, target_id: str) -> bool:
        path, grants = self._lineages.get(target_id), self._grants.get(subject.id)
        return bool(
            path
            and grants
            and is_in_scope(subject.scopes, permission)
            and path[-1] == subject.tenant_id
            and is_granted(grants, permission, path)
        )


def refused(tx: Transaction, subject: Subject, permission: str, target_id: str) -> contract.ApiError | None:
    """Why the subject may not do this on the target; None when it may."""
    path, in_scope = _lineage_ids(tx, target_id), is_in_scope(subject.scopes, permission)
    if path and path[-1] == CLOUDS_PROJECT_ID and in_scope and is_looking(permission):
        return None
    if not path or path[-1] != subject.tenant_id:
        return contract.not_found("resource", target_id)
    if not in_scope:
        return contract.permission_denied(
            permission,
            target_id,
            f'The key that signs this call is for other services: it cannot be used for "{permission}".',
        )
    if not is_granted(subject_grants(tx, subject.id), permission, path):
        return contract.permission_denied(
            permission,
            target_id,
            f'{subject.name or subject.id} may not do this: it needs "{permission}" on {target_id}. '
            "Ask an admin of the tenant to add it to a group that may.",
        )
    if acts_on_principals(permission):
        mightier = mightier_than(tx, subject.id, principals_of(tx, target_id))
        return privilege_refusal(permission, mightier, target_id) if mightier else None
    return None


def subject_grants(tx: Transaction, subject_id: str) -> frozenset[Grant]:
    """Everything that the subject's groups are permitted."""
    return grants_of(tx, subject_id)


def _lineage_ids(tx: Transaction, resource_id: str) -> tuple[str, ...]:
    """Ids from the resource up to its tenant, or to the project that is the cloud's own and no row."""
    if resource_id == CLOUDS_PROJECT_ID:
        return (CLOUDS_PROJECT_ID,)
    rows = tuple(lineage(resource_id, tx.get))
    is_clouds = bool(rows) and rows[-1].parent_id == CLOUDS_PROJECT_ID
    return tuple(row.id for row in rows) + ((CLOUDS_PROJECT_ID,) if is_clouds else ())
