"""What a subject may do in which project of its tenant: for parts that decide by themselves for a while.

The same permits and scopes as the authorizer's, looked up at once for all projects. A permit on a single
resource is no right in its project, and does not show here.
"""

from collections.abc import Sequence

from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.access.authorize import subject_grants
from neocloud.services.iam.resources import CONTAINER, ProjectRights, TenantRights
from neocloud.services.iam.rules.grants import is_granted, is_in_scope


def tenant_rights(store: Store) -> TenantRights:
    async def rights(subject: Subject, permissions: Sequence[str]) -> Sequence[ProjectRights]:
        usable = [each for each in permissions if is_in_scope(subject.scopes, each)]
        return await store.read(lambda tx: _rights(tx, subject, usable))

    return rights


def _rights(tx: Transaction, subject: Subject, permissions: Sequence[str]) -> list[ProjectRights]:
    grants = subject_grants(tx, subject.id)
    found = []
    for row in sorted(tx.list(CONTAINER, parent_id=subject.tenant_id)[0], key=lambda each: each.id):
        path = (row.id, subject.tenant_id)
        held = tuple(each for each in permissions if is_granted(grants, each, path))
        if held and row.deleted_at is None:
            found.append(ProjectRights(row.id, row.name, held))
    return found
