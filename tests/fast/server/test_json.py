"""JSON over HTTP: Connect's unary shape, for curl and for people."""

import base64

import httpx
import pytest

from neocloud import __version__
from neocloud.core import contract
from neocloud.server.validation import MAX_REQUEST_BYTES
from tests.fast.server.conftest import ADMIN, PROJECT, Cloud

FILESYSTEMS = "nebius.compute.v1.FilesystemService"


def filesystem(name: str = "data", **spec: object) -> dict[str, object]:
    given = {"type": "NETWORK_SSD", "size_gibibytes": 10} | spec
    return {"metadata": {"parent_id": PROJECT, "name": name}, "spec": given}


async def test_a_resource_is_made_and_read(cloud: Cloud) -> None:
    made = await cloud.call(f"{FILESYSTEMS}/Create", filesystem())
    assert made.status_code == 200
    assert made.headers["x-request-id"]
    found = (await cloud.call(f"{FILESYSTEMS}/Get", {"id": made.json()["resourceId"]})).json()
    assert found["metadata"]["parentId"] == PROJECT
    assert found["spec"] == {"sizeGibibytes": "10", "blockSizeBytes": "4096", "type": "NETWORK_SSD"}


async def test_an_error_has_code_message_and_details(cloud: Cloud) -> None:
    missing = await cloud.call(f"{FILESYSTEMS}/Get", {"id": "computefilesystem-e00none"})
    assert missing.status_code == 404
    assert missing.headers["x-request-id"]
    error = missing.json()
    assert error["code"] == "not_found"
    detail = error["details"][0]
    assert detail["type"] == "nebius.common.v1.ServiceError"
    assert detail["debug"]["resourceNotFound"]["resourceId"] == "computefilesystem-e00none"
    raw = base64.b64decode(detail["value"] + "=" * (-len(detail["value"]) % 4))
    decoded = contract.message(detail["type"]).FromString(raw)
    assert decoded.service == FILESYSTEMS


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "not a JSON object"),
        ({"id": "x", "idd": "y"}, "idd"),
        ({"id": 7}, "id"),
        ({}, "id is required"),
        (b"\xff\xfe", "not a JSON object"),
    ],
)
async def test_a_body_that_is_no_request_is_an_invalid_argument(cloud: Cloud, body, words: str) -> None:
    refused = await cloud.call(f"{FILESYSTEMS}/Get", body)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")
    assert words in refused.json()["message"]


async def test_only_json_is_read(cloud: Cloud) -> None:
    refused = await cloud.call(f"{FILESYSTEMS}/Get", {"id": "x"}, **{"content-type": "text/plain"})
    assert "Content-Type: application/json" in refused.json()["message"]


async def test_a_body_beyond_the_limit_is_refused(cloud: Cloud) -> None:
    refused = await cloud.call(f"{FILESYSTEMS}/Get", b" " * (MAX_REQUEST_BYTES + 1))
    assert f"larger than the {MAX_REQUEST_BYTES} bytes" in refused.json()["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": ""},
        {"authorization": "Basic abc"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer no"},
    ],
)
async def test_a_call_without_a_good_token_is_unauthenticated(cloud: Cloud, headers: dict[str, str]) -> None:
    refused = await cloud.call(f"{FILESYSTEMS}/List", {"parentId": PROJECT}, **headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")


async def test_methods_outside_the_contract_are_unimplemented(cloud: Cloud) -> None:
    refused = await cloud.call("no.such.Service/Method", {})
    assert (refused.status_code, refused.json()["code"]) == (501, "unimplemented")
    assert "The API has no method 'no.such.Service/Method'" in refused.json()["message"]


GOOD_LABELS = ["bank", "", "a", "a-1", "a" * 63]
BAD_LABELS = ["my bank", "Bank", "-a", "a-", "a" * 64, "b\u00e4nk", "a\n"]


@pytest.mark.parametrize(
    ("name", "is_legal"), [(name, True) for name in GOOD_LABELS] + [(name, False) for name in BAD_LABELS]
)
async def test_names_of_own_kinds_are_labels(cloud: Cloud, name: str, is_legal: bool) -> None:
    spec = {"nodeSets": [{"name": "cpu", "platform": "cpu-d3", "preset": "4vcpu-16gb", "count": 1}]}
    body = {"metadata": {"parentId": PROJECT, "name": name}, "spec": spec}
    answer = await cloud.call("neocloud.slurm.v1.ClusterService/Create", body)
    assert answer.status_code == (200 if is_legal else 400), answer.text
    if not is_legal:
        violations = answer.json()["details"][0]["debug"]["badRequest"]["violations"]
        assert [each["field"] for each in violations] == ["metadata.name"]


@pytest.mark.parametrize(
    ("name", "is_legal"), [("My bank", True), (" bank", False), ("a\tb", False), ("a" * 1025, False)]
)
async def test_names_of_published_kinds_are_freer(cloud: Cloud, name: str, is_legal: bool) -> None:
    answer = await cloud.call(f"{FILESYSTEMS}/Create", filesystem(name))
    assert answer.status_code == (200 if is_legal else 400), answer.text


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"parentId": PROJECT, "id": "mine"}}, "metadata.id"),
        ({"metadata": {"name": "x"}}, "metadata.parent_id"),
        (
            {"metadata": {"parentId": PROJECT, "labels": {"neocloud.dev/a": "b"}}},
            "metadata.labels[neocloud.dev/a]",
        ),
    ],
)
async def test_metadata_that_a_client_may_not_give(cloud: Cloud, change, field: str) -> None:
    refused = await cloud.call(f"{FILESYSTEMS}/Create", filesystem() | change)
    violations = refused.json()["details"][0]["debug"]["badRequest"]["violations"]
    assert [each["field"] for each in violations] == [field]


async def test_a_parent_of_the_wrong_kind_is_refused(cloud: Cloud) -> None:
    made = (await cloud.call(f"{FILESYSTEMS}/Create", filesystem())).json()
    body = filesystem() | {"metadata": {"parentId": made["resourceId"], "name": "x"}}
    refused = await cloud.call(f"{FILESYSTEMS}/Create", body)
    assert "metadata.parent_id" in refused.json()["message"]
    body["metadata"] = {"parentId": "project-e00-none", "name": "x"}
    assert (await cloud.call(f"{FILESYSTEMS}/Create", body)).status_code == 404


async def test_an_id_of_another_kind_is_not_found(cloud: Cloud) -> None:
    made = (await cloud.call(f"{FILESYSTEMS}/Create", filesystem())).json()
    for verb in ("Get", "Delete"):
        answer = await cloud.call(f"neocloud.slurm.v1.ClusterService/{verb}", {"id": made["resourceId"]})
        assert answer.status_code == 404


async def test_output_only_fields_of_a_request_are_dropped(cloud: Cloud) -> None:
    body = filesystem()
    body["metadata"] = {"parentId": PROJECT, "name": "x", "createdAt": "2001-01-01T00:00:00Z"}
    made = (await cloud.call(f"{FILESYSTEMS}/Create", body)).json()
    found = (await cloud.call(f"{FILESYSTEMS}/Get", {"id": made["resourceId"]})).json()
    assert not found["metadata"]["createdAt"].startswith("2001")


async def test_rules_can_refuse_a_deletion(cloud: Cloud) -> None:
    made = (await cloud.call(f"{FILESYSTEMS}/Create", filesystem(forbidDeletion=True))).json()
    refused = await cloud.call(f"{FILESYSTEMS}/Delete", {"id": made["resourceId"]})
    assert refused.json()["code"] == "failed_precondition"


@pytest.mark.parametrize("size", [-1, -1000])
async def test_a_negative_page_size_is_refused(cloud: Cloud, size: int) -> None:
    refused = await cloud.call(f"{FILESYSTEMS}/List", {"parentId": PROJECT, "pageSize": size})
    assert "page_size" in refused.json()["message"]


async def test_health_needs_no_token_and_status_does(cloud: Cloud) -> None:
    health = await cloud.http.get("/healthz")
    assert health.json() == {"status": "ready", "version": __version__}
    assert (await cloud.http.get("/status")).status_code == 401


async def test_a_broken_method_is_internal_and_keeps_its_secret(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"clusterId": "slurmcluster-e00x", "script": "crash"}
    broken = await cloud.call("neocloud.slurm.v1.JobService/Submit", body)
    assert (broken.status_code, broken.json()["code"]) == (500, "internal")
    assert "hush" not in broken.text and "Traceback" not in broken.text
    assert broken.headers["x-request-id"] in broken.json()["message"]
    assert broken.headers["x-request-id"] in caplog.text
    assert ADMIN not in caplog.text


async def test_get_is_no_way_to_call_a_method(cloud: Cloud) -> None:
    answer: httpx.Response = await cloud.http.get(f"/{FILESYSTEMS}/Get")
    assert answer.status_code == 405
