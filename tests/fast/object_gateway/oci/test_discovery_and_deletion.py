"""The OCI distribution specification 1.1: content discovery and management."""

import re

import pytest

from tests.fast.object_gateway.oci.client import (
    EMPTY,
    INDEX,
    MANIFEST,
    Registry,
    code_of,
    descriptor,
    digest_of,
    index,
    manifest,
)

NAMES = ("a", "b", "c", "v1.0", "v1.1", "v2")


def tagged(registry: Registry, repository: str) -> bytes:
    content = registry.push_image(repository, NAMES[-1])
    for name in NAMES:
        assert registry.push(repository, name, content).status_code == 201
    return content


def about(registry: Registry, repository: str, subject: bytes, kind: str, **more: object) -> bytes:
    """Push an artifact about a manifest."""
    registry.push_blob(repository, b"{}")
    content = manifest(
        b"{}",
        config_type=EMPTY,
        artifactType=kind,
        subject=descriptor(subject, MANIFEST),
        annotations={"org.example": kind},
        **more,
    )
    answer = registry.push(repository, digest_of(content), content)
    assert (answer.status_code, answer.headers["OCI-Subject"]) == (201, digest_of(subject))
    return content


def test_tags_in_order(registry: Registry, repository: str) -> None:
    tagged(registry, repository)
    answer = registry.call("GET", repository, "tags/list")
    assert answer.json() == {"name": registry.name(repository), "tags": list(NAMES)}
    assert "Link" not in answer.headers


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_tags_page_by_page(registry: Registry, repository: str, size: int) -> None:
    tagged(registry, repository)
    found, rest = [], f"tags/list?n={size}"
    while rest:
        answer = registry.call("GET", repository, rest)
        assert len(answer.json()["tags"]) <= size
        found += answer.json()["tags"]
        link = re.fullmatch(
            r'</v2/(?:[^/]+/){3}(tags/list\?[^>]+)>; rel="next"', answer.headers.get("Link", "")
        )
        rest = link[1] if link else ""
    assert found == list(NAMES)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("n=0", []),
        ("last=b", ["c", "v1.0", "v1.1", "v2"]),
        ("n=1&last=bb", ["c"]),
        ("n=3&last=v2", []),
        ("n=1000", list(NAMES)),
    ],
)
def test_parts_of_the_tags(registry: Registry, repository: str, query: str, expected: list[str]) -> None:
    tagged(registry, repository)
    assert registry.call("GET", repository, f"tags/list?{query}").json()["tags"] == expected


def test_tags_of_nothing(registry: Registry, repository: str) -> None:
    assert code_of(registry.call("GET", repository, "tags/list")) == (404, "NAME_UNKNOWN")
    answer = registry.call("GET", repository, "tags/list?n=x")
    assert code_of(answer) == (400, "PAGINATION_NUMBER_INVALID")


def test_referrers(registry: Registry, repository: str) -> None:
    subject = registry.push_image(repository, "v1")
    signature = about(registry, repository, subject, "application/vnd.signature")
    sbom = about(registry, repository, subject, "application/vnd.sbom")
    answer = registry.call("GET", repository, f"referrers/{digest_of(subject)}")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, INDEX)
    assert "OCI-Filters-Applied" not in answer.headers
    document = answer.json()
    assert (document["schemaVersion"], document["mediaType"]) == (2, INDEX)
    assert document["manifests"] == [
        descriptor(each, MANIFEST, artifactType=kind, annotations={"org.example": kind})
        for each, kind in ((signature, "application/vnd.signature"), (sbom, "application/vnd.sbom"))
    ]


def test_referrers_of_a_type(registry: Registry, repository: str) -> None:
    subject = registry.push_image(repository, "v1")
    about(registry, repository, subject, "application/vnd.signature")
    sbom = about(registry, repository, subject, "application/vnd.sbom")
    answer = registry.call(
        "GET", repository, f"referrers/{digest_of(subject)}", params={"artifactType": "application/vnd.sbom"}
    )
    assert answer.headers["OCI-Filters-Applied"] == "artifactType"
    assert [each["digest"] for each in answer.json()["manifests"]] == [digest_of(sbom)]


def test_the_type_of_a_referrer_may_be_that_of_its_config(registry: Registry, repository: str) -> None:
    subject = registry.push_image(repository, "v1")
    registry.push_blob(repository, b"config")
    content = manifest(b"config", config_type="application/vnd.old", subject=descriptor(subject, MANIFEST))
    assert registry.push(repository, "old", content).status_code == 201
    (found,) = registry.call("GET", repository, f"referrers/{digest_of(subject)}").json()["manifests"]
    assert found["artifactType"] == "application/vnd.old"


def test_an_index_may_refer(registry: Registry, repository: str) -> None:
    subject = registry.push_image(repository, "v1")
    content = index(subject=descriptor(subject, MANIFEST), artifactType="application/vnd.many")
    answer = registry.push(repository, "many", content, INDEX)
    assert answer.headers["OCI-Subject"] == digest_of(subject)
    (found,) = registry.call("GET", repository, f"referrers/{digest_of(subject)}").json()["manifests"]
    assert (found["mediaType"], found["artifactType"]) == (INDEX, "application/vnd.many")


def test_a_subject_need_not_exist(registry: Registry, repository: str) -> None:
    absent = b'{"never": "pushed"}'
    content = about(registry, repository, absent, "application/vnd.early")
    found = registry.call("GET", repository, f"referrers/{digest_of(absent)}").json()["manifests"]
    assert [each["digest"] for each in found] == [digest_of(content)]


def test_nothing_refers(registry: Registry, repository: str) -> None:
    answer = registry.call("GET", repository, f"referrers/{digest_of(b'x')}")
    assert (answer.status_code, answer.json()["manifests"]) == (200, [])
    assert code_of(registry.call("GET", repository, "referrers/latest")) == (400, "DIGEST_INVALID")


def test_a_deleted_referrer_is_gone(registry: Registry, repository: str) -> None:
    subject = registry.push_image(repository, "v1")
    content = about(registry, repository, subject, "application/vnd.signature")
    assert registry.call("DELETE", repository, f"manifests/{digest_of(content)}").status_code == 202
    assert registry.call("GET", repository, f"referrers/{digest_of(subject)}").json()["manifests"] == []


def test_a_tag_is_deleted_alone(registry: Registry, repository: str) -> None:
    content = tagged(registry, repository)
    assert registry.call("DELETE", repository, "manifests/b").status_code == 202
    assert code_of(registry.call("GET", repository, "manifests/b")) == (404, "MANIFEST_UNKNOWN")
    assert registry.call("GET", repository, "manifests/a").content == content
    assert code_of(registry.call("DELETE", repository, "manifests/b")) == (404, "MANIFEST_UNKNOWN")


def test_a_manifest_is_deleted_with_its_tags(registry: Registry, repository: str) -> None:
    content = tagged(registry, repository)
    assert registry.call("DELETE", repository, f"manifests/{digest_of(content)}").status_code == 202
    assert registry.call("GET", repository, "tags/list").json()["tags"] == []
    for reference in ("a", digest_of(content)):
        assert code_of(registry.call("GET", repository, f"manifests/{reference}")) == (
            404,
            "MANIFEST_UNKNOWN",
        )
    gone = registry.call("DELETE", repository, f"manifests/{digest_of(content)}")
    assert code_of(gone) == (404, "MANIFEST_UNKNOWN")


def test_a_manifest_that_an_index_names_stays(registry: Registry, repository: str) -> None:
    child = registry.push_image(repository, "child")
    parent = index(child)
    registry.push(repository, "all", parent, INDEX)
    refused = registry.call("DELETE", repository, f"manifests/{digest_of(child)}")
    assert code_of(refused) == (405, "UNSUPPORTED")
    for each in (parent, child):
        answer = registry.call("DELETE", repository, f"manifests/{digest_of(each)}")
        assert answer.status_code == 202


def test_a_blob_is_deleted_once_no_manifest_names_it(registry: Registry, repository: str) -> None:
    content = registry.push_image(repository, "v1")
    digest = digest_of(b"layer of v1")
    assert code_of(registry.call("DELETE", repository, f"blobs/{digest}")) == (405, "UNSUPPORTED")
    registry.call("DELETE", repository, f"manifests/{digest_of(content)}")
    assert registry.call("DELETE", repository, f"blobs/{digest}").status_code == 202
    assert registry.call("HEAD", repository, f"blobs/{digest}").status_code == 404
    assert code_of(registry.call("DELETE", repository, f"blobs/{digest}")) == (404, "BLOB_UNKNOWN")


def test_a_blob_stays_in_other_repositories(registry: Registry, repository: str) -> None:
    other, content = f"{repository}-other", f"in two places {repository}".encode()
    for each in (repository, other):
        digest = registry.push_blob(each, content)
    registry.call("DELETE", repository, f"blobs/{digest}")
    assert registry.call("HEAD", repository, f"blobs/{digest}").status_code == 404
    assert registry.call("GET", other, f"blobs/{digest}").content == content
