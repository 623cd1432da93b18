"""Attacks of hostile clients on the registry: others' content, forged tokens, names, manifests, uploads."""

import base64
import json
import socket
from collections.abc import Iterator

import pytest

from neocloud.object_gateway.oci.tokens import MAX_SCOPES
from neocloud.object_store.image_types import MAX_MANIFEST_BYTES
from neocloud.testing.object_control_plane import Account
from tests.fast.object_gateway.oci.client import (
    INDEX,
    MANIFEST,
    Registry,
    code_of,
    descriptor,
    digest_of,
    index,
    manifest,
)

PULL = frozenset({"registry.images.pull"})


@pytest.fixture(scope="module")
def neighbour(registry: Registry) -> Iterator[Registry]:
    """A registry of another project, and its owner."""
    served = registry.served
    made = served.call(served.control_plane.make_registry("project-b"))
    found = Registry(served, made.id, served.account(project_id="project-b"))
    yield found
    found.http.close()


def denied(registry: Registry, repository: str, token: str) -> None:
    """Check that a token opens nothing of a repository."""
    digest = digest_of(b"layer of v1")
    for method, rest in (
        ("GET", "manifests/v1"),
        ("HEAD", "manifests/v1"),
        ("PUT", "manifests/v1"),
        ("DELETE", "manifests/v1"),
        ("GET", f"blobs/{digest}"),
        ("HEAD", f"blobs/{digest}"),
        ("DELETE", f"blobs/{digest}"),
        ("POST", "blobs/uploads/"),
        ("GET", "tags/list"),
        ("GET", f"referrers/{digest}"),
    ):
        answer = registry.call(method, repository, rest, token=token)
        assert answer.status_code in (401, 403), (method, rest, answer.text)


@pytest.mark.parametrize("token", ["-", "x", "x.y", "e30.AAAA", "é"])
def test_what_is_no_token_opens_nothing(registry: Registry, repository: str, token: str) -> None:
    registry.push_image(repository, "v1")
    answer = registry.http.get(
        f"/v2/{registry.name(repository)}/manifests/v1",
        headers=[(b"Authorization", f"Bearer {token}".encode())],
    )
    assert code_of(answer) == (401, "UNAUTHORIZED")
    assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]


def test_a_forged_token_opens_nothing(registry: Registry, repository: str) -> None:
    registry.push_image(repository, "v1")
    content, _, mac = registry.token(f"repository:{registry.name(repository)}:pull").partition(".")
    found = json.loads(base64.urlsafe_b64decode(content + "=="))
    found["a"] = {registry.name(repository): ["*"]}
    forged = base64.urlsafe_b64encode(json.dumps(found).encode()).decode().rstrip("=")
    for token in (f"{forged}.{mac}", f"{content}.{mac[:-4]}AAAA", f"{content}.", f".{mac}"):
        denied(registry, repository, token)


def test_a_token_opens_what_it_was_asked_for_and_nothing_else(registry: Registry, repository: str) -> None:
    registry.push_image(repository, "v1")
    name = registry.name(repository)
    for scopes in (
        (),
        (f"repository:{name}-other:*",),
        (f"registry:{name}:*",),
        (f"repository:{name}:shout",),
    ):
        denied(registry, repository, registry.token(*scopes))
    token = registry.token(f"repository:{name}:pull")
    assert registry.call("GET", repository, "manifests/v1", token=token).status_code == 200
    answer = registry.call("POST", repository, "blobs/uploads/", token=token)
    assert answer.status_code == 401
    challenge = answer.headers["WWW-Authenticate"]
    assert f'scope="repository:{name}:pull,push"' in challenge and 'error="insufficient_scope"' in challenge


def test_another_projects_account_gets_nothing(
    registry: Registry, neighbour: Registry, repository: str
) -> None:
    registry.push_image(repository, "v1")
    name = registry.name(repository)
    token = neighbour.token(f"repository:{name}:*")
    denied(registry, repository, token)
    theirs = registry.call("GET", repository, "manifests/v1", token=token)
    absent = neighbour.http.get(
        "/v2/e00absent/app/manifests/v1",
        headers={"Authorization": f"Bearer {neighbour.token('repository:e00absent/app:*')}"},
    )
    assert (theirs.status_code, theirs.content) == (absent.status_code, absent.content)


def test_who_may_pull_may_not_push(registry: Registry, repository: str) -> None:
    registry.push_image(repository, "v1")
    puller = registry.served.account(permissions=PULL)
    token = registry.token(f"repository:{registry.name(repository)}:*", account=puller)
    assert registry.call("GET", repository, "manifests/v1", token=token).status_code == 200
    for method, rest in (("POST", "blobs/uploads/"), ("PUT", "manifests/v1"), ("DELETE", "manifests/v1")):
        assert code_of(registry.call(method, repository, rest, token=token)) == (403, "DENIED")


def test_rights_that_were_taken_away_end_before_the_token(registry: Registry, repository: str) -> None:
    registry.push_image(repository, "v1")
    served, account = registry.served, registry.served.account()
    token = registry.token(f"repository:{registry.name(repository)}:pull", account=account)
    assert registry.call("GET", repository, "manifests/v1", token=token).status_code == 200
    del served.control_plane.accounts[account.aws_access_key_id]
    served.control_plane.access_changed()
    while registry.call("GET", repository, "manifests/v1", token=token).status_code == 200:
        pass
    denied(registry, repository, token)


@pytest.mark.parametrize("secret", ["", "wrong", "the-secret-of-the-owner "])
def test_a_wrong_secret_does_not_sign_in(registry: Registry, secret: str) -> None:
    user = registry.account.aws_access_key_id
    asked = registry.http.get("/v2/token", auth=(user, secret))
    posted = registry.http.post(
        "/v2/token", data={"grant_type": "password", "username": user, "password": secret}
    )
    assert code_of(asked) == code_of(posted) == (401, "UNAUTHORIZED")


def test_a_temporary_key_does_not_sign_in(registry: Registry) -> None:
    """However short its id is, and although the control plane knows it."""
    served = registry.served
    key = served.control_plane.add(Account("NCTK00000000", "its-secret"))
    served.client(key).list_buckets()
    answer = registry.http.get("/v2/token", auth=(key.aws_access_key_id, key.secret))
    assert code_of(answer) == (401, "UNAUTHORIZED") and "for S3 alone" in answer.text


@pytest.mark.parametrize("header", ["", "Basic", "Basic !!!", "Basic bm8=", "Bearer x", "Digest a=b"])
def test_nobody_is_anybody(registry: Registry, header: str) -> None:
    answer = registry.http.get("/v2/token", headers={"Authorization": header})
    assert code_of(answer) == (401, "UNAUTHORIZED")


def test_ways_to_sign_in(registry: Registry, repository: str) -> None:
    registry.push_image(repository, "v1")
    account, scope = registry.account, f"repository:{registry.name(repository)}:pull"
    form = {"service": "registry", "scope": scope, "client_id": "test"}
    answers = [
        registry.http.get("/v2/token", params={"scope": scope}, auth=("iam", account.token)),
        registry.http.post(
            "/v2/token",
            data={**form, "grant_type": "password", "username": "iam", "password": account.token},
        ),
        registry.http.post(
            "/v2/token", data={**form, "grant_type": "refresh_token", "refresh_token": account.token}
        ),
    ]
    for answer in answers:
        assert answer.status_code == 200 and answer.headers["Cache-Control"] == "no-store"
        given = answer.json()
        assert given["token"] == given["access_token"] and given["expires_in"] == 300
        assert given["issued_at"].endswith("Z")
        found = registry.call("GET", repository, "manifests/v1", token=given["token"])
        assert found.status_code == 200
    refused = registry.http.post("/v2/token", data={**form, "grant_type": "client_credentials"})
    assert refused.status_code == 400
    assert registry.http.put("/v2/token").status_code == 405


def test_several_scopes_at_once(registry: Registry, repository: str) -> None:
    """Repeated, as docker sends them, or with spaces between."""
    names = [registry.name(f"{repository}-{each}") for each in "abc"]
    scopes = [f"repository:{each}:pull,push" for each in names]
    for given in (scopes, [" ".join(scopes)]):
        token = registry.token(*given)
        for each in "abc":
            answer = registry.call("POST", f"{repository}-{each}", "blobs/uploads/", token=token)
            assert answer.status_code == 202


def test_more_scopes_than_a_token_takes(registry: Registry, repository: str) -> None:
    scopes = [f"repository:{registry.name(f'{repository}-{each}')}:pull" for each in range(90)]
    token = registry.token(*scopes)
    found = json.loads(base64.urlsafe_b64decode(token.partition(".")[0] + "=="))
    assert len(found["a"]) == MAX_SCOPES


@pytest.mark.parametrize(
    "path",
    [
        "/v2/{registry}/../../etc/passwd/manifests/latest",
        "/v2/{registry}/%2e%2e/app/manifests/latest",
        "/v2/{registry}/app/manifests/..%2f..%2fetc%2fpasswd",
        "/v2/{registry}/app/blobs/../../../store.key",
        "/v2/{registry}/app/blobs/uploads/../../../../meta.db",
        "/v2/{registry}/App/manifests/latest",
        "/v2/{registry}//app/manifests/latest",
        "/v2/{registry}/app%00/manifests/latest",
        "/v2/{registry}/manifests/latest",
        "/v2/{registry}/-app/tags/list",
        "/v2/{registry}/app/manifests/" + "a" * 129,
        "/v2/{registry}/" + "a" * 300 + "/tags/list",
        "/v2/" + "a/" * 2000 + "tags/list",
        "/v2/{registry}/app/manifests/sha256:" + "../" * 10,
        "/v2/app/tags/list",
        "/v2/{registry}/app/blobs/uploads/not-an-id",
    ],
)
def test_paths_that_name_nothing(registry: Registry, path: str) -> None:
    """Sent byte by byte: clients would tidy them."""
    scope = f"repository:{registry.name('app')}:*"
    target = path.format(registry=registry.short)
    request = (
        f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {registry.token(scope)}\r\n"
        "Connection: close\r\n\r\n"
    )
    answer = registry.served.raw(request.encode())
    status = int(answer.split(b" ", 2)[1])
    assert status in (400, 401, 404, 405) and b"root:" not in answer


def test_images_are_no_objects_of_s3(registry: Registry, repository: str) -> None:
    registry.push_image(repository, "v1")
    client = registry.served.client()
    assert not [each for each in client.list_buckets()["Buckets"] if "fake" in each["Name"]]
    for name in (f"v2/{registry.short}", registry.id, registry.short):
        with pytest.raises(Exception, match="(NoSuchBucket|Invalid bucket name|404)"):
            client.list_objects_v2(Bucket=name)


@pytest.mark.parametrize("padding", [1, 1_000_000])
def test_a_manifest_that_is_too_large(registry: Registry, repository: str, padding: int) -> None:
    registry.push_blob(repository, b"config")
    content = manifest(b"config")
    content += b" " * (MAX_MANIFEST_BYTES + padding - len(content))
    assert code_of(registry.push(repository, "v1", content)) == (413, "SIZE_INVALID")
    answer = registry.call(
        "PUT",
        repository,
        "manifests/v1",
        content=iter([content]),  # without a length
        headers={"Content-Type": MANIFEST},
    )
    assert answer.status_code == 413
    fitting = content[:MAX_MANIFEST_BYTES]
    assert registry.push(repository, "v1", fitting).status_code == 201


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"schemaVersion": 1}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe",
        json.dumps({"schemaVersion": 2, "config": {}, "layers": []}).encode(),
        json.dumps({"schemaVersion": 2, "config": descriptor(b"c", "x"), "layers": {}}).encode(),
        json.dumps({"schemaVersion": 2, "config": descriptor(b"c", "x"), "layers": [None]}).encode(),
        json.dumps({"schemaVersion": 2, "config": {**descriptor(b"c", "x"), "size": -1}}).encode(),
        json.dumps({"schemaVersion": 2, "config": {**descriptor(b"c", "x"), "size": True}}).encode(),
        json.dumps({"schemaVersion": 2, "config": {**descriptor(b"c", "x"), "size": 1 << 70}}).encode(),
        json.dumps({"schemaVersion": 2, "config": {**descriptor(b"c", "x"), "digest": "../x"}}).encode(),
        manifest(b"c", subject="latest"),
        manifest(b"c", annotations={"a": 1}),
        manifest(b"c", annotations=["a"]),
        manifest(b"c", artifactType=["x"]),
        manifest(b"c", artifactType="x" * 300),
        manifest(b"c", mediaType=INDEX),
        manifest(b"c", *[b"layer"] * 5000),
    ],
    ids=range(22),
)
def test_manifests_that_are_none(registry: Registry, repository: str, content: bytes) -> None:
    registry.push_blob(repository, b"c")
    assert code_of(registry.push(repository, "v1", content)) == (400, "MANIFEST_INVALID")


@pytest.mark.parametrize(
    "kind", ["", "text/html", "application/json", "application/vnd.docker.container.image.v1"]
)
def test_a_manifest_of_another_type(registry: Registry, repository: str, kind: str) -> None:
    registry.push_blob(repository, b"c")
    document = {"schemaVersion": 2, "config": descriptor(b"c", "x"), "layers": []}
    answer = registry.push(repository, "v1", json.dumps(document).encode(), kind)
    assert code_of(answer) == (400, "MANIFEST_INVALID")


def test_an_index_of_another_repository_is_refused(registry: Registry, repository: str) -> None:
    child = registry.push_image(f"{repository}-secret", "v1")
    answer = registry.push(repository, "all", index(child), INDEX)
    assert code_of(answer) == (404, "MANIFEST_BLOB_UNKNOWN")


def test_a_layer_of_another_repository_cannot_be_taken_by_naming_it(
    registry: Registry, neighbour: Registry, repository: str
) -> None:
    registry.push_image(repository, "v1")
    config, layer = json.dumps({"made": "v1"}).encode(), b"layer of v1"
    answer = neighbour.push("thief", "v1", manifest(config, layer))
    assert code_of(answer) == (404, "MANIFEST_BLOB_UNKNOWN")


def test_a_mount_needs_the_right_to_pull(registry: Registry, neighbour: Registry, repository: str) -> None:
    digest = registry.push_blob(repository, f"secret of {repository}".encode())
    source = registry.name(repository)
    token = neighbour.token(f"repository:{neighbour.name('thief')}:*", f"repository:{source}:pull")
    for given in ({"from": source}, {}):
        answer = neighbour.call(
            "POST", "thief", "blobs/uploads/", token=token, params={"mount": digest, **given}
        )
        assert answer.status_code == 202
    assert neighbour.call("HEAD", "thief", f"blobs/{digest}").status_code == 404


def test_a_mount_needs_a_token_for_its_source(registry: Registry, repository: str) -> None:
    other = registry.served.call(registry.served.control_plane.make_registry())
    second = Registry(registry.served, other.id, registry.account)
    digest = registry.push_blob(repository, f"of the first {repository}".encode())
    source, target = registry.name(repository), second.name("app")
    params = {"mount": digest, "from": source}
    without = second.token(f"repository:{target}:*")
    answer = second.call("POST", "app", "blobs/uploads/", token=without, params=params)
    assert answer.status_code == 202
    token = second.token(f"repository:{target}:*", f"repository:{source}:pull")
    assert second.call("POST", "app", "blobs/uploads/", token=token, params=params).status_code == 201
    second.http.close()


def test_somebody_elses_upload(registry: Registry, neighbour: Registry, repository: str) -> None:
    place = registry.begin(repository)
    registry.call("PATCH", repository, place, content=b"theirs")
    for who, where in ((neighbour, "app"), (registry, f"{repository}-other")):
        for method in ("GET", "PATCH", "DELETE"):
            answer = who.call(method, where, place, content=b"x" if method == "PATCH" else None)
            assert code_of(answer) == (404, "BLOB_UPLOAD_UNKNOWN")
        answer = who.call("PUT", where, place, params={"digest": digest_of(b"theirs")})
        assert code_of(answer) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert registry.call("GET", repository, place).headers["Range"] == "0-5"


def test_a_client_that_leaves_in_the_middle_of_a_chunk(registry: Registry, repository: str) -> None:
    place = registry.begin(repository)
    registry.call("PATCH", repository, place, content=b"whole")
    name = registry.name(repository)
    token = registry.token(f"repository:{name}:push")
    head = (
        f"PATCH /v2/{name}/{place} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        "Content-Length: 1000\r\n\r\n"
    )
    with socket.create_connection(registry.served.address) as connection:
        connection.sendall(head.encode() + b"half")
    while (answer := registry.call("PATCH", repository, place, content=b" and more")).status_code == 416:
        pass  # the server has not seen yet that the other one left
    assert answer.headers["Range"] == "0-13"
    done = registry.call("PUT", repository, place, params={"digest": digest_of(b"whole and more")})
    assert done.status_code == 201


def test_the_realm_is_no_header_of_the_attackers(registry: Registry) -> None:
    answer = registry.served.raw(
        b'GET /v2/ HTTP/1.1\r\nHost: a"b,realm="http://evil\r\nConnection: close\r\n\r\n'
    )
    assert b"evil" not in answer and answer.startswith(b"HTTP/1.1 401")


def test_queries_that_cannot_be_read(registry: Registry, repository: str) -> None:
    for query in ("&".join(f"a{each}=1" for each in range(500)), "digest=%ff%fe"):
        token = registry.token(f"repository:{registry.name(repository)}:*")
        answer = registry.http.post(
            f"/v2/{registry.name(repository)}/blobs/uploads/?{query}",
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.status_code == 400
