"""A client of the registry that sends exactly the given requests, and images to push."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from neocloud.testing.object_control_plane import Account
from tests.fast.object_gateway.s3.served import Served

OCI = "application/vnd.oci.image"
MANIFEST, INDEX = f"{OCI}.manifest.v1+json", f"{OCI}.index.v1+json"
CONFIG, LAYER = f"{OCI}.config.v1+json", f"{OCI}.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
EMPTY = "application/vnd.oci.empty.v1+json"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(content: bytes, media_type: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content), **more}


def manifest(config: bytes, *layers: bytes, config_type: str = CONFIG, **more: Any) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(config, config_type),
        "layers": [descriptor(each, LAYER) for each in layers],
        **more,
    }
    return json.dumps(document, indent=3).encode()


def index(*manifests: bytes, **more: Any) -> bytes:
    described = [descriptor(each, MANIFEST) for each in manifests]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": described, **more}).encode()


@dataclass
class Registry:
    served: Served
    id: str
    account: Account
    scopes: tuple[str, ...] = ()
    """"": all actions on every name that a request is for."""
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.served.url, timeout=20, trust_env=False)

    @property
    def short(self) -> str:
        return self.id.partition("-")[2]

    def name(self, repository: str) -> str:
        return f"{self.short}/{repository}"

    def token(self, *scopes: str, account: Account | None = None) -> str:
        """Return a token of the registry, asked for with an access key."""
        who = account or self.account
        answer = self.http.get(
            "/v2/token", params={"scope": scopes}, auth=(who.aws_access_key_id, who.secret)
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["token"]

    def call(
        self, method: str, repository: str, rest: str, *, token: str | None = None, **options: Any
    ) -> httpx.Response:
        """Call with a token for all actions on the repository."""
        name = self.name(repository)
        if token is None:
            scope = f"repository:{name}:*"
            token = self.tokens.get(scope) or self.tokens.setdefault(scope, self.token(scope))
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        return self.http.request(method, f"/v2/{name}/{rest}", headers=headers, **options)

    def push_blob(self, repository: str, content: bytes) -> str:
        digest = digest_of(content)
        answer = self.call("POST", repository, "blobs/uploads/", params={"digest": digest}, content=content)
        assert answer.status_code == 201, answer.text
        return digest

    def begin(self, repository: str) -> str:
        """Return what follows the name in the location of a new upload."""
        answer = self.call("POST", repository, "blobs/uploads/")
        assert answer.status_code == 202, answer.text
        return rest_of(answer)

    def push(
        self, repository: str, reference: str, content: bytes, media_type: str = MANIFEST
    ) -> httpx.Response:
        return self.call(
            "PUT",
            repository,
            f"manifests/{reference}",
            content=content,
            headers={"Content-Type": media_type},
        )

    def push_image(self, repository: str, tag: str, text: str = "", **more: Any) -> bytes:
        """Push an image of one layer, and return its manifest."""
        config, layer = json.dumps({"made": text or tag}).encode(), f"layer of {text or tag}".encode()
        for each in (config, layer):
            self.push_blob(repository, each)
        content = manifest(config, layer, **more)
        answer = self.push(repository, tag, content)
        assert answer.status_code == 201, answer.text
        return content


def rest_of(answer: httpx.Response) -> str:
    """Return what follows the name in a location."""
    return "blobs/" + answer.headers["Location"].partition("/blobs/")[2]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["errors"][0]["code"]
