"""A release: two served models, one active release of a model, and its end by a caller or by the gateway."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.core.contract import Code
from neocloud.data_plane.gateway_keys import KEY_HEADER, gateway_key_file
from tests.fast.services.inference.cloud import (
    POD_SHAPE,
    FakeCloud,
    fake_cloud,
    write_adapter,
    write_model,
)

pytestmark = pytest.mark.slow

SERVICE = "neocloud.inference.v1.ReleaseService"
GATEWAY = "neocloud.inference.v1.GatewayService"


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path / "home") as running:
        yield running


async def served(cloud: FakeCloud, adapters: int = 2) -> dict[str, str]:
    """Return the ids of a base with so many adapters by name, all of them served."""
    source = {"source": {"folder": str(write_model(cloud.models / "bank"))}}
    ids = {"bank": await cloud.create("Model", "bank", source)}
    await cloud.until(ids["bank"], "READY")
    scaling = {"min_replicas": 1, "max_replicas": 1}
    spec = {"model_id": ids["bank"], **POD_SHAPE, "scaling": scaling, "max_adapters": 4}
    deployment = await cloud.create("Deployment", "bank", spec)
    for number in range(adapters):
        name = f"v{number}"
        folder = write_adapter(cloud.models / name, module="q_proj", layer=number)
        made = {"source": {"folder": str(folder)}, "base_model_id": ids["bank"]}
        ids[name] = await cloud.create("Model", name, made)
    names = {"bank", *(f"v{number}" for number in range(adapters))}
    await cloud.when(deployment, lambda each: set(each.status.served_names) == names, "READY")
    return ids


async def release(cloud: FakeCloud, name: str, ids: dict[str, str], candidate: str, **more: Any) -> str:
    spec = {"model_id": ids["bank"], "candidate_model_id": ids[candidate], "share_percent": 10, **more}
    return await cloud.create("Release", name, spec)


async def as_gateway(cloud: FakeCloud, verb: str, **request: Any) -> Any:
    key = gateway_key_file(cloud.home).read_text().strip()
    return await cloud.call(f"{GATEWAY}/{verb}", request, headers={KEY_HEADER: key})


async def routed(cloud: FakeCloud) -> list[tuple[str, str, int, bool]]:
    found = (await as_gateway(cloud, "ListRoutes")).releases
    return [(each.name, each.candidate_name, each.share_percent, each.is_promoted) for each in found]


async def test_a_share_is_routed_until_it_is_promoted_and_the_next_release_builds_on_it(
    cloud: FakeCloud,
) -> None:
    ids = await served(cloud)
    first = await release(cloud, "first", ids, "v0")
    assert await routed(cloud) == [("bank", "v0", 10, False)]
    update = {"metadata": {"id": first, "parent_id": cloud.project_id, "name": "first"}}
    spec = (await cloud.get("Release", first)).spec
    assert (spec.most_failed_percent, spec.least_requests) == (5, 20)
    changed = {"model_id": ids["bank"], "candidate_model_id": ids["v0"], "share_percent": 50}
    await cloud.call(f"{SERVICE}/Update", {**update, "spec": changed})
    assert await routed(cloud) == [("bank", "v0", 50, False)]
    await cloud.call(f"{SERVICE}/Promote", id=first)
    assert await routed(cloud) == [("bank", "v0", 50, True)]
    refused = await cloud.refusal(f"{SERVICE}/Update", {**update, "spec": {**changed, "share_percent": 5}})
    assert "the release is PROMOTED" in refused.message

    second = await release(cloud, "second", ids, "v1")
    assert await routed(cloud) == [("bank", "v1", 10, False), ("bank", "v0", 50, True)]
    await cloud.call(f"{SERVICE}/Promote", id=second)
    assert await routed(cloud) == [("bank", "v1", 10, True)]
    await cloud.call(f"{SERVICE}/RollBack", id=second, reason="complaints")
    assert await routed(cloud) == [("bank", "v0", 50, True)]
    assert (await cloud.get("Release", second)).status.message == "complaints"
    again = await cloud.refusal(f"{SERVICE}/Promote", id=second)
    assert again.code is Code.FAILED_PRECONDITION and "ROLLED_BACK already" in again.message
    await cloud.call(f"{SERVICE}/Delete", id=first)
    assert await routed(cloud) == []


async def test_two_releases_at_once_are_refused_with_the_reason(cloud: FakeCloud) -> None:
    ids = await served(cloud)
    first = await release(cloud, "first", ids, "v0")
    request = {
        "metadata": {"parent_id": cloud.project_id, "name": "second"},
        "spec": {"model_id": ids["bank"], "candidate_model_id": ids["v1"], "share_percent": 10},
    }
    refused = await cloud.refusal(f"{SERVICE}/Create", request)
    assert "the release first of this model is active" in refused.message
    assert len(await routed(cloud)) == 1
    await cloud.call(f"{SERVICE}/RollBack", id=first)
    await cloud.call(f"{SERVICE}/Create", request)
    assert await routed(cloud) == [("bank", "v1", 10, False)]


async def test_what_the_gateway_reports_is_added_up_and_its_reason_ends_the_release(cloud: FakeCloud) -> None:
    ids = await served(cloud, 1)
    made = await release(cloud, "first", ids, "v0")
    counted = {"release_id": made, "requests": 10, "failed": 2, "first_byte_milliseconds": 800}
    await as_gateway(cloud, "ReportRelease", **counted)
    await as_gateway(cloud, "ReportRelease", **{**counted, "failed": 10, "first_byte_milliseconds": 0})
    status = (await cloud.get("Release", made)).status
    assert (status.requests, status.failed, status.first_byte_milliseconds) == (20, 12, 100)
    why = "3 of its requests failed in a row."
    await as_gateway(cloud, "ReportRelease", release_id=made, rolled_back_because=why)
    ended = await cloud.until(made, "ROLLED_BACK")
    assert ended.status.message == why and ended.status.HasField("ended_at")
    assert await routed(cloud) == []
    await cloud.call(f"{SERVICE}/Delete", id=made)
    await as_gateway(cloud, "ReportRelease", **counted)  # a report on its way while it was deleted


async def test_nobody_but_the_gateway_reports(cloud: FakeCloud) -> None:
    ids = await served(cloud, 1)
    made = await release(cloud, "first", ids, "v0")
    refused = await cloud.refusal(f"{GATEWAY}/ReportRelease", release_id=made, rolled_back_because="mine")
    assert refused.code is Code.PERMISSION_DENIED
    assert (await cloud.get("Release", made)).status.message == ""


async def test_only_models_that_are_served_take_part(cloud: FakeCloud) -> None:
    ids = await served(cloud, 1)
    folder = write_model(cloud.models / "other")
    ids["other"] = await cloud.create("Model", "other", {"source": {"folder": str(folder)}})
    await cloud.until(ids["other"], "READY")
    for candidate, complaint in (("other", "other is not served"), ("bank", "is the model itself")):
        refused = await cloud.refusal(
            f"{SERVICE}/Create",
            metadata={"parent_id": cloud.project_id, "name": "first"},
            spec={"model_id": ids["bank"], "candidate_model_id": ids[candidate], "share_percent": 10},
        )
        assert complaint in refused.message


async def test_a_release_takes_over_no_name_of_another_project(cloud: FakeCloud) -> None:
    """The right to make releases in one project gives neither the prompts of another nor a way to stop it."""
    ids = await served(cloud, 1)
    made = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "other"}
    )
    refused = await cloud.refusal(
        f"{SERVICE}/Create",
        metadata={"parent_id": made.resource_id, "name": "mine"},
        spec={"model_id": ids["bank"], "candidate_model_id": ids["v0"], "share_percent": 99},
    )
    assert refused.code is Code.INVALID_ARGUMENT and "there is no such model" in refused.message
    assert await routed(cloud) == []
