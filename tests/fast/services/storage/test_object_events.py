"""Requests to objects in the audit log: only of those who may see it, each once."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.storage.v1 import ObjectEvent, ReportObjectEventsRequest

from neocloud.core import contract
from neocloud.core.store import Page, Store
from neocloud.core.store.audit_query import OBJECT_METHOD, AuditQuery, Is
from neocloud.core.store.audit_query import Test as Comparison
from tests import control_plane
from tests.fast.services.registry.cloud import cloud_in_process
from tests.fast.services.storage.cloud import AccountCloud, StorageCloud

HOSTILE = "a\x00b\x1b[31m'; DROP TABLE audit --\n../%s"


async def report(cloud: StorageCloud, *events: ObjectEvent, is_repeated: bool = False) -> None:
    request = ReportObjectEventsRequest(events=events, is_repeated=is_repeated)
    await cloud.gateway.call("ReportObjectEvents", request)


async def listed(cloud: StorageCloud, filter_: str = "", **fields: Any) -> list[Any]:
    now = datetime.now(UTC)
    request = {
        "parent_id": cloud.tenant_id,
        "start": (now - timedelta(hours=1)).isoformat(),
        "end": (now + timedelta(hours=1)).isoformat(),
        "filter": filter_,
        "event_type": "DATA_PLANE",
        "region": "eu-north1",
        **fields,
    }
    return list((await cloud.call("nebius.audit.v2.AuditEventService/List", **request)).items)


async def new_bucket(cloud: StorageCloud) -> str:
    metadata = {"parent_id": cloud.project_id, "name": "data"}
    made = await cloud.call(
        "BucketService/Create", metadata=metadata, spec={"object_audit_logging": "MUTATE_ONLY"}
    )
    return made.resource_id


def event(cloud: AccountCloud, bucket_id: str, number: int = 1, **fields: Any) -> ObjectEvent:
    usual: dict[str, Any] = {
        "id": f"auditevent-{number}",
        "at": contract.timestamp(datetime.now(UTC)),
        "request_id": f"R{number}",
        "operation": "PutObject",
        "bucket_id": bucket_id,
        "bucket": "data",
        "tenant_id": cloud.tenant_id,
        "key": "a/key",
        "access_key_id": "NCAKX",
        "status": 200,
    }
    return ObjectEvent(**(usual | fields))


async def test_a_request_is_an_event_of_the_data_plane(cloud: StorageCloud) -> None:
    bucket_id = await new_bucket(cloud)
    account_id = await cloud.account("loader")
    await report(
        cloud,
        event(cloud, bucket_id, subject_id=account_id, client="192.0.2.1", user_agent="boto3", sent_bytes=9),
        event(cloud, bucket_id, 2, operation="GetObject", status=403, error="AccessDenied"),
    )
    refused, put = await listed(cloud)
    assert (put.type, put.action, put.source) == ("ai.nebius.storage.object.put_object", "put_object", "/s3")
    who = put.authentication
    assert (who.subject.name, who.subject.service_account_id) == ("loader", account_id)
    assert who.static_key_credential.id == "NCAKX"
    assert (put.resource.metadata.id, put.resource.metadata.name) == (bucket_id, "data")
    assert [each.id for each in put.resource.hierarchy] == [cloud.tenant_id, cloud.project_id, bucket_id]
    request = put.request
    assert (request.client_ip, request.user_agent, request.request_id) == ("192.0.2.1", "boto3", "R1")
    assert request.parameters["key"] == "a/key" and request.parameters["sent_bytes"] == "9"
    assert (refused.authentication.authenticated, refused.authorization.authorized) == (False, False)
    assert refused.response.error_message == "AccessDenied"
    by_key = "authentication.static_key_credential.id = 'NCAKX' AND status = 'ERROR'"
    assert [each.id for each in await listed(cloud, by_key)] == ["auditevent-2"]
    others = await listed(cloud, event_type="CONTROL_PLANE")
    assert others and not {"auditevent-1", "auditevent-2"} & {each.id for each in others}
    assert others == await listed(cloud, event_type=0)


async def test_what_was_reported_before_is_there_once(cloud: StorageCloud) -> None:
    bucket_id = await new_bucket(cloud)
    first, second = event(cloud, bucket_id), event(cloud, bucket_id, 2)
    await report(cloud, first, is_repeated=True)
    await report(cloud, first, second, is_repeated=True)
    assert sorted(each.id for each in await listed(cloud)) == ["auditevent-1", "auditevent-2"]


async def test_hostile_text_stays_text(cloud: StorageCloud) -> None:
    bucket_id = await new_bucket(cloud)
    await report(cloud, event(cloud, bucket_id, key=HOSTILE, version_id=HOSTILE))
    (found,) = await listed(cloud)
    assert found.request.parameters["key"] == HOSTILE


async def test_a_bucket_that_is_gone_still_has_its_events(cloud: StorageCloud) -> None:
    await report(cloud, event(cloud, "storagebucket-e00gone"))
    (found,) = await listed(cloud)
    assert [each.id for each in found.resource.hierarchy] == [cloud.tenant_id, "storagebucket-e00gone"]


async def test_accounts_of_other_tenants_are_not_named(cloud: StorageCloud) -> None:
    bucket_id = await new_bucket(cloud)
    account_id = await cloud.account("loader")
    await report(cloud, event(cloud, bucket_id, subject_id=account_id, tenant_id="tenant-e00other"))
    assert await listed(cloud) == []
    found = await cloud.running.store.read(lambda tx: tx.list_audit()[0])
    (row,) = [each for each in found if each.id == "auditevent-1"]
    assert (row.tenant_id, row.subject, row.subject_name) == ("tenant-e00other", account_id, "")


@pytest.mark.parametrize(("number", "text"), [(700, "key"), (90, "\U0001f600" * 1024)])
async def test_any_number_of_events_of_any_size_gets_through(tmp_path: Path, number: int, text: str) -> None:
    async with cloud_in_process(tmp_path) as cloud:
        for each in range(number):
            told = event(cloud, "storagebucket-e00gone", each, key=text, version_id=text, user_agent=text)
            cloud.gateway.s3.audit.record(told)
        query = AuditQuery(cloud.tenant_id, condition=Is("method", Comparison.CONTAINS, OBJECT_METHOD))
        store = cloud.running.store
        async with asyncio.timeout(control_plane.DEADLINE_SECONDS):
            while (await _number_of(store, query)) < number:
                await asyncio.sleep(0.05)
        assert await _number_of(store, query) == number


async def _number_of(store: Store, query: AuditQuery) -> int:
    return len((await store.read(lambda tx: tx.find_audit(query, Page(2000))))[0])
