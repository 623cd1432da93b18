"""A client of one repository of a registry of this cloud, with the key of a resource.

Its input is hostile: documents are bounded, digests are compared, and no redirect is followed.
"""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import BinaryIO

import httpx

from neocloud.core import digests
from neocloud.core.cleanup import aundo_on_error
from neocloud.services.iam.types import TemporaryKey
from neocloud.services.registry.image_documents import IMAGES, INDEXES, read_document
from neocloud.services.registry.public import ArtifactFile, CannotPull, ImageName, PullProblem

PULL = "registry.images.pull"
ANSWER_SECONDS = 10.0
MOST_MANIFEST_BYTES = 4 * 1024**2
MOST_CONFIG_BYTES = 1024**2
CHUNK_BYTES = 1024**2


class Damaged(Exception):
    """A blob arrived with other bytes than its digest says, or was cut off; another try may succeed."""


@dataclass(frozen=True)
class Allowed:
    """The repository that a resource may pull, and the account as which it pulls."""

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


class RepositoryClient:
    """Reads the documents of one repository. Its methods raise CannotPull."""

    def __init__(self, endpoint: str, allowed: Allowed, key: TemporaryKey) -> None:
        self.endpoint = endpoint
        self.allowed = allowed
        self.key = key
        self._headers: dict[str, str] = {}
        self._http = httpx.AsyncClient(
            base_url=f"http://{endpoint}", timeout=ANSWER_SECONDS, trust_env=False, follow_redirects=False
        )

    async def __aenter__(self) -> "RepositoryClient":
        async with aundo_on_error(self._http.aclose):
            params = {"scope": f"repository:{self.allowed.path}:pull", "service": self.endpoint}
            auth = httpx.BasicAuth(self.key.aws_access_key_id, self.key.secret)
            _, content = await self._get("/v2/token", MOST_CONFIG_BYTES, params=params, auth=auth)
            self._headers = {"Authorization": f"Bearer {read_document(content).get('token', '')}"}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def manifest(self, reference: str) -> tuple[str, str, bytes]:
        """Return digest, media type and content."""
        path = f"/v2/{self.allowed.path}/manifests/{reference}"
        headers = {**self._headers, "Accept": ", ".join((*IMAGES, *INDEXES))}
        answered, content = await self._get(path, MOST_MANIFEST_BYTES, headers=headers)
        digest = reference if ":" in reference else answered.get("docker-content-digest", "")
        if not _has(content, digest):
            raise self._unusable("its manifest is damaged")
        return digest, answered.get("content-type", ""), content

    async def blob(self, digest: str) -> bytes:
        path = f"/v2/{self.allowed.path}/blobs/{digest}"
        _, content = await self._get(path, MOST_CONFIG_BYTES, headers=self._headers)
        if not _has(content, digest):
            raise self._unusable("its configuration is damaged")
        return content

    async def download(self, file: ArtifactFile, target: BinaryIO, threads: Executor) -> None:
        """Write the blob of a file, in a thread. Raises CannotPull; Damaged; OSError."""
        is_given_up, loop = threading.Event(), asyncio.get_running_loop()
        try:
            await loop.run_in_executor(threads, self._download, file, target, is_given_up)
        finally:
            is_given_up.set()

    def _download(self, file: ArtifactFile, target: BinaryIO, is_given_up: threading.Event) -> None:
        url = f"http://{self.endpoint}/v2/{self.allowed.path}/blobs/{file.digest}"
        found, size, has_begun = digests.running(digests.algorithm_of(file.digest)), 0, False
        try:
            with (
                httpx.Client(timeout=ANSWER_SECONDS, trust_env=False, follow_redirects=False) as http,
                http.stream("GET", url, headers=self._headers) as answer,
            ):
                if answer.status_code != 200:
                    raise self._refused(answer.status_code)
                has_begun = True
                for piece in answer.iter_raw(CHUNK_BYTES):
                    size += len(piece)
                    if is_given_up.is_set() or size > file.size_bytes:
                        break
                    found.update(piece)
                    target.write(piece)
        except httpx.HTTPError as error:
            if has_begun:
                raise Damaged(f"was cut off ({type(error).__name__})") from error
            raise self._unanswered(error) from error
        if size != file.size_bytes or digests.written(found) != file.digest:
            raise Damaged("has other bytes than its digest says")

    def _unanswered(self, error: Exception) -> CannotPull:
        return CannotPull(PullProblem.UNANSWERED, f"The registry does not answer ({type(error).__name__}).")

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
                        raise self._unusable("one of its documents is too large")
        except httpx.HTTPError as error:
            raise self._unanswered(error) from error
        return answer.headers, bytes(found)

    def _unusable(self, why: str) -> CannotPull:
        return CannotPull(PullProblem.UNUSABLE, f"{self.allowed.name} cannot be used: {why}.")

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
                f"There is no {name} in its registry; push it, or name another one.",
            )
        return CannotPull(PullProblem.UNANSWERED, f"The registry answered with status {status}.")


def _has(content: bytes, digest: str) -> bool:
    return digests.is_digest(digest) and digests.digest_of(content, digests.algorithm_of(digest)) == digest
