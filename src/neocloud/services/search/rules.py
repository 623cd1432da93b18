"""From permissions to the places that a search covers, and the conditions of a search. Pure.

A kind without a Get method is never found. A tenant and a project are one kind of row, so a tenant is found
with the permission on tenants, besides that on projects.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from neocloud.core.kind import Kind
from neocloud.core.store.protocol import Resource
from neocloud.core.store.resource_query import SearchArea
from neocloud.messages.neocloud.search.v1 import FindResourcesRequest
from neocloud.services.iam.types import CLOUDS_PROJECT_ID, CONTAINER, ReadablePlaces, lineage

_READ_TENANTS = "iam.tenants.get"
GetRow = Callable[[str], Resource | None]


def findable(kinds: Iterable[Kind], wanted: Iterable[str]) -> list[Kind]:
    """Return the kinds of a search; all that have a Get method if none is requested."""
    requested = frozenset(wanted)
    return [kind for kind in kinds if "Get" in kind.verbs and (not requested or kind.message in requested)]


def permissions_of(kinds: Iterable[Kind]) -> frozenset[str]:
    return frozenset(each for kind in kinds for each in (_read_permission(kind), *_of_tenants(kind)))


def places_of(kind: Kind, rights: Mapping[str, ReadablePlaces]) -> ReadablePlaces:
    """Return where the caller may read resources of the kind."""
    places = rights[_read_permission(kind)]
    tenants = frozenset(each for name in _of_tenants(kind) for each in rights[name].ids)
    return ReadablePlaces(places.roots, places.ids | tenants, places.parents)


def areas(places: Mapping[str, ReadablePlaces]) -> tuple[SearchArea, ...]:
    """Return the areas to search, of kinds with the same places together."""
    kinds_of = defaultdict[ReadablePlaces, list[str]](list)
    for kind, where in places.items():
        kinds_of[where].append(kind)
    return tuple(
        SearchArea(
            kinds=tuple(sorted(kinds)),
            parents=tuple(sorted(where.parents)),
            roots=tuple(sorted(where.roots)),
            ids=tuple(sorted(where.ids | where.roots)),
        )
        for where, kinds in kinds_of.items()
    )


def limited(
    places: Mapping[str, ReadablePlaces], parent_ids: frozenset[str], get: GetRow
) -> Mapping[str, ReadablePlaces]:
    """Return the places of kinds limited to resources directly in these parents.

    A parent below a root is searched directly, so the database need not look for what lies below roots.
    """
    limits = {where: _within(where, parent_ids, get) for where in set(places.values())}
    return {kind: limits[where] for kind, where in places.items()}


def unreadable(places: Mapping[str, ReadablePlaces]) -> list[str]:
    """Return the kinds of which the caller may read nothing but what everybody may."""
    return sorted(
        kind
        for kind, where in places.items()
        if not (where.roots or where.ids or where.parents - {CLOUDS_PROJECT_ID})
    )


def _within(places: ReadablePlaces, parent_ids: frozenset[str], get: GetRow) -> ReadablePlaces:
    """Return the places limited to resources directly in these parents."""
    covered = {each for each in parent_ids if any(row.id in places.roots for row in lineage(each, get))}
    single = {each for each in places.ids | places.roots if _parent(each, get) in parent_ids}
    return ReadablePlaces(ids=frozenset(single), parents=frozenset(covered) | places.parents & parent_ids)


def container_kinds(kinds: Iterable[Kind]) -> tuple[str, ...]:
    """Return the kinds whose resources contain resources of these kinds, at any depth."""
    by_name = {kind.message: kind for kind in kinds}
    return tuple(sorted({each for kind in by_name.values() for each in kind.parent_kinds} | {CONTAINER}))


def texts_of(request: FindResourcesRequest) -> Iterable[str]:
    """Iterate over the texts that resources are compared with."""
    yield from request.parent_ids
    yield from request.kinds
    yield from request.ids
    yield from (request.id_prefix, request.name, request.name_prefix)


def _parent(resource_id: str, get: GetRow) -> str | None:
    row = get(resource_id)
    return row.parent_id if row is not None else None


def _read_permission(kind: Kind) -> str:
    return f"{kind.permission}.get"


def _of_tenants(kind: Kind) -> tuple[str, ...]:
    return (_READ_TENANTS,) if kind.message == CONTAINER else ()
