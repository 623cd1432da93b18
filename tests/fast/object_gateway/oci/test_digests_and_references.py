"""Digests of SHA-512, indexes that name blobs, sizes that are not true, and manifests with missing parts."""

import hashlib
import json
from typing import Any

import pytest

from tests.fast.object_gateway.oci.client import (
    DOCKER_LIST,
    INDEX,
    LAYER,
    MANIFEST,
    Registry,
    code_of,
    descriptor,
    digest_of,
    index,
    manifest,
    rest_of,
)
from tests.fast.object_gateway.s3.served import Served

CACHE_CONFIG = "application/vnd.buildkit.cacheconfig.v0"


def sha512(content: bytes) -> str:
    return f"sha512:{hashlib.sha512(content).hexdigest()}"


def described(content: bytes, media_type: str = LAYER, **more: Any) -> dict[str, Any]:
    return {**descriptor(content, media_type), "digest": sha512(content), **more}


def begun(registry: Registry, repository: str, **query: str) -> str:
    answer = registry.call("POST", repository, "blobs/uploads/", params=query)
    assert answer.status_code == 202, answer.text
    return rest_of(answer)


def put(registry: Registry, repository: str, content: bytes) -> str:
    """Push a blob by its SHA-512."""
    answer = registry.call(
        "POST", repository, "blobs/uploads/", params={"digest": sha512(content)}, content=content
    )
    assert answer.status_code == 201, answer.text
    assert answer.headers["Docker-Content-Digest"] == sha512(content)
    return sha512(content)


@pytest.mark.parametrize("algorithm", ["", "sha256", "sha512"])
@pytest.mark.parametrize("is_last_in_put", [False, True])
def test_chunks_of_any_algorithm(
    registry: Registry, repository: str, algorithm: str, is_last_in_put: bool
) -> None:
    """The digest's algorithm may be announced at the beginning, and is known at the end."""
    place = begun(registry, repository, **({"digest-algorithm": algorithm} if algorithm else {}))
    chunks = [b"one ", b"two ", b"three"]
    last = chunks.pop() if is_last_in_put else b""
    for chunk in chunks:
        assert registry.call("PATCH", repository, place, content=chunk).status_code == 202
    whole = b"".join(chunks) + last
    answer = registry.call("PUT", repository, place, params={"digest": sha512(whole)}, content=last)
    assert answer.status_code == 201, answer.text
    assert registry.call("GET", repository, f"blobs/{sha512(whole)}").content == whole


def test_an_upload_goes_on_after_a_restart_by_either_algorithm(
    registry: Registry, repository: str, served: Served
) -> None:
    for digest in (digest_of, sha512):
        place = begun(registry, repository)
        assert registry.call("PATCH", repository, place, content=b"before ").status_code == 202
        served.store.received.forget(place.rpartition("/")[2])  # as a new process knows it
        query = {"digest": digest(b"before after")}
        assert registry.call("PUT", repository, place, params=query, content=b"after").status_code == 201


@pytest.mark.parametrize(
    "digest",
    [
        sha512(b"other"),
        sha512(b"layer")[:-1],
        "sha512:" + "0" * 64,
        "sha384:" + "0" * 96,
        sha512(b"x").upper(),
    ],
)
def test_digests_that_are_not_of_the_content(registry: Registry, repository: str, digest: str) -> None:
    for query in ({"digest": digest}, {"digest": digest, "digest-algorithm": "sha512"}):
        answer = registry.call("POST", repository, "blobs/uploads/", params=query, content=b"layer")
        assert code_of(answer) == (400, "DIGEST_INVALID")
    answer = registry.call("POST", repository, "blobs/uploads/", params={"digest-algorithm": "md5"})
    assert code_of(answer) == (400, "DIGEST_INVALID")


def test_an_image_of_sha512(registry: Registry, repository: str) -> None:
    config, layer = b'{"made": "by sha512"}', b"a layer"
    for each in (config, layer):
        put(registry, repository, each)
    content = json.dumps(
        {"schemaVersion": 2, "config": described(config), "layers": [described(layer)], "mediaType": MANIFEST}
    ).encode()
    digest = sha512(content)
    answer = registry.push(repository, f"{digest}?tag=v1&tag=v2&tag=v1", content)
    assert answer.status_code == 201, answer.text
    assert answer.headers["OCI-Tag"] == "v1, v2" and answer.headers["Docker-Content-Digest"] == digest
    for reference in (digest, "v1", "v2"):
        found = registry.call("GET", repository, f"manifests/{reference}")
        assert (found.content, found.headers["Docker-Content-Digest"]) == (content, digest)
    ranged = registry.call("GET", repository, f"blobs/{sha512(layer)}", headers={"Range": "bytes=2-"})
    assert (ranged.status_code, ranged.content) == (206, b"layer")
    about = manifest(b"{}", subject=described(content, MANIFEST))
    registry.push_blob(repository, b"{}")
    pushed = registry.push(repository, "about", about)
    assert pushed.headers["OCI-Subject"] == digest
    assert registry.call("GET", repository, f"referrers/{digest}").json()["manifests"][0]["digest"] == (
        digest_of(about)
    )
    other = f"{repository}-other"
    mounted = registry.call(
        "POST",
        other,
        "blobs/uploads/",
        params={"mount": sha512(layer), "from": registry.name(repository)},
        token=registry.token(
            f"repository:{registry.name(repository)}:pull", f"repository:{registry.name(other)}:push,pull"
        ),
    )
    assert mounted.status_code == 201
    assert code_of(registry.call("DELETE", repository, f"blobs/{sha512(layer)}")) == (405, "UNSUPPORTED")
    assert registry.call("DELETE", repository, f"manifests/{digest}").status_code == 202
    assert registry.call("DELETE", repository, f"blobs/{sha512(layer)}").status_code == 202
    assert registry.call("GET", repository, "manifests/v1").status_code == 404


@pytest.mark.parametrize(
    "tags", ["tag=", "tag=a%20b", "tag=" + "x" * 129, "&".join(f"tag=t{n}" for n in range(60))]
)
def test_tags_of_the_query_that_are_none(registry: Registry, repository: str, tags: str) -> None:
    content = registry.push_image(repository, "v1")
    answer = registry.push(repository, f"{digest_of(content)}?{tags}", content)
    assert answer.status_code in (400, 414)
    assert registry.call("GET", repository, "tags/list").json()["tags"] == ["v1"]


def cache(*layers: bytes, media_type: str = INDEX) -> bytes:
    """Return an index as BuildKit exports a cache: of layers, and of its own configuration."""
    entries = [descriptor(each, "application/vnd.docker.image.rootfs.diff.tar.gzip") for each in layers]
    entries.append(descriptor(b"{}", CACHE_CONFIG))
    return json.dumps({"schemaVersion": 2, "mediaType": media_type, "manifests": entries}).encode()


@pytest.mark.parametrize("media_type", [INDEX, DOCKER_LIST])
def test_an_index_of_blobs(registry: Registry, repository: str, media_type: str) -> None:
    for blob in (b"one", b"two", b"{}"):
        registry.push_blob(repository, blob)
    content = cache(b"one", b"two", media_type=media_type)
    assert registry.push(repository, "cache", content, media_type).status_code == 201
    assert registry.call("GET", repository, "manifests/cache").content == content
    assert code_of(registry.call("DELETE", repository, f"blobs/{digest_of(b'one')}"))[0] == 405
    missing = registry.push(repository, "cache", cache(b"one", b"three"), INDEX)
    assert code_of(missing) == (404, "MANIFEST_BLOB_UNKNOWN") and digest_of(b"three") in missing.text


def test_an_index_of_a_manifest_and_a_blob(registry: Registry, repository: str) -> None:
    image = registry.push_image(repository, "v1")
    registry.push_blob(repository, b"one")
    entries = [descriptor(image, MANIFEST), descriptor(b"one", LAYER)]
    content = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    assert registry.push(repository, "both", content, INDEX).status_code == 201
    for place in (f"blobs/{digest_of(b'one')}", f"manifests/{digest_of(image)}"):
        assert registry.call("DELETE", repository, place).status_code == 405
    blob_as_manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor(b"one", MANIFEST)]}
    ).encode()
    assert code_of(registry.push(repository, "x", blob_as_manifest, INDEX))[1] == "MANIFEST_BLOB_UNKNOWN"


@pytest.mark.parametrize("place", ["layer", "config", "smaller", "twice"])
def test_sizes_that_are_not_true(registry: Registry, repository: str, place: str) -> None:
    for blob in (b"{}", b"layer"):
        registry.push_blob(repository, blob)
    document = json.loads(manifest(b"{}", b"layer"))
    if place == "config":
        document["config"]["size"] = 3
    elif place == "twice":
        document["layers"].append({**document["layers"][0], "size": 4})
    else:
        document["layers"][0]["size"] = 99_999_999 if place == "layer" else 0
    answer = registry.push(repository, "v1", json.dumps(document).encode())
    assert code_of(answer) == (400, "MANIFEST_INVALID") and "size" in answer.text or "bytes" in answer.text
    assert registry.call("GET", repository, "manifests/v1").status_code == 404


def test_sizes_of_manifests_that_are_not_true(registry: Registry, repository: str) -> None:
    image = registry.push_image(repository, "v1")
    document = json.loads(index(image))
    document["manifests"][0]["size"] += 1
    answer = registry.push(repository, "all", json.dumps(document).encode(), INDEX)
    assert code_of(answer) == (400, "MANIFEST_INVALID")


def test_a_registry_may_take_manifests_without_all_that_they_name(served: Served, repository: str) -> None:
    made = served.call(served.control_plane.make_registry(allows_sparse=True))
    registry = Registry(served, made.id, served.owner)
    child, config, layer = manifest(b"{}", b"layer"), b"{}", b"layer"
    both = index(child, b"a platform that nobody needs")
    assert registry.push(repository, "all", both, INDEX).status_code == 201
    assert registry.push(repository, digest_of(child), child).status_code == 201
    assert registry.call("GET", repository, f"blobs/{digest_of(layer)}").status_code == 404
    for blob in (config, layer):
        registry.push_blob(repository, blob)
    # What came later is in use as if it had come before.
    for place in (f"manifests/{digest_of(child)}", f"blobs/{digest_of(layer)}"):
        assert code_of(registry.call("DELETE", repository, place)) == (405, "UNSUPPORTED")
    wrong = json.loads(child)
    wrong["layers"][0]["size"] = 1
    assert code_of(registry.push(repository, "w", json.dumps(wrong).encode()))[1] == "MANIFEST_INVALID"
    for reference in (digest_of(both), digest_of(child)):
        assert registry.call("DELETE", repository, f"manifests/{reference}").status_code == 202
    assert registry.call("DELETE", repository, f"blobs/{digest_of(layer)}").status_code == 202
    registry.http.close()
