"""Artifacts: the manifests and indexes of registries, as the object gateway has them.

An artifact that is to be deleted is noted beside its registry. The gateway, which follows registries, removes
it within milliseconds, or when it is there again. Until then it is shown as DELETING.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from neocloud.core import contract
from neocloud.core.service import Call, Method, NewOperation, Write, row_to_change
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.registry.v1 import (
    Artifact,
    DeleteArtifactRequest,
    GetArtifactRequest,
    ListArtifactsRequest,
    ListArtifactsResponse,
)
from neocloud.services.iam.types import SignedRequests
from neocloud.services.registry.types import (
    ARTIFACT_SERVICE,
    MAX_REMOVALS,
    REGISTRY,
    Artifacts,
    Removal,
    StoredArtifact,
    read_removals,
    write_removals,
)
from neocloud.services.storage.public import GatewayNotifier

PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000
_DELETING = Artifact.Status.Value("DELETING")


async def get(call: Call, request: GetArtifactRequest) -> Artifact:
    found = await find_artifact(call, request.id, "registry.images.get")
    return (await _shown(call, [found]))[0]


async def list_artifacts(call: Call, request: ListArtifactsRequest) -> ListArtifactsResponse:
    if request.filter:
        raise contract.bad_field("filter", "is not supported by this cloud yet; leave it unset")
    if request.page_size < 0:
        raise contract.bad_field("page_size", "must be positive, or 0 for the default")
    scope = f"{ARTIFACT_SERVICE}/List:{request.parent_id}"
    after = contract.page_after(request.page_token, scope, numbers=1)
    size = min(request.page_size or PAGE_SIZE, MAX_PAGE_SIZE)
    artifacts = call.dependencies.provided.get(Artifacts)
    start = int(after) if after else 0
    found, end = await asyncio.to_thread(artifacts.page, request.parent_id, start, size)
    return ListArtifactsResponse(
        items=await _shown(call, found),
        next_page_token=contract.page_token(str(end) if end else "", scope),
    )


async def delete(call: Call, request: DeleteArtifactRequest) -> Write[Operation]:
    found = await find_artifact(call, request.id, "registry.images.delete")
    if found.is_in_index:
        raise contract.bad_state(request.id, "An index names this image. Delete the index first.")
    now = call.dependencies.clock.now()

    def work(tx: Transaction) -> NewOperation:
        row = row_to_change(tx, REGISTRY, found.registry_id, "registry")
        removals = read_removals(tx, row.id)
        if len(removals) >= MAX_REMOVALS:
            raise contract.too_many_requests(
                f"{MAX_REMOVALS:,} images of {row.name} are being removed. Try again in a while."
            )
        changed = replace(row, resource_version=row.resource_version + 1, updated_at=now)
        removal = Removal(request.id, now, changed.resource_version)
        write_removals(tx, row.id, (*removals, removal))
        tx.update(changed)
        return NewOperation(changed, f"image {found.artifact.name} of registry {row.name}")

    return Write(work, after_commit=call.dependencies.provided.get(GatewayNotifier).notify)


async def find_artifact(call: Call, artifact_id: str, permission: str) -> StoredArtifact:
    """Raise ApiError (not found) also where the caller may not see it."""
    provided = call.dependencies.provided
    found = await asyncio.to_thread(provided.get(Artifacts).find, artifact_id)
    if found is None or call.subject is None:
        raise contract.not_found("artifact", artifact_id)
    rights = provided.get(SignedRequests)
    if not await rights.rights_of(call.subject, ("registry.images.get",), found.registry_id):
        raise contract.not_found("artifact", artifact_id)
    if not await rights.rights_of(call.subject, (permission,), found.registry_id):
        raise contract.permission_denied(
            permission, artifact_id, f'This needs the permission "{permission}".'
        )
    return found


async def _shown(call: Call, found: Sequence[StoredArtifact]) -> list[Artifact]:
    """Return artifacts; those that are to go say so."""
    registries = {each.registry_id for each in found}

    def read(tx: Transaction) -> set[tuple[str, datetime]]:
        return {
            (removal.artifact_id, removal.requested_at)
            for registry_id in registries
            for removal in read_removals(tx, registry_id)
        }

    leaving = dict(await call.dependencies.store.read(read))
    for each in found:
        requested_at = leaving.get(each.artifact.id)
        if requested_at is not None and contract.to_datetime(each.artifact.created_at) <= requested_at:
            each.artifact.status = _DELETING
    return [each.artifact for each in found]


METHODS = (
    Method(f"{ARTIFACT_SERVICE}/Get", get, ""),
    Method(
        f"{ARTIFACT_SERVICE}/List",
        list_artifacts,
        "registry.images.list",
        target=lambda request: request.parent_id,
    ),
    Method(f"{ARTIFACT_SERVICE}/Delete", delete, "", is_change=True),
)
"""The rights on one artifact are those on its registry, which is known once the artifact was found."""
