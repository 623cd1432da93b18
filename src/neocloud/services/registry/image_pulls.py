"""Images and other artifacts of registries that the control plane finds for resources of other services.

It asks the object gateway as any client does, with a key that acts as the account that made the resource, and
is limited to pulling one repository. The engine gets the same key; no workload and no log ever has it.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from typing import BinaryIO

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.data_plane.access_keys import KeyLimit, repository_limit
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.services.iam.types import SignedRequests, tenant_of
from neocloud.services.registry.artifact_files import files_of
from neocloud.services.registry.image_documents import (
    IMAGES,
    INDEXES,
    config_of,
    manifest_for,
    read_document,
    settings_of,
    unusable,
)
from neocloud.services.registry.public import (
    ArtifactFile,
    CannotPull,
    FoundImage,
    ImageName,
    PullProblem,
    image_name,
)
from neocloud.services.registry.repository_client import (
    MOST_CONFIG_BYTES,
    PULL,
    Allowed,
    Damaged,
    RepositoryClient,
)
from neocloud.services.registry.types import REGISTRY, REGISTRY_ID_PREFIX
from neocloud.services.storage.public import GatewayReports

KEY_LIFETIME = timedelta(minutes=35)
"""Longer than a pull may take. Its rights are decided at each request, by the rights of the account."""
DAMAGED_WAITS_SECONDS = (1.0, 4.0, 15.0)
"""Before each further try of a file that arrived damaged: longer than the gateway needs to start again."""
MOST_DOWNLOADS = 8
_SECRET = "image-puller"  # nosec B105


class StoreImagePulls:
    """The ImagePulls of public.py."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        # Files take minutes: they must not keep the control plane's other work from a thread.
        self._threads = ThreadPoolExecutor(MOST_DOWNLOADS, "artifact")

    @property
    def _endpoint(self) -> str:
        reports = self._dependencies.provided.find(GatewayReports)
        return reports.endpoint if reports is not None else ""

    def name_of(self, image: str) -> ImageName | None:
        endpoint = self._endpoint
        if not endpoint or not image.startswith(f"{endpoint}/"):
            return None
        found = image_name(image.removeprefix(f"{endpoint}/"))
        if found is None:
            raise ValueError(
                f"{image[:80]!r} cannot be read: give REGISTRY_FQDN/REPOSITORY:TAG or @sha256:DIGEST"
            )
        return found

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, name: ImageName
    ) -> None:
        registry_id = f"{REGISTRY_ID_PREFIX}-{name.registry}"
        row, tenant = tx.get(registry_id), tenant_of(resource.parent_id, tx.get)
        if row is None or not _is_served(row) or tenant_of(row.parent_id, tx.get) != tenant:
            # Another tenant's registry is answered in the same words as one that does not exist.
            raise contract.not_found("registry", registry_id)
        if subject is None:
            raise contract.unauthenticated("This call needs a token; sign in first.")
        refusal = self._requests.refusal(tx, subject, PULL, registry_id)
        if refusal is not None:
            raise refusal
        allowed = Allowed(subject.id, registry_id, **vars(name))
        tx.put_secret(resource.id, _SECRET, json.dumps(asdict(allowed)).encode())

    async def image_of(self, resource_id: str) -> ImageName | None:
        found = await self._dependencies.store.read(lambda tx: _read(tx, resource_id))
        return found.name if found is not None else None

    async def digest(self, resource_id: str) -> str:
        async with await self._client(resource_id) as registry:
            return (await registry.manifest(registry.allowed.reference))[0]

    async def find(self, resource_id: str, digest: str, size_bytes: int) -> FoundImage:
        async with await self._client(resource_id) as registry:
            _, kind, content = await registry.manifest(digest)
            document = read_document(content)
            if kind in INDEXES:
                digest = manifest_for(document)
                _, kind, content = await registry.manifest(digest)
                document = read_document(content)
            if kind not in IMAGES:
                raise unusable(f"it has the type {kind:.80}")
            config, size = config_of(document, size_bytes)
            if size > MOST_CONFIG_BYTES:
                raise unusable("its configuration is too large")
            settings = settings_of(read_document(await registry.blob(config)))
            source = f"{registry.endpoint}/{registry.allowed.path}@{digest}"
            return FoundImage(source, registry.key.aws_access_key_id, registry.key.secret, settings)

    async def files(self, resource_id: str, digest: str = "") -> tuple[str, Sequence[ArtifactFile]]:
        async with await self._client(resource_id) as registry:
            found, _, content = await registry.manifest(digest or registry.allowed.reference)
            return found, files_of(read_document(content))

    async def fetch(self, resource_id: str, file: ArtifactFile, target: BinaryIO) -> None:
        for wait in (*DAMAGED_WAITS_SECONDS, None):
            try:
                async with await self._client(resource_id) as registry:
                    await registry.download(file, target, self._threads)
                return
            except Damaged as error:
                if wait is None:
                    tries = len(DAMAGED_WAITS_SECONDS) + 1
                    raise CannotPull(
                        PullProblem.UNUSABLE,
                        f"{file.name} {error}, at each of {tries} tries. Push it again; the operator finds"
                        " out more with `neo storage verify`.",
                    ) from error
            target.seek(0)
            target.truncate()
            await self._dependencies.clock.sleep(wait)

    @property
    def _requests(self) -> SignedRequests:
        return self._dependencies.provided.get(SignedRequests)

    async def _client(self, resource_id: str) -> RepositoryClient:
        found = await self._dependencies.store.read(lambda tx: _allowed(tx, resource_id))
        if found is None:
            raise CannotPull(
                PullProblem.MISSING, "The registry of the image was deleted since this was made."
            )
        allowed, row = found
        endpoint = self._endpoint
        if not endpoint:
            raise CannotPull(PullProblem.UNANSWERED, "The object gateway does not run yet.")
        limit = KeyLimit(row.id, repository_limit(allowed.repository))
        key = await self._requests.limited_key(allowed.account_id, row.parent_id, limit, KEY_LIFETIME)
        return RepositoryClient(endpoint, allowed, key)


def _read(tx: Transaction, resource_id: str) -> Allowed | None:
    raw = tx.secret(resource_id, _SECRET)
    return Allowed(**json.loads(raw)) if raw else None


def _allowed(tx: Transaction, resource_id: str) -> tuple[Allowed, Resource] | None:
    allowed = _read(tx, resource_id)
    row = tx.get(allowed.registry_id) if allowed is not None else None
    return (allowed, row) if allowed is not None and row is not None and _is_served(row) else None


def _is_served(row: Resource) -> bool:
    return row.kind == REGISTRY and row.deleted_at is None
