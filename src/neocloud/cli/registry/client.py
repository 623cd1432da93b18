"""A client that pushes to one repository of the cloud's registry, signed in as the caller of `neo`.

Existing blobs are not sent again, so a push that was interrupted continues where it stopped, by whole
blobs. Tokens of the registry live for five minutes; each blob begins with a fresh one.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from neocloud.cli.registry.names import ArtifactName
from neocloud.cli.resources.lookup import ProjectClient
from neocloud.client.errors import ClientError
from neocloud.client.trust import verified_context

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
TIMEOUT = httpx.Timeout(600, connect=10)
TOKEN_SECONDS = 120.0
_CODES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 503: "UNAVAILABLE"}
Descriptor = Mapping[str, Any]


@dataclass(frozen=True)
class Blob:
    digest: str
    size: int


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def described(blob: Blob, media_type: str, annotations: Mapping[str, str] | None = None) -> Descriptor:
    found: dict[str, Any] = {"mediaType": media_type, "digest": blob.digest, "size": blob.size}
    return {**found, "annotations": dict(annotations)} if annotations else found


class RegistryClient:
    """Methods raise ClientError."""

    def __init__(self, cloud: ProjectClient, name: ArtifactName) -> None:
        from neocloud.cli.storage.service import endpoint_of, issue_key  # noqa: PLC0415  botocore

        key = issue_key(cloud.client, cloud.project)
        ca_file = cloud.profile.ca_file
        self._name = name
        self._tokens = cloud.client.tokens
        self._token, self._token_until = "", 0.0
        self._http = httpx.Client(
            base_url=endpoint_of(key, cloud.profile, cloud.client.endpoint),
            timeout=TIMEOUT,
            trust_env=False,
            verify=verified_context(ca_file) if ca_file else True,
        )

    def __enter__(self) -> "RegistryClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def has_blob(self, digest: str) -> bool:
        return self._ask("HEAD", f"blobs/{digest}", good=(200, 404)).status_code == 200

    def push_bytes(self, content: bytes) -> Blob:
        blob = Blob(digest_of(content), len(content))
        return blob if self.has_blob(blob.digest) else self.push_blob([content])

    def push_blob(self, chunks: Iterable[bytes]) -> Blob:
        """Send a blob whose digest is known once it was sent."""
        begun = self._ask("POST", "blobs/uploads/", good=(202,))
        sent = _Sent(chunks)
        added = self._ask("PATCH", _place(begun), good=(202,), content=iter(sent))
        digest = sent.digest
        self._ask("PUT", _place(added), good=(201,), params={"digest": digest})
        return Blob(digest, sent.size)

    def push_manifest(self, config: Descriptor, layers: Sequence[Descriptor], **more: Any) -> str:
        """Push the manifest under the name's tag; return its digest."""
        document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers, **more}
        content = json.dumps(document, indent=2).encode()
        headers = {"Content-Type": OCI_MANIFEST}
        self._ask("PUT", f"manifests/{self._name.tag}", good=(201,), content=content, headers=headers)
        return digest_of(content)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        good: Sequence[int],
        params: Mapping[str, str] | None = None,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        url = path if path.startswith("/") else f"/v2/{self._name.path}/{path}"
        try:
            sent = {**(headers or {}), "Authorization": f"Bearer {self._bearer()}"}
            answer = self._http.request(method, url, params=params, content=content, headers=sent)
        except httpx.HTTPError as error:
            raise _unanswered(error) from error
        if answer.status_code not in good:
            raise self._refusal(answer)
        return answer

    def _bearer(self) -> str:
        if time.monotonic() < self._token_until:
            return self._token
        params = {"scope": f"repository:{self._name.path}:pull,push"}
        answer = self._http.get("/v2/token", params=params, auth=("iam", self._tokens.token()))
        if answer.status_code == 401:
            self._tokens.forget()
            answer = self._http.get("/v2/token", params=params, auth=("iam", self._tokens.token()))
        if answer.status_code != 200:
            raise self._refusal(answer)
        self._token, self._token_until = str(answer.json()["token"]), time.monotonic() + TOKEN_SECONDS
        return self._token

    def _refusal(self, answer: httpx.Response) -> ClientError:
        code = _CODES.get(answer.status_code, "UNKNOWN")
        try:
            message = str(answer.json()["errors"][0]["message"])
        except (ValueError, KeyError, IndexError, TypeError):
            message = f"the registry answered with status {answer.status_code}"
        return ClientError(code, f"{self._name}: {message}")


class _Sent:
    """Chunks on their way, with the digest of what has gone."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._found = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._found.update(chunk)
            self.size += len(chunk)
            yield chunk

    @property
    def digest(self) -> str:
        return f"sha256:{self._found.hexdigest()}"


def _place(answer: httpx.Response) -> str:
    """Return the path of an upload. The host in it is not believed: nothing is sent elsewhere."""
    found = urlsplit(str(answer.headers.get("Location", "")))
    return f"{found.path}?{found.query}" if found.query else found.path


def _unanswered(error: Exception) -> ClientError:
    why = str(error) or type(error).__name__
    return ClientError(
        "UNAVAILABLE",
        f"The push was cut off: {why}",
        "Run the command again: what has arrived is not sent again; `neo status` shows the gateway",
    )
