"""The verbs of buckets, with a gateway that applies the desired state."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.storage.v1 import BucketReport, ReportBucketsRequest

from neocloud.core.contract import Code
from tests import control_plane
from tests.fast.services.storage.cloud import StorageCloud, cloud_in_process

GIB = 1 << 30


async def test_a_bucket_is_active_once_the_gateway_serves_it(cloud: StorageCloud) -> None:
    operation = await cloud.call(
        "BucketService/Create",
        metadata={"parent_id": cloud.project_id, "name": "data-sets"},
        spec={"max_size_bytes": GIB, "versioning_policy": "ENABLED"},
    )
    assert (await cloud.operation(operation)).code == 0
    bucket = await cloud.get("Bucket", operation.resource_id)
    assert bucket.status.State.Name(bucket.status.state) == "ACTIVE"
    assert bucket.status.region == "eu-north1" and bucket.status.domain_name == "127.0.0.1:8902"
    assert not bucket.status.anonymous_access_enabled
    (listed,) = cloud.gateway.known.buckets
    assert (listed.name, listed.project_id, listed.tenant_id) == (
        "data-sets",
        cloud.project_id,
        cloud.tenant_id,
    )
    assert listed.spec.max_size_bytes == GIB


async def test_without_a_gateway_a_bucket_waits(tmp_path: Path) -> None:
    async with control_plane.cloud_in_process(tmp_path) as cloud:
        metadata = {"parent_id": cloud.project_id, "name": "data-sets"}
        operation = await cloud.call("nebius.storage.v1.BucketService/Create", metadata=metadata)

        def is_told(row: Any) -> bool:
            return row.status is not None and row.state == "CREATING"

        await cloud.row_when(operation.resource_id, is_told)
        found = await cloud.call("nebius.common.v1.OperationService/Get", id=operation.id)
        assert not found.HasField("status")


async def test_counters_are_those_of_the_last_report(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    await cloud.gateway.put("data-sets", 5 * GIB)
    found = await cloud.when(
        bucket_id,
        lambda bucket: any(each.counters.simple_objects_size == 5 * GIB for each in bucket.status.counters),
    )
    assert found.status.counters[0].counters.simple_objects_quantity == 1


async def test_an_update_is_done_when_the_gateway_has_it(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    operation = await cloud.call(
        "BucketService/Update",
        metadata={"id": bucket_id, "parent_id": cloud.project_id, "name": "data-sets"},
        spec={"versioning_policy": "ENABLED"},
    )
    assert (await cloud.operation(operation)).code == 0
    (listed,) = cloud.gateway.known.buckets
    assert listed.generation == 2 and listed.spec.versioning_policy == 2


async def test_an_empty_bucket_is_deleted_at_once_and_its_name_is_free(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    operation = await cloud.call("BucketService/Delete", id=bucket_id)
    assert (await cloud.operation(operation)).code == 0
    assert await cloud.row(bucket_id) is None
    assert await cloud.bucket("data-sets") != bucket_id


async def test_a_bucket_with_objects_is_kept_and_comes_back(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    await cloud.gateway.put("data-sets", GIB)
    await cloud.operation(await cloud.call("BucketService/Delete", id=bucket_id))
    bucket = await cloud.get("Bucket", bucket_id)
    assert bucket.status.State.Name(bucket.status.state) == "SCHEDULED_FOR_DELETION"
    kept = bucket.status.purge_at.ToDatetime() - bucket.status.deleted_at.ToDatetime()
    assert kept == timedelta(days=7)
    (listed,) = cloud.gateway.known.buckets
    assert listed.Mode.Name(listed.mode) == "HIDE"
    refused = await cloud.refusal(
        "BucketService/Create", metadata={"parent_id": cloud.project_id, "name": "data-sets"}
    )
    assert refused.code is Code.ALREADY_EXISTS
    refused = await cloud.refusal(
        "BucketService/Update", metadata={"id": bucket_id, "name": "data-sets"}, spec={"max_size_bytes": 1}
    )
    assert refused.code is Code.FAILED_PRECONDITION

    await cloud.operation(await cloud.call("BucketService/Undelete", id=bucket_id))
    bucket = await cloud.until(bucket_id, "ACTIVE")
    assert not bucket.status.HasField("deleted_at") and not bucket.status.HasField("purge_at")
    (listed,) = cloud.gateway.known.buckets
    assert listed.Mode.Name(listed.mode) == "SERVE"


async def test_an_empty_bucket_is_kept_for_as_long_as_the_request_says(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    await cloud.operation(await cloud.call("BucketService/Delete", id=bucket_id, ttl="3600s"))
    await cloud.gateway.report()
    await cloud.until(bucket_id, "SCHEDULED_FOR_DELETION")
    await cloud.operation(await cloud.call("BucketService/Undelete", id=bucket_id))
    await cloud.until(bucket_id, "ACTIVE")


async def test_a_bucket_is_purged_when_its_time_has_come(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    await cloud.gateway.put("data-sets", GIB)
    await cloud.call("BucketService/Delete", id=bucket_id, ttl="0.5s")
    await cloud.gone(bucket_id)
    assert cloud.gateway.bytes_in["data-sets"] == 0


async def test_purge_removes_what_is_in_it_at_once(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    await cloud.gateway.put("data-sets", GIB)
    refused = await cloud.refusal("BucketService/Purge", id=bucket_id)
    assert refused.code is Code.FAILED_PRECONDITION and "Delete it first" in refused.message
    refused = await cloud.refusal("BucketService/Undelete", id=bucket_id)
    assert refused.code is Code.FAILED_PRECONDITION
    await cloud.call("BucketService/Delete", id=bucket_id)
    purged = await cloud.operation(await cloud.call("BucketService/Purge", id=bucket_id))
    assert purged.code == 0, purged.message
    assert await cloud.row(bucket_id) is None and cloud.gateway.bytes_in["data-sets"] == 0


async def test_a_bucket_is_not_purged_while_object_lock_protects_it(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    await cloud.gateway.put("data-sets", GIB)
    cloud.gateway.protected.add("data-sets")
    now = datetime.now(UTC) + timedelta(seconds=1)
    deleted = await cloud.operation(
        await cloud.call("BucketService/Delete", id=bucket_id, purge_at=now.isoformat())
    )
    assert deleted.code == 0, deleted.message
    refused = await cloud.refusal("BucketService/Purge", id=bucket_id)
    assert refused.code is Code.FAILED_PRECONDITION and "Object lock" in refused.message
    cloud.gateway.protected.clear()
    await cloud.gateway.report()
    await cloud.gone(bucket_id)
    assert cloud.gateway.bytes_in["data-sets"] == 0


@pytest.mark.parametrize(
    "when",
    [{"purge_at": "2020-01-01T00:00:00Z"}, {"ttl": "-1s"}, {"purge_at": "2999-01-01T00:00:00Z"}],
    ids=["in the past", "negative", "too far"],
)
async def test_a_bucket_is_purged_only_in_times_that_make_sense(
    cloud: StorageCloud, when: dict[str, str]
) -> None:
    bucket_id = await cloud.bucket("data-sets")
    refused = await cloud.refusal("BucketService/Delete", id=bucket_id, **when)
    assert refused.code is Code.INVALID_ARGUMENT
    await cloud.until(bucket_id, "ACTIVE")


async def test_a_deletion_survives_a_restart(tmp_path: Path) -> None:
    async with cloud_in_process(tmp_path) as cloud:
        bucket_id = await cloud.bucket("data-sets")
        await cloud.gateway.put("data-sets", GIB)
        await cloud.operation(await cloud.call("BucketService/Delete", id=bucket_id, ttl="3600s"))
    async with cloud_in_process(tmp_path) as cloud:
        await cloud.gateway.put("data-sets", GIB)
        purge_at = datetime.now(UTC) + timedelta(seconds=0.5)
        await cloud.call("BucketService/Delete", id=bucket_id, purge_at=purge_at.isoformat())
        await cloud.gone(bucket_id)


async def test_lists_and_names(cloud: StorageCloud) -> None:
    ids = {name: await cloud.bucket(name) for name in ("one", "two", "three")}
    found = await cloud.call("BucketService/List", parent_id=cloud.project_id)
    assert [each.metadata.name for each in found.items] == list(ids)
    found = await cloud.call("BucketService/GetByName", parent_id=cloud.project_id, name="two")
    assert found.metadata.id == ids["two"]
    first = await cloud.call("BucketService/ListWithFilter", parent_id=cloud.project_id, page_size=2)
    rest = await cloud.call(
        "BucketService/ListWithFilter", parent_id=cloud.project_id, page_token=first.next_page_token
    )
    assert [each.metadata.name for each in (*first.items, *rest.items)] == list(ids)
    regular = {"bucket_type": "REGULAR"}
    found = await cloud.call("BucketService/ListWithFilter", parent_id=cloud.project_id, filters=regular)
    assert len(found.items) == 3
    others = {"bucket_type": "FILESYSTEM"}
    found = await cloud.call("BucketService/ListWithFilter", parent_id=cloud.project_id, filters=others)
    assert not found.items


async def test_a_name_is_taken_in_all_projects(cloud: StorageCloud) -> None:
    await cloud.bucket("data-sets")
    metadata = {"parent_id": cloud.tenant_id, "name": "other"}
    other = await cloud.call("nebius.iam.v1.ProjectService/Create", metadata=metadata)
    refused = await cloud.refusal(
        "BucketService/Create", metadata={"parent_id": other.resource_id, "name": "data-sets"}
    )
    assert refused.code is Code.ALREADY_EXISTS and "storagebucket-" not in refused.message


async def test_the_number_of_buckets_is_a_quota(cloud: StorageCloud) -> None:
    await cloud.call(
        "nebius.quotas.v1.QuotaAllowanceService/Create",
        metadata={"parent_id": cloud.project_id, "name": "storage.bucket.count"},
        spec={"limit": 1, "region": "eu-north1"},
    )
    bucket_id = await cloud.bucket("one")
    refused = await cloud.refusal(
        "BucketService/Create", metadata={"parent_id": cloud.project_id, "name": "two"}
    )
    assert refused.code is Code.RESOURCE_EXHAUSTED and "storage.bucket.count" in refused.message
    await cloud.operation(await cloud.call("BucketService/Delete", id=bucket_id))
    await cloud.bucket("two")


async def test_a_gateway_that_is_newer_than_the_database_is_overtaken(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    newer = BucketReport(id=bucket_id, name="data-sets", applied_generation=7, applied="SERVE")
    await cloud.gateway.call("ReportBuckets", ReportBucketsRequest(buckets=[newer]))
    await cloud.when(bucket_id, lambda bucket: bucket.metadata.resource_version == 8, "ACTIVE")


async def test_what_is_not_served_yet_says_so(cloud: StorageCloud) -> None:
    method = "nebius.storage.v1alpha1.TransferService/List"
    refused = await cloud.refusal(method, parent_id=cloud.project_id)
    assert refused.code is Code.UNIMPLEMENTED
