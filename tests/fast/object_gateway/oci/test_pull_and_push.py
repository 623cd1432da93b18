"""The OCI distribution specification 1.1: pull and push of blobs and manifests."""

import json
import os

import httpx
import pytest

from tests.fast.object_gateway.oci.client import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    EMPTY,
    INDEX,
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
from tests.fast.object_store.stores import read

ABSENT = digest_of(b"no registry has this")
LARGE = os.urandom(300_000)


def test_the_base_answers_with_a_token_and_says_where_to_get_one(registry: Registry) -> None:
    asked = registry.http.get("/v2/")
    assert asked.status_code == 401 and code_of(asked) == (401, "UNAUTHORIZED")
    challenge = asked.headers["WWW-Authenticate"]
    assert challenge.startswith("Bearer ") and f'realm="{registry.served.url}/v2/token"' in challenge
    assert asked.headers["Docker-Distribution-Api-Version"] == "registry/2.0"
    for path in ("/v2/", "/v2"):
        answer = registry.http.get(path, headers={"Authorization": f"Bearer {registry.token()}"})
        assert answer.status_code == 200 and answer.json() == {}


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_a_blob_in_one_post(registry: Registry, repository: str, content: bytes) -> None:
    digest = digest_of(content)
    answer = registry.call("POST", repository, "blobs/uploads/", params={"digest": digest}, content=content)
    assert answer.status_code == 201 and answer.headers["Docker-Content-Digest"] == digest
    got = registry.call("GET", repository, rest_of(answer))
    assert got.status_code == 200 and got.content == content
    assert got.headers["Docker-Content-Digest"] == digest


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_a_blob_in_a_post_and_a_put(registry: Registry, repository: str, content: bytes) -> None:
    digest = digest_of(content)
    place = registry.begin(repository)
    answer = registry.call("PUT", repository, place, params={"digest": digest}, content=content)
    assert answer.status_code == 201 and rest_of(answer) == f"blobs/{digest}"
    assert registry.call("GET", repository, f"blobs/{digest}").content == content


def test_a_blob_in_chunks(registry: Registry, repository: str) -> None:
    place, size = registry.begin(repository), 0
    for chunk in (LARGE[:100], LARGE[100:200_000], LARGE[200_000:]):
        headers = {"Content-Range": f"{size}-{size + len(chunk) - 1}"}
        answer = registry.call("PATCH", repository, place, content=chunk, headers=headers)
        size += len(chunk)
        assert (answer.status_code, answer.headers["Range"]) == (202, f"0-{size - 1}")
        place = rest_of(answer)
    answer = registry.call("PUT", repository, place, params={"digest": digest_of(LARGE)})
    assert answer.status_code == 201
    assert registry.call("GET", repository, rest_of(answer)).content == LARGE


def test_the_last_chunk_may_come_with_the_put(registry: Registry, repository: str) -> None:
    place = registry.begin(repository)
    registry.call("PATCH", repository, place, content=b"first ")
    answer = registry.call(
        "PUT",
        repository,
        place,
        params={"digest": digest_of(b"first last")},
        content=b"last",
        headers={"Content-Range": "6-9"},
    )
    assert answer.status_code == 201


def test_a_chunk_of_unknown_length(registry: Registry, repository: str) -> None:
    """Podman sends chunks in this form."""
    place = registry.begin(repository)
    answer = registry.call("PATCH", repository, place, content=iter([b"one ", b"two ", b"three"]))
    assert (answer.status_code, answer.headers["Range"]) == (202, "0-12")
    done = registry.call("PUT", repository, place, params={"digest": digest_of(b"one two three")})
    assert done.status_code == 201


@pytest.mark.parametrize("first", [0, 3, 5, 100])
def test_a_chunk_out_of_order_is_refused_and_the_upload_goes_on(
    registry: Registry, repository: str, first: int
) -> None:
    place = registry.begin(repository)
    registry.call("PATCH", repository, place, content=b"four")
    wrong = registry.call(
        "PATCH", repository, place, content=b"x", headers={"Content-Range": f"{first}-{first}"}
    )
    assert code_of(wrong) == (416, "RANGE_INVALID")
    assert wrong.headers["Range"] == "0-3" and rest_of(wrong) == place
    status = registry.call("GET", repository, place)
    assert (status.status_code, status.headers["Range"], rest_of(status)) == (204, "0-3", place)
    again = registry.call("PATCH", repository, place, content=b"teen", headers={"Content-Range": "4-7"})
    assert again.status_code == 202
    done = registry.call("PUT", repository, place, params={"digest": digest_of(b"fourteen")})
    assert done.status_code == 201


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("0-2", "SIZE_INVALID"),
        ("5-1", "RANGE_INVALID"),
        ("0-", "BLOB_UPLOAD_INVALID"),
        ("x", "BLOB_UPLOAD_INVALID"),
    ],
)
def test_a_content_range_that_cannot_be_true(
    registry: Registry, repository: str, given: str, code: str
) -> None:
    place = registry.begin(repository)
    answer = registry.call("PATCH", repository, place, content=b"four", headers={"Content-Range": given})
    assert answer.json()["errors"][0]["code"] == code and answer.status_code in (400, 416)


def test_an_upload_is_given_up(registry: Registry, repository: str) -> None:
    place = registry.begin(repository)
    assert registry.call("DELETE", repository, place).status_code == 204
    assert code_of(registry.call("GET", repository, place)) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert code_of(registry.call("PATCH", repository, place, content=b"x")) == (404, "BLOB_UPLOAD_UNKNOWN")


@pytest.mark.parametrize("way", ["post", "put", "chunks"])
def test_a_blob_of_another_digest_is_refused(registry: Registry, repository: str, way: str) -> None:
    wrong = {"digest": digest_of(b"something else")}
    if way == "post":
        answer = registry.call("POST", repository, "blobs/uploads/", params=wrong, content=b"content")
    else:
        place = registry.begin(repository)
        content = b"content"
        if way == "chunks":
            registry.call("PATCH", repository, place, content=b"content")
            content = b""
        answer = registry.call("PUT", repository, place, params=wrong, content=content)
    assert code_of(answer) == (400, "DIGEST_INVALID")
    assert registry.call("HEAD", repository, f"blobs/{wrong['digest']}").status_code == 404
    assert registry.call("HEAD", repository, f"blobs/{digest_of(b'content')}").status_code == 404


@pytest.mark.parametrize("digest", ["sha256:12", "sha512:" + "0" * 128, "md5", "sha256:" + "G" * 64, ""])
def test_digests_that_are_none(registry: Registry, repository: str, digest: str) -> None:
    answer = registry.call("POST", repository, "blobs/uploads/", params={"digest": digest}, content=b"x")
    assert code_of(answer) == (400, "DIGEST_INVALID")


def test_a_put_without_a_digest(registry: Registry, repository: str) -> None:
    answer = registry.call("PUT", repository, registry.begin(repository), content=b"x")
    assert code_of(answer) == (400, "DIGEST_INVALID")


def test_head_and_get_of_a_blob(registry: Registry, repository: str) -> None:
    digest = registry.push_blob(repository, b"0123456789")
    head = registry.call("HEAD", repository, f"blobs/{digest}")
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, "10", b"")
    assert head.headers["Docker-Content-Digest"] == digest
    absent = registry.call("HEAD", repository, f"blobs/{ABSENT}")
    assert (absent.status_code, absent.content) == (404, b"")
    assert code_of(registry.call("GET", repository, f"blobs/{ABSENT}")) == (404, "BLOB_UNKNOWN")


@pytest.mark.parametrize(
    ("asked", "found", "where"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
        ("bytes=0-99", b"0123456789", "bytes 0-9/10"),
    ],
)
def test_ranges_of_a_blob(registry: Registry, repository: str, asked: str, found: bytes, where: str) -> None:
    digest = registry.push_blob(repository, b"0123456789")
    answer = registry.call("GET", repository, f"blobs/{digest}", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, found)
    assert answer.headers["Content-Range"] == where


def test_a_range_beyond_the_end(registry: Registry, repository: str) -> None:
    digest = registry.push_blob(repository, b"0123456789")
    answer = registry.call("GET", repository, f"blobs/{digest}", headers={"Range": "bytes=10-"})
    assert code_of(answer) == (416, "RANGE_INVALID") and answer.headers["Content-Range"] == "bytes */10"


def test_a_range_of_a_blob_of_many_chunks(registry: Registry, repository: str) -> None:
    place = registry.begin(repository)
    for start in range(0, len(LARGE), 70_000):
        registry.call("PATCH", repository, place, content=LARGE[start : start + 70_000])
    digest = digest_of(LARGE)
    assert registry.call("PUT", repository, place, params={"digest": digest}).status_code == 201
    answer = registry.call("GET", repository, f"blobs/{digest}", headers={"Range": "bytes=69990-210010"})
    assert answer.content == LARGE[69_990:210_011]


def test_a_blob_is_mounted_from_another_repository(registry: Registry, repository: str) -> None:
    digest = registry.push_blob(repository, b"to be shared")
    other = f"{repository}-other"
    scopes = [f"repository:{registry.name(other)}:push,pull", f"repository:{registry.name(repository)}:pull"]
    answer = registry.call(
        "POST",
        other,
        "blobs/uploads/",
        params={"mount": digest, "from": registry.name(repository)},
        token=registry.token(*scopes),
    )
    assert answer.status_code == 201 and rest_of(answer) == f"blobs/{digest}"
    assert registry.call("GET", other, f"blobs/{digest}").content == b"to be shared"


def test_a_blob_that_is_in_the_registry_is_mounted_without_a_source(
    registry: Registry, repository: str
) -> None:
    digest = registry.push_blob(repository, b"somewhere in the registry")
    answer = registry.call("POST", f"{repository}-new", "blobs/uploads/", params={"mount": digest})
    assert answer.status_code == 201


def test_a_mount_of_what_is_not_there_begins_an_upload(registry: Registry, repository: str) -> None:
    for source in ({"from": registry.name(repository)}, {"from": "Not A Name"}, {}):
        answer = registry.call("POST", repository, "blobs/uploads/", params={"mount": ABSENT, **source})
        assert answer.status_code == 202 and rest_of(answer).startswith("blobs/uploads/")


@pytest.mark.parametrize("media_type", [MANIFEST, DOCKER_MANIFEST])
def test_a_manifest_comes_back_byte_for_byte(registry: Registry, repository: str, media_type: str) -> None:
    for each in (b"config", b"layer"):
        registry.push_blob(repository, each)
    content = manifest(b"config", b"layer", mediaType=media_type)
    digest = digest_of(content)
    answer = registry.push(repository, "v1", content, media_type)
    assert answer.status_code == 201 and answer.headers["Docker-Content-Digest"] == digest
    assert answer.headers["Location"].endswith(f"/manifests/{digest}")
    for reference in ("v1", digest):
        got = registry.call("GET", repository, f"manifests/{reference}")
        assert (got.content, got.headers["Content-Type"]) == (content, media_type)
        head = registry.call("HEAD", repository, f"manifests/{reference}")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["Content-Length"] == str(len(content))
        assert head.headers["Docker-Content-Digest"] == digest


def test_a_manifest_without_a_media_type_inside(registry: Registry, repository: str) -> None:
    registry.push_blob(repository, b"config")
    document = {"schemaVersion": 2, "config": descriptor(b"config", EMPTY), "layers": []}
    answer = registry.push(repository, "v1", json.dumps(document).encode())
    assert answer.status_code == 201


def test_a_manifest_by_digest_has_no_tag(registry: Registry, repository: str) -> None:
    registry.push_blob(repository, b"config")
    content = manifest(b"config")
    assert registry.push(repository, digest_of(content), content).status_code == 201
    assert registry.call("GET", repository, "tags/list").json()["tags"] == []
    wrong = registry.push(repository, ABSENT, content)
    assert code_of(wrong) == (400, "DIGEST_INVALID")


@pytest.mark.parametrize("media_type", [INDEX, DOCKER_LIST])
def test_an_index_of_images(registry: Registry, repository: str, media_type: str) -> None:
    children = [registry.push_image(repository, f"arch{each}") for each in range(2)]
    content = index(*children, mediaType=media_type)
    assert registry.push(repository, "all", content, media_type).status_code == 201
    got = registry.call("GET", repository, "manifests/all")
    assert (got.content, got.headers["Content-Type"]) == (content, media_type)


def test_an_empty_index(registry: Registry, repository: str) -> None:
    assert registry.push(repository, "empty", index(), INDEX).status_code == 201


def test_a_manifest_whose_blobs_are_not_there(registry: Registry, repository: str) -> None:
    registry.push_blob(repository, b"config")
    answer = registry.push(repository, "v1", manifest(b"config", b"never pushed"))
    assert code_of(answer) == (404, "MANIFEST_BLOB_UNKNOWN")
    assert answer.json()["errors"][0]["detail"] == {"digests": [digest_of(b"never pushed")]}
    assert code_of(registry.push(repository, "all", index(b"no such child"), INDEX)) == (
        404,
        "MANIFEST_BLOB_UNKNOWN",
    )
    assert registry.call("HEAD", repository, "manifests/v1").status_code == 404


def test_a_tag_moves(registry: Registry, repository: str) -> None:
    first = registry.push_image(repository, "latest", "one")
    second = registry.push_image(repository, "latest", "two")
    assert registry.call("GET", repository, "manifests/latest").content == second
    assert registry.call("GET", repository, f"manifests/{digest_of(first)}").content == first


def test_what_is_not_there(registry: Registry, repository: str) -> None:
    for reference in ("latest", ABSENT):
        assert code_of(registry.call("GET", repository, f"manifests/{reference}")) == (
            404,
            "MANIFEST_UNKNOWN",
        )
        head = registry.call("HEAD", repository, f"manifests/{reference}")
        assert (head.status_code, head.content) == (404, b"")


def test_an_image_of_no_more_than_an_artifact(registry: Registry, repository: str) -> None:
    """Helm and oras push images in this form."""
    registry.push_blob(repository, b"{}")
    content = manifest(b"{}", config_type=EMPTY, artifactType="application/vnd.test")
    assert registry.push(repository, "artifact", content).status_code == 201


def test_layers_that_are_elsewhere_need_not_be_there(registry: Registry, repository: str) -> None:
    registry.push_blob(repository, b"config")
    layer = descriptor(b"of windows", f"{INDEX}.nondistributable", urls=["https://example.com/layer"])
    content = manifest(b"config", layers=[layer])
    assert registry.push(repository, "windows", content).status_code == 201


def test_pushing_again_changes_nothing(registry: Registry, repository: str) -> None:
    content = registry.push_image(repository, "v1")
    before = registry.served.store.counters(registry.id)
    assert registry.push_image(repository, "v1") == content
    after = registry.served.store.counters(registry.id)
    assert [each.bytes for each in before] == [each.bytes for each in after]


def test_methods_that_are_not_there(registry: Registry, repository: str) -> None:
    for method, rest in (("POST", "manifests/v1"), ("PUT", "tags/list"), ("PATCH", f"blobs/{ABSENT}")):
        assert code_of(registry.call(method, repository, rest)) == (405, "UNSUPPORTED")
    answer: httpx.Response = registry.http.get("/v2/_catalog")
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("address", "counted"), [("10.1.2.3", "egress-private"), ("8.8.8.8", "egress"), ("", "egress")]
)
def test_bytes_to_private_networks_are_counted_apart(served: Served, address: str, counted: str) -> None:
    """CR-05: of manifests and blobs, which clients in other places pull through the same application."""
    made = served.call(served.control_plane.make_registry())
    registry = Registry(served, made.id, served.owner)
    image = registry.push_image("app", "v1")
    layer = json.loads(image)["layers"][0]
    name = registry.name("app")
    path, token = f"/v2/{name}", registry.token(f"repository:{name}:pull")
    headers = {"Authorization": f"Bearer {token}"}

    async def pull() -> None:
        transport = httpx.ASGITransport(served.app, client=(address, 4711))
        async with httpx.AsyncClient(transport=transport, base_url=served.url, headers=headers) as client:
            assert (await client.get(f"{path}/manifests/v1")).content == image
            answer = await client.get(f"{path}/blobs/{layer['digest']}")
            assert len(answer.content) == layer["size"]
            assert (await client.get(f"{path}/manifests/v2")).status_code == 404
        await served.store.flush()

    served.call(pull())
    registry.http.close()
    found = read(
        served.home / "objects",
        "SELECT sku, sum(count) FROM counted_hour JOIN bucket ON bucket.number = counted_hour.bucket"
        " WHERE bucket.id = ? AND sku LIKE 'egress%' GROUP BY sku",
        registry.id,
    )
    assert found == [(counted, len(image) + layer["size"])]
