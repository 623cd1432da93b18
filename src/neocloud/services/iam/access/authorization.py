"""Authorization: find a permit on a resource or on a container that it is in.

Rights are cached for a second, and a refusal is never answered from the cache. So a right works as soon as it
is given, and ends within a second after it is removed. The location of a resource in its tenant never
changes, so it is cached without a time limit. A resource of another tenant, or of a project in which the
account has no role, is refused in the same words as one that does not exist; the audit log has the true
reason. Resources that come with the cloud belong to no tenant: everybody may read them,
no account may change them. Every change that lets a caller act as an account also requires all rights of that
account (rules/grants.py).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cachetools import LRUCache, TTLCache

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.readers import Subject
from neocloud.core.service import Call
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.access.sessions import write_event
from neocloud.services.iam.rules.grants import (
    Grant,
    acts_on_principals,
    grants_of,
    is_granted,
    is_in_scope,
    is_read,
    mightier_than,
    principals_of,
)
from neocloud.services.iam.rules.grants import refusal as privilege_refusal
from neocloud.services.iam.rules.roles import allows, smallest_role
from neocloud.services.iam.types import (
    CLOUDS_PROJECT_ID,
    CONTAINER,
    ProjectRights,
    ReadablePlaces,
    TenantRights,
    lineage,
)

RECHECK_SECONDS = 1.0
MAX_CACHED = 10_000


@dataclass(frozen=True)
class _Location:
    """The location of a resource in its tenant. It never changes."""

    path: tuple[str, ...]
    """Ids from the resource up to its tenant."""
    is_container: bool
    """Whether it is a tenant or a project. Those hold no rights themselves, so creating a resource in one
    requires no more than the permission."""


@dataclass(frozen=True)
class _Decision:
    """The result of a check, and the parts of it that may be cached."""

    refusal: contract.ApiError | None
    location: _Location | None
    """None for a resource outside the subject's tenant."""
    grants: frozenset[Grant]


class StoreAuthorizer:
    """The Authorizer of core, over the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._locations: LRUCache[str, _Location] = LRUCache(MAX_CACHED)
        self._grants: TTLCache[str, frozenset[Grant]] = TTLCache(
            MAX_CACHED, ttl=RECHECK_SECONDS, timer=clock.monotonic
        )

    async def authorize(self, subject: Subject, permission: str, target_id: str) -> None:
        location = self._locations.get(target_id)
        needs_all_rights = acts_on_principals(permission) and not (location and location.is_container)
        if location and not needs_all_rights and self._is_known(subject, permission, location):
            return
        decision = await self._store.read(lambda tx: _decide(tx, subject, permission, target_id))
        if decision.location is not None:
            # Not in `_decide`, which may run in another thread: the caches are not thread-safe.
            self._locations[target_id] = decision.location
            self._grants[subject.id] = decision.grants
        if decision.refusal is not None:
            raise decision.refusal

    def _is_known(self, subject: Subject, permission: str, location: _Location) -> bool:
        grants = self._grants.get(subject.id)
        return bool(
            grants
            and is_in_scope(subject.scopes, permission)
            and location.path[-1] == subject.tenant_id
            and is_granted(grants, permission, location.path)
        )


def _decide(tx: Transaction, subject: Subject, permission: str, target_id: str) -> _Decision:
    path, location, grants = _lineage_ids(tx, target_id), None, frozenset[Grant]()
    if path and path[-1] == subject.tenant_id:
        target = tx.get(target_id)
        location = _Location(path, is_container=target is not None and target.kind == CONTAINER)
        grants = subject_grants(tx, subject.id)
    return _Decision(refused(tx, subject, permission, target_id), location, grants)


def refused(tx: Transaction, subject: Subject, permission: str, target_id: str) -> contract.ApiError | None:
    """Return why the subject may not do this on the target; None when it may.

    Every account may read its tenant, and the project itself wherever it has a role."""
    path, in_scope = _lineage_ids(tx, target_id), is_in_scope(subject.scopes, permission)
    if path and path[-1] == CLOUDS_PROJECT_ID and in_scope and is_read(permission):
        return None
    grants = subject_grants(tx, subject.id)
    if not path or path[-1] != subject.tenant_id:
        return _unknown(subject, permission, target_id, grants)
    denial = _denial(tx, subject, permission, target_id, path, grants)
    if denial is not None and not _may_know_of(tx, subject, target_id, path, grants):
        hidden = _unknown(subject, permission, target_id, grants)
        hidden.recorded_as = denial
        return hidden
    return denial


def _denial(
    tx: Transaction,
    subject: Subject,
    permission: str,
    target_id: str,
    path: tuple[str, ...],
    grants: frozenset[Grant],
) -> contract.ApiError | None:
    if not is_in_scope(subject.scopes, permission):
        return contract.permission_denied(
            permission,
            target_id,
            f'The key of this call is for another service and cannot be used for "{permission}".',
        )
    if target_id in _always_readable(tx, subject, permission, grants):
        return None
    if not is_granted(grants, permission, path):
        return contract.permission_denied(
            permission,
            target_id,
            f'{subject.name or subject.id} needs the permission "{permission}" on {target_id}. '
            f"Ask an admin of the tenant for a role that has it, such as {smallest_role(permission)}.",
        )
    if acts_on_principals(permission):
        mightier = mightier_than(tx, subject.id, principals_of(tx, target_id))
        return privilege_refusal(permission, mightier, target_id) if mightier else None
    return None


def _always_readable(
    tx: Transaction, subject: Subject, permission: str, grants: frozenset[Grant]
) -> frozenset[str]:
    """Return the containers that the subject may read without a role on them."""
    if permission == "iam.tenants.get":
        return frozenset({subject.tenant_id})
    return known_projects(tx, grants) if permission == "iam.projects.get" else frozenset()


def read_rights(
    tx: Transaction, subject: Subject, permissions: Collection[str]
) -> Mapping[str, ReadablePlaces]:
    """Implement `ReadRights`: the places where `refused` refuses none of these permissions."""
    grants = subject_grants(tx, subject.id)
    paths = {each: _lineage_ids(tx, each) for each in {grant.resource_id for grant in grants}}
    own = [grant for grant in grants if paths[grant.resource_id][-1:] == (subject.tenant_id,)]
    found: dict[str, ReadablePlaces] = {}
    for permission in permissions:
        if not (is_read(permission) and is_in_scope(subject.scopes, permission)):
            found[permission] = ReadablePlaces()
            continue
        found[permission] = ReadablePlaces(
            roots=frozenset(grant.resource_id for grant in own if allows(grant.role, permission)),
            ids=_always_readable(tx, subject, permission, frozenset(own)),
            parents=frozenset({CLOUDS_PROJECT_ID}),
        )
    return found


def known_projects(tx: Transaction, grants: frozenset[Grant]) -> frozenset[str]:
    """Return the projects in which these grants give a role, if only on one resource there."""
    paths = [_lineage_ids(tx, grant.resource_id) for grant in grants]
    return frozenset(path[-2] for path in paths if len(path) > 1)


def _may_know_of(
    tx: Transaction, subject: Subject, target_id: str, path: tuple[str, ...], grants: frozenset[Grant]
) -> bool:
    """Return whether the subject may know that the target exists: it has some role there, or the target
    is its own account, project or tenant, or a project in which it has a role."""
    return (
        any(grant.resource_id in path for grant in grants)
        or target_id in _lineage_ids(tx, subject.id)
        or target_id in known_projects(tx, grants)
    )


def _unknown(
    subject: Subject, permission: str, target_id: str, grants: frozenset[Grant]
) -> contract.ApiError:
    """Return the answer about what does not exist, is another tenant's, or lies where the subject has no
    role. It depends on the subject, the permission and the id alone, so it tells nothing about the target."""
    needs = ""
    if not is_granted(grants, permission, (subject.tenant_id,)):
        needs = f'This call needs the permission "{permission}" on it, which {smallest_role(permission)} has.'
    return contract.not_found("resource", target_id, needs)


def subject_grants(tx: Transaction, subject_id: str) -> frozenset[Grant]:
    """Return all grants of the subject's groups."""
    return grants_of(tx, subject_id)


def _lineage_ids(tx: Transaction, resource_id: str) -> tuple[str, ...]:
    """Return the ids from the resource up to its tenant, or up to the project of the cloud itself."""
    if resource_id == CLOUDS_PROJECT_ID:
        return (CLOUDS_PROJECT_ID,)
    rows = tuple(lineage(resource_id, tx.get))
    is_clouds = bool(rows) and rows[-1].parent_id == CLOUDS_PROJECT_ID
    return tuple(row.id for row in rows) + ((CLOUDS_PROJECT_ID,) if is_clouds else ())


def tenant_rights(store: Store) -> TenantRights:
    async def rights(subject: Subject, permissions: Sequence[str]) -> Sequence[ProjectRights]:
        usable = [each for each in permissions if is_in_scope(subject.scopes, each)]
        return await store.read(lambda tx: _rights(tx, subject, usable))

    return rights


def _rights(tx: Transaction, subject: Subject, permissions: Sequence[str]) -> list[ProjectRights]:
    grants = subject_grants(tx, subject.id)
    found: list[ProjectRights] = []
    for row in sorted(tx.list(CONTAINER, parent_id=subject.tenant_id)[0], key=lambda each: each.id):
        path = (row.id, subject.tenant_id)
        held = tuple(each for each in permissions if is_granted(grants, each, path))
        if held and row.deleted_at is None:
            found.append(ProjectRights(row.id, row.name, held))
    return found


async def require(call: Call, permission: str, target_id: str, *, record_as: str = "") -> None:
    """Raise ApiError unless the caller has the permission on the target. The server records refused changes;
    refusals of other calls are recorded under the method path `record_as`."""
    subject = call.subject
    if subject is None:
        raise contract.unauthenticated("This call needs a token; sign in first.")
    authorizer = StoreAuthorizer(call.dependencies.store, call.dependencies.clock)
    try:
        await authorizer.authorize(subject, permission, target_id)
    except contract.ApiError as denial:
        if record_as:
            error = denial.recorded_as
            await call.dependencies.store.write(
                lambda tx: write_event(tx, call, record_as, subject, target_id, error=error)
            )
        raise
