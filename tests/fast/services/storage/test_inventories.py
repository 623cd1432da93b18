"""The verbs of inventories and who may have one, with a gateway that reports what a test says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc.aio
import pytest
from neocloud.messages.nebius.storage.v1 import InventoryStatus
from neocloud.messages.neocloud.storage.v1 import (
    GatewayInventory,
    InventoryReport,
    ListGatewayInventoriesRequest,
    ReportInventoriesRequest,
)

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.services.iam.access.tokens import token_issuer
from tests.fast.services.storage.cloud import StorageCloud

SPEC: dict[str, Any] = {"enabled": True, "output_format": "CSV_GZIP", "schedule": "DAILY"}


async def create(cloud: StorageCloud, source: str, destination: str, **changes: Any) -> str:
    made = await cloud.call(
        "InventoryService/Create",
        metadata={"parent_id": source, "name": "all"},
        spec={**SPEC, "destination_bucket_id": destination, **changes},
    )
    return made.resource_id


async def listed(cloud: StorageCloud) -> list[GatewayInventory]:
    answer = await cloud.gateway.call("ListInventories", ListGatewayInventoriesRequest())
    return list(answer.inventories)


async def report(cloud: StorageCloud, **status: Any) -> None:
    """Report each inventory as applied, and those to be removed as removed."""
    request = ReportInventoriesRequest()
    for each in await listed(cloud):
        request.inventories.append(
            InventoryReport(
                id=each.id,
                applied_generation=each.generation,
                is_removed=each.is_removed,
                status=InventoryStatus(**status),
            )
        )
    await cloud.gateway.call("ReportInventories", request)


@pytest.fixture
async def buckets(cloud: StorageCloud) -> tuple[str, str]:
    return await cloud.bucket("data"), await cloud.bucket("reports")


async def test_the_gateway_gets_an_inventory_and_its_report_is_shown(
    cloud: StorageCloud, buckets: tuple[str, str]
) -> None:
    inventory_id = await create(cloud, *buckets)
    (found,) = await listed(cloud)
    assert (found.id, found.generation, found.source_bucket_id) == (inventory_id, 1, buckets[0])
    assert found.subject_id and found.tenant_id == cloud.tenant_id
    assert found.spec.destination_bucket_id == buckets[1]
    last = InventoryStatus().last_success
    last.FromJsonString("2026-11-26T00:00:00Z")
    await report(cloud, last_success=last)
    shown = await cloud.when(inventory_id, lambda found: found.status.last_success == last)
    assert shown.status.error_code == 0
    await report(cloud, error_code="QUOTA_EXCEEDED", last_success=last)
    shown = await cloud.when(inventory_id, lambda found: found.status.error_code == 4)
    assert (await cloud.get("Inventory", inventory_id)).status == shown.status


async def test_create_and_delete_end_when_the_gateway_has_applied_them(
    cloud: StorageCloud, buckets: tuple[str, str]
) -> None:
    made = await cloud.call(
        "InventoryService/Create",
        metadata={"parent_id": buckets[0], "name": "all"},
        spec={**SPEC, "destination_bucket_id": buckets[1]},
    )
    assert not made.HasField("status")
    await report(cloud)
    assert (await cloud.operation(made)).code == 0
    deleted = await cloud.call("InventoryService/Delete", id=made.resource_id)
    assert [each.is_removed for each in await listed(cloud)] == [True]
    await report(cloud)
    assert (await cloud.operation(deleted)).code == 0
    assert await listed(cloud) == []


async def test_it_goes_with_its_bucket(cloud: StorageCloud, buckets: tuple[str, str]) -> None:
    inventory_id = await create(cloud, *buckets)
    await report(cloud)
    await cloud.call("BucketService/Delete", id=buckets[0])
    await cloud.row_when(inventory_id, lambda row: row is not None and row.deleted_at is not None)
    await report(cloud)
    await cloud.gone(inventory_id)


@asynccontextmanager
async def acting_as(cloud: StorageCloud, account_id: str) -> AsyncIterator[None]:
    mine = cloud.token
    issue = token_issuer(cloud.running.store, SystemClock())
    cloud.token, _ = await issue(account_id, timedelta(minutes=5))
    try:
        yield
    finally:
        cloud.token = mine


async def test_who_may_not_list_the_source_or_write_into_the_destination_is_refused(
    cloud: StorageCloud, buckets: tuple[str, str]
) -> None:
    source, destination = buckets
    group, account_id = await cloud.group("auditors"), await cloud.account("auditor")
    await cloud.join(account_id, group)
    spec = {**SPEC, "destination_bucket_id": destination}
    metadata = {"parent_id": source, "name": "all"}

    async def refusal() -> Code:
        async with acting_as(cloud, account_id):
            return (await cloud.refusal("InventoryService/Create", metadata=metadata, spec=spec)).code

    assert await refusal() in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
    await cloud.permit(group, source, "storage.editor")
    assert await refusal() in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
    await cloud.permit(group, destination, "storage.viewer")
    assert await refusal() is Code.PERMISSION_DENIED
    await cloud.permit(group, destination, "storage.objects.editor")
    async with acting_as(cloud, account_id):
        inventory_id = await create(cloud, *buckets)
    (found,) = await listed(cloud)
    assert (found.id, found.subject_id) == (inventory_id, account_id)


async def test_who_changes_it_needs_the_rights_and_is_whom_it_runs_for(
    cloud: StorageCloud, buckets: tuple[str, str]
) -> None:
    inventory_id = await create(cloud, *buckets)
    await report(cloud)
    (before,) = await listed(cloud)
    group, account_id = await cloud.group("auditors"), await cloud.account("auditor")
    await cloud.join(account_id, group)
    await cloud.permit(group, buckets[0], "storage.editor")
    await cloud.permit(group, buckets[1], "storage.viewer")
    change = {"metadata": {"id": inventory_id}, "spec": {"schedule": "WEEKLY"}}
    async with acting_as(cloud, account_id):
        assert (await cloud.refusal("InventoryService/Update", change)).code is Code.PERMISSION_DENIED
    assert await listed(cloud) == [before]
    await cloud.permit(group, buckets[1], "storage.editor")
    async with acting_as(cloud, account_id):
        await cloud.call("InventoryService/Update", change)
    (after,) = await listed(cloud)
    assert (after.subject_id, after.spec.schedule, after.generation) == (account_id, 2, 2)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"output_format": 0}, "spec.output_format"),
        ({"optional_fields": ["TAGS", 99]}, "spec.optional_fields[1]"),
        ({"optional_fields": ["TAGS", "TAGS"]}, "spec.optional_fields[1]"),
        ({"source_prefix": "x" * 1025}, "spec.source_prefix"),
        ({"destination_prefix": "ÿ" * 256 + "x"}, "spec.destination_prefix"),
        ({"destination_prefix": "\U0001f600" * 200}, "spec.destination_prefix"),
        ({"schedule": 7}, "spec.schedule"),
    ],
)
async def test_what_is_no_inventory_is_refused(
    cloud: StorageCloud, buckets: tuple[str, str], changes: dict[str, Any], field: str
) -> None:
    refused = await cloud.refusal(
        "InventoryService/Create",
        metadata={"parent_id": buckets[0]},
        spec={**SPEC, "destination_bucket_id": buckets[1], **changes},
    )
    assert refused.code is Code.INVALID_ARGUMENT and field in refused.message


async def test_a_deleted_destination_is_refused(cloud: StorageCloud, buckets: tuple[str, str]) -> None:
    await cloud.gateway.put("reports", 1)
    await cloud.call("BucketService/Delete", id=buckets[1])
    spec = {**SPEC, "destination_bucket_id": buckets[1]}
    refused = await cloud.refusal("InventoryService/Create", metadata={"parent_id": buckets[0]}, spec=spec)
    assert refused.code is Code.FAILED_PRECONDITION and "Undelete" in refused.message


@pytest.mark.parametrize("verb", ["ListInventories", "ReportInventories"])
async def test_only_the_object_gateway_may_ask(cloud: StorageCloud, verb: str) -> None:
    request = ListGatewayInventoriesRequest() if verb.startswith("List") else ReportInventoriesRequest()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cloud.gateway.call(verb, request, key="wrong")
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
