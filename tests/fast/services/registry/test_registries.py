"""Registries and artifacts of the API, with the object gateway that has the images."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.registry.v1 import (
    ArtifactServiceClient,
    CreateRegistryRequest,
    ListArtifactsRequest,
    RegistryServiceClient,
    RegistrySpec,
)

from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.object_gateway.work.workers import tidy_registries
from neocloud.object_store.lifecycle_rules import ImageRules
from neocloud.services.registry.public import image_name
from neocloud.services.registry.types import RULE_LABELS, rule_of
from neocloud.testing.waiting import until
from tests import control_plane
from tests.fast.object_gateway.oci.client import INDEX, digest_of, index
from tests.fast.services.registry.cloud import RegistryCloud, cloud_in_process, short
from tests.fast.services.storage.test_temporary_keys import person

REGION = "eu-north1"
REPORT = "neocloud.registry.v1.VulnerabilityReportService/Get"


async def set_rules(
    cloud: RegistryCloud, registry_id: str, labels: dict[str, str], rules: ImageRules
) -> None:
    """Label a registry, and return when the gateway has these rules."""
    metadata = {"id": registry_id, "parent_id": cloud.project_id, "name": "team", "labels": labels}
    await cloud.call("RegistryService/Update", metadata=metadata)
    async with asyncio.timeout(control_plane.DEADLINE_SECONDS):
        while cloud.gateway.store.buckets()[0].image_rules != rules:
            await asyncio.sleep(0.02)


async def artifacts(cloud: RegistryCloud, registry_id: str) -> list[Any]:
    return list((await cloud.call("ArtifactService/List", parent_id=registry_id)).items)


async def test_a_registry_is_active_once_the_gateway_serves_it(cloud: RegistryCloud) -> None:
    operation = await cloud.call(
        "RegistryService/Create",
        metadata={"parent_id": cloud.project_id, "name": "team"},
        spec={"description": "Images of the team"},
    )
    assert (await cloud.operation(operation)).code == 0
    found = await cloud.get("Registry", operation.resource_id)
    assert found.status.State.Name(found.status.state) == "ACTIVE"
    assert found.status.registry_fqdn == f"127.0.0.1:8902/{short(found.metadata.id)}"
    assert (found.status.images_count, found.spec.description) == (0, "Images of the team")
    address = f"http://{cloud.running.server.addresses.http}/status"
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {cloud.token}"}) as http:
        told = (await http.get(address)).json()["reports"]["storage"]
    assert (told["is_reporting"], told["orphan_buckets"]) == (True, [])
    named = await cloud.call("RegistryService/GetByName", parent_id=cloud.project_id, name="team")
    assert named == found
    assert list((await cloud.call("RegistryService/List", parent_id=cloud.project_id)).items) == [found]


async def test_without_a_gateway_a_registry_waits(tmp_path: Path) -> None:
    async with control_plane.cloud_in_process(tmp_path) as cloud:
        metadata = {"parent_id": cloud.project_id, "name": "team"}
        operation = await cloud.call("nebius.registry.v1.RegistryService/Create", metadata=metadata)
        await cloud.row_when(
            operation.resource_id, lambda row: row and row.state == "CREATING" and row.status is not None
        )
        assert not (
            await cloud.call("nebius.registry.v1.ArtifactService/List", parent_id=operation.resource_id)
        ).items


async def test_an_update_is_done_when_the_gateway_has_it(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    operation = await cloud.call(
        "RegistryService/Update",
        metadata={"id": registry_id, "parent_id": cloud.project_id, "name": "team"},
        spec={"description": "more"},
    )
    assert (await cloud.operation(operation)).code == 0
    (bucket,) = cloud.gateway.store.buckets()
    assert (bucket.id, bucket.generation, bucket.title) == (registry_id, 2, "team")


async def test_what_is_pushed_is_listed(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    first, second = await cloud.push(name, "v1"), await cloud.push(name, "v2")
    both = index(first, second)
    assert (await cloud.put(name, "latest", both, INDEX)).status_code == 201
    found = {each.digest: each for each in await artifacts(cloud, registry_id)}
    assert set(found) == {digest_of(each) for each in (first, second, both)}
    image, whole = found[digest_of(first)], found[digest_of(both)]
    assert (image.name, list(image.tags), image.Type.Name(image.type)) == ("app", ["v1"], "MANIFEST")
    assert (list(whole.tags), whole.Type.Name(whole.type)) == (["latest"], "MANIFEST_LIST")
    assert image.id.startswith("artifact-e00") and image.size > len(first)
    assert image.Status.Name(image.status) == "ACTIVE"
    assert await cloud.get("Artifact", image.id) == image
    await cloud.when(registry_id, lambda registry: registry.status.images_count == 1)


async def test_artifacts_page_by_page(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    for number in range(3):
        await cloud.push(f"{short(registry_id)}/app", f"v{number}")
    tags, token = [], ""
    while True:
        page = await cloud.call("ArtifactService/List", parent_id=registry_id, page_size=2, page_token=token)
        tags += [tag for each in page.items for tag in each.tags]
        if not (token := page.next_page_token):
            break
    assert tags == ["v0", "v1", "v2"]


async def test_an_artifact_is_deleted(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    content = await cloud.push(name, "v1")
    (found,) = await artifacts(cloud, registry_id)
    await cloud.call("ArtifactService/Delete", id=found.id)
    left = await artifacts(cloud, registry_id)
    assert all(each.Status.Name(each.status) == "DELETING" for each in left)
    async with asyncio.timeout(control_plane.DEADLINE_SECONDS):
        while await artifacts(cloud, registry_id):
            await asyncio.sleep(0.02)
    assert (await cloud.ask("GET", name, f"manifests/{digest_of(content)}")).status_code == 404
    assert (await cloud.refusal("ArtifactService/Delete", id=found.id)).code is Code.NOT_FOUND

    assert await cloud.push(name, "v1") == content
    (again,) = await artifacts(cloud, registry_id)
    assert (again.id, again.Status.Name(again.status)) == (found.id, "ACTIVE")


async def test_a_part_of_an_index_is_not_deleted_alone(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    child = await cloud.push(name, "v1")
    await cloud.put(name, "all", index(child), INDEX)
    part = next(each for each in await artifacts(cloud, registry_id) if each.digest == digest_of(child))
    assert (await cloud.refusal("ArtifactService/Delete", id=part.id)).code is Code.FAILED_PRECONDITION


async def test_a_registry_with_images_goes_only_by_force(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    await cloud.push(f"{short(registry_id)}/app", "v1")
    refused = await cloud.refusal("RegistryService/Delete", id=registry_id)
    assert refused.code is Code.FAILED_PRECONDITION and "force" in refused.message
    operation = await cloud.call("RegistryService/Delete", id=registry_id, force=True)
    assert (await cloud.operation(operation)).code == 0
    assert (await cloud.refusal("RegistryService/Get", id=registry_id)).code is Code.NOT_FOUND
    assert not cloud.gateway.store.buckets()
    gone = await cloud.ask("GET", f"{short(registry_id)}/app", "tags/list")
    assert gone.status_code == 403


async def test_labels_are_rules_and_the_log_says_what_they_removed(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    for tag in ("v1", "v2", "v3"):
        await cloud.push(name, tag)
    labels = {"keep-last": "2", "untagged-days": "30", "team": "vision"}
    await set_rules(cloud, registry_id, labels, ImageRules(keep_last=2, untagged_days=30))
    await tidy_registries(cloud.gateway.store, SystemClock())
    assert [tag for each in await artifacts(cloud, registry_id) for tag in each.tags] == ["v2", "v3"]
    await cloud.when(registry_id, lambda registry: registry.status.images_count == 2)
    asked = {"parent_id": cloud.tenant_id, "region": REGION, "filter": "action = 'remove_images'"}
    asked |= {"start": "2026-01-01T00:00:00Z", "end": "2100-01-01T00:00:00Z"}

    async def told() -> Any:
        return (await cloud.call("nebius.audit.v2.AuditEventService/List", asked)).items

    # One event is of all that was removed since the last one.
    await until(told, "the first removal is in the audit log", holds=lambda found: len(found) == 1)
    await set_rules(cloud, registry_id, {"keep-last": "1"}, ImageRules(keep_last=1))
    await tidy_registries(cloud.gateway.store, SystemClock())
    await cloud.when(registry_id, lambda registry: registry.status.images_count == 1)
    events = await until(told, "the second one, too", holds=lambda found: len(found) == 2)
    for event, tag in zip(events, ("v2", "v1"), strict=True):
        assert f"by the rules of the registry: app:{tag}" in str(event) and registry_id in str(event)


async def test_a_rule_is_a_number(cloud: RegistryCloud) -> None:
    values = ("0", "-1", "ten", "1.5", "10001", "", "٣", "1" * 200)
    for value in values:
        metadata = {"parent_id": cloud.project_id, "name": "team", "labels": {"keep-last": value}}
        refused = await cloud.refusal("RegistryService/Create", metadata=metadata)
        assert refused.code is Code.INVALID_ARGUMENT and "from 1 to 10,000" in refused.message, value
    kept = {"keep-last": "x", "untagged-days": "1 "}  # from before labels were rules
    assert [rule_of(kept, label) for label in RULE_LABELS] == [None, None]


async def test_a_label_lets_manifests_name_what_is_not_there(cloud: RegistryCloud) -> None:
    labels = {"sparse-manifests": "allowed"}
    await set_rules(cloud, await cloud.registry(), labels, ImageRules(allows_sparse=True))
    for value in ("", "yes", "true", "Allowed"):
        metadata = {"parent_id": cloud.project_id, "name": "other", "labels": {"sparse-manifests": value}}
        refused = await cloud.refusal("RegistryService/Create", metadata=metadata)
        assert refused.code is Code.INVALID_ARGUMENT and "'allowed'" in refused.message, value


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("e00x/app", "latest"),
        (f"e00x/app:v1@sha256:{'a' * 64}", f"sha256:{'a' * 64}"),
        (f"e00x/team/app@sha512:{'0' * 128}", f"sha512:{'0' * 128}"),
        (f"e00x/app@sha512:{'0' * 64}", None),
        (f"e00x/app@sha256:{'0' * 128}", None),
        (f"e00x/app@md5:{'0' * 32}", None),
    ],
)
def test_names_of_images(text: str, reference: str | None) -> None:
    found = image_name(text)
    assert (found and found.reference) == reference


async def test_a_report_of_vulnerabilities_needs_advisories_and_the_right_to_see_the_image(
    cloud: RegistryCloud,
) -> None:
    registry_id = await cloud.registry()
    await cloud.push(f"{short(registry_id)}/app", "v1")
    (image,) = await artifacts(cloud, registry_id)
    report = await cloud.call(REPORT, id=image.id)
    assert (report.State.Name(report.state), report.artifact_id) == ("NOT_RUN", image.id)
    assert "no advisories" in report.reason
    assert (await cloud.refusal(REPORT, id="artifact-e00none")).code is Code.NOT_FOUND
    _, outsider = await person(cloud)
    request, token = contract.method(REPORT).input(id=image.id), f"Bearer {outsider.access_token}"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await control_plane.call(cloud.channel, REPORT, request, (("authorization", token),))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_number_of_registries_is_a_quota(cloud: RegistryCloud) -> None:
    quotas = await cloud.call("nebius.quotas.v1.QuotaAllowanceService/List", parent_id=cloud.project_id)
    names = {each.metadata.name for each in quotas.items}
    assert "registry.registry.count" in names


async def test_a_newer_version_in_the_gateway_is_overtaken(tmp_path: Path) -> None:
    async with cloud_in_process(tmp_path) as cloud:
        registry_id = await cloud.registry()
        (bucket,) = cloud.gateway.store.buckets()
        await cloud.gateway.store.apply_bucket(replace(bucket, generation=7))
        operation = await cloud.call(
            "RegistryService/Update",
            metadata={"id": registry_id, "parent_id": cloud.project_id, "name": "team"},
            spec={"description": "after a restore"},
        )
        await cloud.when(registry_id, lambda registry: registry.metadata.resource_version == 8)
        assert (await cloud.operation(operation)).code == 0


async def test_the_official_client(cloud: RegistryCloud) -> None:
    service = RegistryServiceClient(cloud.sdk)
    operation = await service.create(
        CreateRegistryRequest(
            metadata=ResourceMetadata(parent_id=cloud.project_id, name="sdk"),
            spec=RegistrySpec(description="made with the SDK"),
        )
    )
    await operation.wait()
    await cloud.push(f"{short(operation.resource_id)}/app", "v1")
    found = await ArtifactServiceClient(cloud.sdk).list(ListArtifactsRequest(parent_id=operation.resource_id))
    assert [list(each.tags) for each in found.items] == [["v1"]]
