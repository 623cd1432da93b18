"""Mirrors of registries elsewhere: what is brought in, who may bring it, and where answers may not lead."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from neocloud.core import digests
from neocloud.object_gateway.oci import mirror, upstreams
from neocloud.object_gateway.oci.upstream_registries import Upstream, upstream_of
from neocloud.object_store.errors import BlobUnknown
from tests.fast.object_gateway.oci.client import (
    INDEX,
    MANIFEST,
    Registry,
    code_of,
    digest_of,
    index,
    manifest,
)
from tests.fast.object_gateway.s3.served import Served, serving

NAME = "up.example"
CONFIG, LAYER = b'{"os": "linux"}', b"a layer from elsewhere"
IMAGE = manifest(CONFIG, LAYER)
OTHER = manifest(b'{"os": "windows"}', b"never asked for")
Answer = tuple[int, dict[str, str], bytes]
PULL = frozenset({"registry.images.pull"})


class Elsewhere:
    """A registry elsewhere, which gives the answers that it is set to."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[dict[str, str]], Answer]] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                found = outer.answers.get(self.path.partition("?")[0], (404, {}, b"{}"))
                sent = {name.lower(): value for name, value in self.headers.items()}
                status, headers, body = found(sent) if callable(found) else found
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def has(self, repository: str, tag: str, *contents: bytes, kind: str = MANIFEST) -> None:
        """Serve a manifest, the first of the contents, by tag and digest, and the rest as blobs."""
        for reference in (tag, digest_of(contents[0])):
            path = f"/v2/{repository}/manifests/{reference}"
            self.answers[path] = (200, {"Content-Type": kind}, contents[0])
        for blob in contents[1:]:
            self.answers[f"/v2/{repository}/blobs/{digest_of(blob)}"] = (200, {}, blob)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    found = Elsewhere()
    yield found
    found.close()


@pytest.fixture(scope="module")
def gateway(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("objects"), upstreams=(Upstream(NAME, elsewhere.url),)) as served:
        yield served


@pytest.fixture
def mirrored(gateway: Served) -> Iterator[Registry]:
    """A registry of its own for each test: what one has is not brought in again."""
    made = gateway.call(gateway.control_plane.make_registry())
    found = Registry(gateway, made.id, gateway.owner)
    yield found
    found.http.close()


@pytest.fixture
def there(repository: str) -> str:
    """A repository elsewhere that no other test uses."""
    return repository


@pytest.fixture(autouse=True)
def fresh(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "TAG_SECONDS", 0.0)
    elsewhere.asked.clear()


def pull(registry: Registry, repository: str, tag: str) -> bytes:
    """Pull as programs do: tag, image, config and layers, each compared; return the last layer."""
    found = registry.call("GET", f"{NAME}/{repository}", f"manifests/{tag}")
    assert found.status_code == 200, found.text
    assert found.headers["Docker-Content-Digest"] == digest_of(found.content)
    document = found.json()
    if "manifests" in document:
        return pull(registry, repository, document["manifests"][0]["digest"])
    content = b""
    for each in (document["config"], *document["layers"]):
        blob = registry.call("GET", f"{NAME}/{repository}", f"blobs/{each['digest']}")
        assert blob.status_code == 200 and digest_of(blob.content) == each["digest"], blob.text
        content = blob.content
    return content


def test_what_was_pulled_once_stays_while_the_registry_is_away(
    mirrored: Registry, elsewhere: Elsewhere, there: str
) -> None:
    elsewhere.has(there, "v1", index(IMAGE, OTHER), kind=INDEX)
    elsewhere.has(there, "image", IMAGE, CONFIG, LAYER)
    assert pull(mirrored, there, "v1") == LAYER
    head = mirrored.call("HEAD", f"{NAME}/{there}", "manifests/image")
    assert head.headers["Docker-Content-Digest"] == digest_of(IMAGE)
    elsewhere.answers.clear()
    elsewhere.asked.clear()
    assert pull(mirrored, there, "v1") == LAYER
    assert pull(mirrored, there, "image") == LAYER
    assert {path.rpartition("/")[2] for path in elsewhere.asked} == {"v1", "image"}, "blobs are there"
    tags = mirrored.call("GET", f"{NAME}/{there}", "tags/list").json()["tags"]
    assert tags == ["image", "v1"]


def test_what_is_named_by_sha512_is_brought_in(mirrored: Registry, elsewhere: Elsewhere, there: str) -> None:
    def described(content: bytes) -> dict[str, Any]:
        named = digests.digest_of(content, "sha512")
        elsewhere.answers[f"/v2/{there}/blobs/{named}"] = (200, {}, content)
        return {"mediaType": "application/octet-stream", "digest": named, "size": len(content)}

    body = json.dumps(
        {"schemaVersion": 2, "config": described(CONFIG), "layers": [described(LAYER)]}
    ).encode()
    digest = digests.digest_of(body, "sha512")
    place = f"/v2/{there}/manifests/{digest}"
    elsewhere.answers[place] = (200, {"Content-Type": MANIFEST}, body)
    here = f"{NAME}/{there}"
    assert mirrored.call("GET", here, f"manifests/{digest}").content == body
    for content in (CONFIG, LAYER):
        named = digests.digest_of(content, "sha512")
        assert mirrored.call("GET", here, f"blobs/{named}").content == content
    elsewhere.answers.clear()
    found = mirrored.call("GET", here, f"manifests/{digest}")
    assert (found.content, found.headers["Docker-Content-Digest"]) == (body, digest)
    elsewhere.answers[f"/v2/{there}/blobs/{digest}"] = (200, {}, b"another")
    assert code_of(mirrored.call("GET", here, f"blobs/{digest}")) == (502, "UNAVAILABLE")


def test_a_tag_that_moves_is_followed_and_no_old_image_takes_it_back(
    mirrored: Registry, elsewhere: Elsewhere, there: str
) -> None:
    first = manifest(CONFIG, b"the first layer")
    elsewhere.has(there, "v1", first, CONFIG, b"the first layer")
    assert mirrored.call("GET", f"{NAME}/{there}", "manifests/v1").content == first  # its layers are not here
    elsewhere.has(there, "v1", IMAGE, CONFIG, LAYER)
    assert pull(mirrored, there, "v1") == LAYER
    assert pull(mirrored, there, digest_of(first)) == b"the first layer"
    elsewhere.answers.clear()
    assert mirrored.call("GET", f"{NAME}/{there}", "manifests/v1").content == IMAGE


def test_a_token_is_asked_for_and_goes_to_that_registry_alone(
    mirrored: Registry, elsewhere: Elsewhere, there: str
) -> None:
    elsewhere.has(there, "v1", IMAGE, CONFIG)
    challenge = f'Bearer realm="{elsewhere.url}/token",service="s",scope="repository:{there}:pull"'

    def layer(headers: dict[str, str]) -> Answer:
        if headers.get("authorization") != "Bearer secret-token":
            return 401, {"WWW-Authenticate": challenge}, b""
        return 307, {"Location": "/moved"}, b""

    elsewhere.answers["/token"] = (200, {}, json.dumps({"token": "secret-token"}).encode())
    elsewhere.answers[f"/v2/{there}/blobs/{digest_of(LAYER)}"] = layer
    elsewhere.answers["/moved"] = (200, {}, LAYER)
    assert pull(mirrored, there, "v1") == LAYER
    assert any(f"scope=repository%3A{there.replace('/', '%2F')}%3Apull" in path for path in elsewhere.asked)


@pytest.fixture
def inner() -> Iterator[Elsewhere]:
    """Something that listens on this machine, and is none of a tenant's business."""
    found = Elsewhere()
    yield found
    found.close()


@pytest.mark.parametrize(
    "location",
    [
        "INNER/secret",
        "https://127.0.0.1:PORT/secret",
        "https://localhost:PORT/secret",
        "https://[::ffff:127.0.0.1]:PORT/secret",
        "https://169.254.169.254/latest/meta-data",
        "http://1.1.1.1/plain",
        "file:///etc/passwd",
        "https://user:password@1.1.1.1/",
        "https://[bad/",
        "https://1.1.1.1:99999999/",
        "//127.0.0.1:PORT/secret",
    ],
)
def test_answers_lead_to_no_private_address(
    mirrored: Registry, elsewhere: Elsewhere, inner: Elsewhere, there: str, location: str
) -> None:
    inner.answers["/secret"] = (200, {"Content-Type": MANIFEST}, IMAGE)
    where = location.replace("INNER", inner.url).replace("PORT", inner.url.rpartition(":")[2])
    path = f"/v2/{there}/manifests"
    elsewhere.answers[f"{path}/moved"] = (307, {"Location": where}, b"")
    challenge = f'Bearer realm="{where}",service="s"'
    elsewhere.answers[f"{path}/token"] = (401, {"WWW-Authenticate": challenge}, b"")
    for tag in ("moved", "token"):
        assert mirrored.call("GET", f"{NAME}/{there}", f"manifests/{tag}").status_code == 502
    assert inner.asked == []


def test_what_is_not_what_was_asked_for_is_not_kept(
    mirrored: Registry, elsewhere: Elsewhere, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digest_of(LAYER)
    elsewhere.has(there, "v1", IMAGE, CONFIG)
    elsewhere.answers[f"/v2/{there}/blobs/{digest}"] = (200, {}, b"something else")
    name = f"{NAME}/{there}"
    assert code_of(mirrored.call("GET", name, f"blobs/{digest}")) == (502, "UNAVAILABLE")
    cut = (200, {"Content-Length": str(len(LAYER) + 5)}, LAYER)
    elsewhere.answers[f"/v2/{there}/blobs/{digest}"] = cut
    assert mirrored.call("GET", name, f"blobs/{digest}").status_code == 502
    monkeypatch.setattr(mirror, "LARGEST_BLOB_BYTES", 5)
    elsewhere.answers[f"/v2/{there}/blobs/{digest}"] = (200, {}, LAYER)
    assert mirrored.call("GET", name, f"blobs/{digest}").status_code == 413
    with pytest.raises(BlobUnknown):
        mirrored.served.call(mirrored.served.store.blob_size(mirrored.id, name, digest))

    path = f"/v2/{there}/manifests"
    elsewhere.answers[f"{path}/{digest_of(OTHER)}"] = (200, {"Content-Type": MANIFEST}, IMAGE)
    assert mirrored.call("GET", name, f"manifests/{digest_of(OTHER)}").status_code == 502
    monkeypatch.setattr(upstreams, "MAX_MANIFEST_BYTES", 100)
    assert mirrored.call("GET", name, "manifests/v1").status_code == 502
    for tag, answer in {
        "page": (200, {"Content-Type": "text/html"}, b"<html>"),
        "text": (200, {"Content-Type": MANIFEST}, b"no JSON"),
        "loop": (307, {"Location": f"{path}/loop"}, b""),
        "fails": (500, {}, b""),
        "password": (401, {"WWW-Authenticate": 'Basic realm="x"'}, b""),
    }.items():
        elsewhere.answers[f"{path}/{tag}"] = answer
        assert mirrored.call("GET", name, f"manifests/{tag}").status_code in (400, 502), tag
    assert mirrored.call("GET", name, "tags/list").json().get("tags", []) == []


def test_who_may_not_push_brings_nothing_in(mirrored: Registry, elsewhere: Elsewhere, there: str) -> None:
    elsewhere.has(there, "v1", IMAGE, CONFIG, LAYER)
    name = f"{NAME}/{there}"
    puller = mirrored.served.account(permissions=PULL)
    token = mirrored.token(f"repository:{mirrored.name(name)}:*", account=puller)
    for rest in ("manifests/v1", f"blobs/{digest_of(LAYER)}"):
        assert mirrored.call("GET", name, rest, token=token).status_code == 404
    assert elsewhere.asked == []
    assert pull(mirrored, there, "v1") == LAYER
    for rest in ("manifests/v1", f"blobs/{digest_of(LAYER)}"):
        assert mirrored.call("GET", name, rest, token=token).status_code == 200


def test_other_repositories_are_no_mirrors(mirrored: Registry, elsewhere: Elsewhere, there: str) -> None:
    elsewhere.has(there, "v1", IMAGE, CONFIG, LAYER)
    for name in (there, f"team/{NAME}/{there}", f"other.example/{there}", NAME):
        assert mirrored.call("GET", name, "manifests/v1").status_code == 404
    assert elsewhere.asked == []


@pytest.mark.parametrize(
    "text",
    [
        "docker.io",
        "docker.io=",
        "docker.io=ftp://x",
        "docker.io=http://192.0.2.1",
        "Docker.io=https://x.example",
        "docker.io/library=https://x.example",
        "docker.io=https://user:password@x.example",
        "docker.io=https://x.example/v2",
    ],
)
def test_what_names_no_registry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="registry"):
        upstream_of(text)


def test_an_operator_names_registries() -> None:
    found = upstream_of("docker.io=https://registry-1.docker.io/")
    assert found == Upstream("docker.io", "https://registry-1.docker.io")
