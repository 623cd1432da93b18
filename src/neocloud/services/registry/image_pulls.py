# pyright: strict
"""Images of registries that the control plane finds for resources of other services.

It asks the object gateway as any client does, with a key that acts as the account that made the resource, and
is limited to pulling one repository. The engine gets the same key; no workload and no log ever has it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta

import httpx

from neocloud.core import contract
from neocloud.core.callers import repository_limit
from neocloud.core.readers import Subject
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.services.iam.types import KeyLimit, SignedRequests, TemporaryKey, tenant_of
from neocloud.services.registry.image_documents import (
    IMAGES,
    INDEXES,
    config_of,
    manifest_for,
    read_document,
    settings_of,
    unusable,
)
from neocloud.services.registry.public import CannotPull, FoundImage, ImageName, PullProblem, image_name
from neocloud.services.registry.types import REGISTRY, REGISTRY_ID_PREFIX
from neocloud.services.storage.public import GatewayReports

PULL = "registry.images.pull"
KEY_LIFETIME = timedelta(minutes=35)
"""Longer than a pull may take. What it may do is decided at each request, by the rights of the account."""
ANSWER_SECONDS = 10.0
MOST_MANIFEST_BYTES = 4 * 1024**2
MOST_CONFIG_BYTES = 1024**2
_SECRET = "image-puller"  # nosec B105


@dataclass(frozen=True)
class _Allowed:
    """What a resource may pull, and as whom."""

    account_id: str
    registry_id: str
    registry: str
    repository: str
    reference: str

    @property
    def name(self) -> ImageName:
        return ImageName(self.registry, self.repository, self.reference)

    @property
    def path(self) -> str:
        return f"{self.registry}/{self.repository}"


class StoreImagePulls:
    """The ImagePulls of public.py."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies

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
        allowed = _Allowed(subject.id, registry_id, **vars(name))
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

    @property
    def _requests(self) -> SignedRequests:
        return self._dependencies.provided.get(SignedRequests)

    async def _client(self, resource_id: str) -> "_Client":
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
        return _Client(endpoint, allowed, key)


def _read(tx: Transaction, resource_id: str) -> _Allowed | None:
    raw = tx.secret(resource_id, _SECRET)
    return _Allowed(**json.loads(raw)) if raw else None


def _allowed(tx: Transaction, resource_id: str) -> tuple[_Allowed, Resource] | None:
    allowed = _read(tx, resource_id)
    row = tx.get(allowed.registry_id) if allowed is not None else None
    return (allowed, row) if allowed is not None and row is not None and _is_served(row) else None


def _is_served(row: Resource) -> bool:
    return row.kind == REGISTRY and row.deleted_at is None


class _Client:
    """Reads the documents of one repository. Its methods raise CannotPull."""

    def __init__(self, endpoint: str, allowed: _Allowed, key: TemporaryKey) -> None:
        self.endpoint = endpoint
        self.allowed = allowed
        self.key = key
        self._headers: dict[str, str] = {}
        self._http = httpx.AsyncClient(
            base_url=f"http://{endpoint}", timeout=ANSWER_SECONDS, trust_env=False, follow_redirects=False
        )

    async def __aenter__(self) -> "_Client":
        try:
            params = {"scope": f"repository:{self.allowed.path}:pull", "service": self.endpoint}
            auth = httpx.BasicAuth(self.key.aws_access_key_id, self.key.secret)
            _, content = await self._get("/v2/token", MOST_CONFIG_BYTES, params=params, auth=auth)
            self._headers = {"Authorization": f"Bearer {read_document(content).get('token', '')}"}
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def manifest(self, reference: str) -> tuple[str, str, bytes]:
        """Return digest, media type and content."""
        path = f"/v2/{self.allowed.path}/manifests/{reference}"
        headers = {**self._headers, "Accept": ", ".join((*IMAGES, *INDEXES))}
        answered, content = await self._get(path, MOST_MANIFEST_BYTES, headers=headers)
        digest = _digest_of(content)
        if ":" in reference and digest != reference:
            raise unusable("its manifest is damaged")
        return digest, answered.get("content-type", ""), content

    async def blob(self, digest: str) -> bytes:
        path = f"/v2/{self.allowed.path}/blobs/{digest}"
        _, content = await self._get(path, MOST_CONFIG_BYTES, headers=self._headers)
        if _digest_of(content) != digest:
            raise unusable("its configuration is damaged")
        return content

    async def _get(
        self,
        path: str,
        most_bytes: int,
        *,
        params: Mapping[str, str] | None = None,
        auth: httpx.Auth | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[httpx.Headers, bytes]:
        found = bytearray()
        try:
            async with self._http.stream("GET", path, params=params, auth=auth, headers=headers) as answer:
                if answer.status_code != 200:
                    raise self._refused(answer.status_code)
                async for piece in answer.aiter_raw():
                    found += piece
                    if len(found) > most_bytes:
                        raise unusable("one of its documents is too large")
        except httpx.HTTPError as error:
            raise CannotPull(
                PullProblem.UNANSWERED, f"The registry does not answer ({type(error).__name__})."
            ) from error
        return answer.headers, bytes(found)

    def _refused(self, status: int) -> CannotPull:
        name = self.allowed.name
        if status in (401, 403):
            return CannotPull(
                PullProblem.FORBIDDEN,
                f"{name} may not be pulled any more by the account that made this. Restore its right"
                f" ({PULL}), or make it again with another account.",
            )
        if status == 404:
            return CannotPull(
                PullProblem.MISSING,
                f"There is no image {name} in its registry; push it, or name another one.",
            )
        return CannotPull(PullProblem.UNANSWERED, f"The registry answered with status {status}.")


def _digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
