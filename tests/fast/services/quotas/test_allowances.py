"""Quotas that clients see and set, with the official SDK: the six methods. QUOTA-01."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.iam.v1 import ContainerSpec, CreateProjectRequest, ProjectServiceClient
from nebius.api.nebius.quotas.v1 import (
    CreateQuotaAllowanceRequest,
    DeleteQuotaAllowanceRequest,
    GetByNameRequest,
    GetQuotaAllowanceRequest,
    ListQuotaAllowancesRequest,
    QuotaAllowanceSpec,
    QuotaAllowanceStatus,
    UpdateQuotaAllowanceRequest,
)

from neocloud.core import contract
from neocloud.services.quotas.rules import default_quotas
from tests.fast.services.quotas.conftest import COUNT, GIB, REGION, SIZE, Cloud, refused, running_cloud

State, UsageState = QuotaAllowanceStatus.State, QuotaAllowanceStatus.UsageState


shared = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module")
async def refusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cloud]:
    """A cloud for requests that it refuses."""
    async with running_cloud(tmp_path_factory.mktemp("refusing")) as started:
        yield started


async def test_every_quota_is_listed_in_pages(cloud: Cloud) -> None:
    seen, token = [], ""
    while True:
        request = ListQuotaAllowancesRequest(parent_id=cloud.tenant_id, page_size=7, page_token=token)
        page = await cloud.allowances.list(request)
        seen += [item.metadata.name for item in page.items]
        token = page.next_page_token
        if not token:
            break
    assert seen == sorted(default_quotas())
    whole = await cloud.allowances.list(ListQuotaAllowancesRequest(parent_id=cloud.tenant_id))
    assert [item.metadata.name for item in whole.items] == seen


async def test_an_allowance_says_limit_usage_and_what_it_is(cloud: Cloud) -> None:
    await cloud.limit(SIZE, 40 * GIB)
    await cloud.made_filesystem("a", 5)
    found = await cloud.allowance(SIZE)
    assert (found.spec.limit, found.spec.region, found.metadata.parent_id) == (
        40 * GIB,
        REGION,
        cloud.project_id,
    )
    status = found.status
    assert (status.state, status.usage_state) == (State.STATE_ACTIVE, UsageState.USAGE_STATE_USED)
    assert (status.usage, status.usage_percentage, status.unit) == (5 * GIB, "0.13", "byte")
    assert (status.service, status.service_description) == ("compute", "Compute")
    assert status.description == "Size of SSD file systems"
    unused = (await cloud.allowance("slurm.cluster.count")).status
    assert (unused.usage_state, unused.usage_percentage) == (UsageState.USAGE_STATE_NOT_USED, "0.0")


async def test_ids_are_ids_of_the_contract_and_lead_back(cloud: Cloud) -> None:
    for parent in (cloud.tenant_id, cloud.project_id):
        page = await cloud.allowances.list(ListQuotaAllowancesRequest(parent_id=parent))
        assert len({item.metadata.id for item in page.items}) == len(page.items)
        for item in page.items[:3]:
            assert contract.is_id(item.metadata.id)
            again = await cloud.allowances.get(GetQuotaAllowanceRequest(id=item.metadata.id))
            assert (again.metadata.name, again.metadata.parent_id) == (item.metadata.name, parent)


async def test_a_project_has_what_its_tenant_has_until_it_is_given_less(cloud: Cloud) -> None:
    default = default_quotas()[COUNT].limit
    assert (await cloud.allowance(COUNT)).spec.limit == default
    await cloud.limit(COUNT, 50, cloud.tenant_id)
    assert (await cloud.allowance(COUNT)).spec.limit == 50
    await cloud.limit(COUNT, 20)
    assert (await cloud.allowance(COUNT)).spec.limit == 20
    assert (await cloud.allowance(COUNT, cloud.tenant_id)).spec.limit == 50


async def test_more_than_the_tenant_has_is_refused(cloud: Cloud) -> None:
    await cloud.limit(COUNT, 50, cloud.tenant_id)
    status = await refused(cloud.limit(COUNT, 51))
    assert status.code.name == "INVALID_ARGUMENT"
    assert f"neo quota set {COUNT} 51 --tenant {cloud.tenant_id}" in status.message


async def test_creating_again_replaces_and_an_update_changes(cloud: Cloud) -> None:
    first = await cloud.limit(COUNT, 5)
    assert await cloud.limit(COUNT, 6) == first
    request = UpdateQuotaAllowanceRequest(
        metadata=ResourceMetadata(id=first), spec=QuotaAllowanceSpec(limit=0, region=REGION)
    )
    operation = await cloud.allowances.update(request)
    assert (operation.successful(), operation.resource_id) == (True, first)
    found = await cloud.allowance(COUNT)
    assert (found.spec.limit, found.metadata.resource_version) == (0, 3)
    assert (await refused(cloud.make_filesystem("a"))).code.name == "RESOURCE_EXHAUSTED"


async def test_deleting_brings_the_first_limit_back(cloud: Cloud) -> None:
    identifier = await cloud.limit(COUNT, 0)
    assert (await cloud.allowances.delete(DeleteQuotaAllowanceRequest(id=identifier))).successful()
    assert (await cloud.allowance(COUNT)).spec.limit == default_quotas()[COUNT].limit
    await cloud.made_filesystem("a")
    again = await cloud.allowances.delete(DeleteQuotaAllowanceRequest(id=identifier))
    assert again.successful()


async def test_a_change_of_another_version_is_refused(cloud: Cloud) -> None:
    identifier = await cloud.limit(COUNT, 5)
    stale = ResourceMetadata(id=identifier, resource_version=7)
    spec = QuotaAllowanceSpec(limit=1, region=REGION)
    status = await refused(cloud.allowances.update(UpdateQuotaAllowanceRequest(metadata=stale, spec=spec)))
    assert status.code.name == "ABORTED"


@shared
@pytest.mark.parametrize(
    ("name", "spec", "told"),
    [
        ("compute.filesytem.count", {"limit": 1}, "did you mean compute.filesystem.count"),
        ("nothing.like.it.at.all.xyz", {"limit": 1}, "`neo quota list` shows all"),
        (COUNT, {}, "spec.limit is required"),
        (COUNT, {"limit": 1 << 63}, "must be at most"),
        (COUNT, {"limit": 1, "region": "mars"}, "this cloud is 'eu-north1'"),
    ],
)
async def test_wrong_limits_are_told_what_is_right(
    refusing: Cloud, name: str, spec: dict[str, Any], told: str
) -> None:
    metadata = ResourceMetadata(parent_id=refusing.project_id, name=name)
    fields: dict[str, Any] = {"region": REGION, **spec}
    given = QuotaAllowanceSpec(**fields)
    call = refusing.allowances.create(CreateQuotaAllowanceRequest(metadata=metadata, spec=given))
    status = await refused(call)
    assert status.code.name == "INVALID_ARGUMENT"
    assert told in status.message


async def test_what_is_no_container_has_no_quotas(cloud: Cloud) -> None:
    filesystem = await cloud.made_filesystem("a")
    status = await refused(cloud.allowances.list(ListQuotaAllowancesRequest(parent_id=filesystem)))
    assert (status.code.name, "tenant or a project" in status.message) == ("INVALID_ARGUMENT", True)
    request = GetByNameRequest(parent_id=cloud.project_id, name="no.such", region=REGION)
    assert (await refused(cloud.allowances.get_by_name(request))).code.name == "NOT_FOUND"


@shared
@pytest.mark.parametrize(
    "identifier",
    ["quotaallowance-e00tenant-e00elsewhere-0123456789ab", "quotaallowance-e00x", "disk-e00x", "x"],
)
async def test_ids_of_others_and_nonsense_are_not_found(refusing: Cloud, identifier: str) -> None:
    status = await refused(refusing.allowances.get(GetQuotaAllowanceRequest(id=identifier)))
    assert status.code.name == "NOT_FOUND"


async def test_a_projects_quota_is_its_own(cloud: Cloud) -> None:
    metadata = ResourceMetadata(parent_id=cloud.tenant_id, name="risk")
    created = await ProjectServiceClient(cloud.sdk).create(
        CreateProjectRequest(metadata=metadata, spec=ContainerSpec(region=REGION))
    )
    await cloud.limit(COUNT, 1)
    await cloud.made_filesystem("a")
    await cloud.made_filesystem("a", parent_id=created.resource_id)
    assert await cloud.usage(COUNT, created.resource_id) == 1
    assert await cloud.usage(COUNT, cloud.tenant_id) == 2
    assert await cloud.counter_errors() == {}
