"""The audit log by the official SDK: every change and every denial, nobody else's, no secrets."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from nebius.api.nebius.audit.v2 import (
    AuditEvent,
    AuditEventServiceClient,
    EventType,
    ListAuditEventRequest,
)

from neocloud.core import contract
from neocloud.core.store import AuditEvent as Row
from neocloud.core.store import Page
from neocloud.core.store.audit_query import AuditQuery
from tests.fast.services.quotas.conftest import COUNT, REGION, Cloud, refused, running_cloud

pytestmark = pytest.mark.slow

STATUS = AuditEvent().status.__class__


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with running_cloud(tmp_path) as started:
        yield started


def question(**fields: Any) -> ListAuditEventRequest:
    now = datetime.now(UTC)
    usual = {"start": now - timedelta(days=7), "end": now + timedelta(minutes=1), "region": REGION}
    return ListAuditEventRequest(**(usual | fields))


async def events(cloud: Cloud, filter_: str = "", **fields: Any) -> list[AuditEvent]:
    request = question(**({"parent_id": cloud.tenant_id, "filter": filter_} | fields))
    return list((await AuditEventServiceClient(cloud.sdk).list(request)).items)


async def test_a_change_says_who_what_where_and_how_it_ended(cloud: Cloud) -> None:
    identifier = await cloud.made_filesystem("data")
    (event,) = await events(cloud, "resource.metadata.type = 'filesystem'")
    assert (event.service.name, event.action, event.type) == (
        "compute", "create", "ai.nebius.compute.filesystem.create",
    )  # fmt: skip
    assert (event.resource.metadata.id, event.resource.metadata.name) == (identifier, "data")
    hierarchy = [(level.type, level.id) for level in event.resource.hierarchy]
    assert hierarchy == [
        ("tenant", cloud.tenant_id),
        ("project", cloud.project_id),
        ("filesystem", identifier),
    ]
    assert event.authentication.authenticated
    assert event.authentication.subject.name == "operator"
    assert str(event.authentication.subject.service_account_id).startswith("serviceaccount-")
    assert event.request.client_ip == "127.0.0.1"
    assert "tests/1.0" in event.request.user_agent
    assert event.request.request_id and event.request.idempotency_id
    assert event.status.name == "STARTED"
    assert event.response.status_code == contract.Code.OK


async def test_a_removed_resource_keeps_its_name_in_the_log(cloud: Cloud) -> None:
    identifier = await cloud.limit(COUNT, 5)
    (event,) = await events(cloud, "service.name = 'quotas'")
    assert (event.status.name, event.action) == ("DONE", "create")
    assert identifier
    filesystem = await cloud.made_filesystem("data")
    await cloud.remove(filesystem)
    (event,) = await events(cloud, "action = 'delete'")
    assert (event.resource.metadata.id, event.resource.metadata.name) == (filesystem, "data")


async def test_a_refused_change_is_there_with_its_reason(cloud: Cloud) -> None:
    await cloud.limit(COUNT, 0)
    await refused(cloud.make_filesystem("data"))
    (event,) = await events(cloud, "status = 'ERROR'")
    assert event.response.status_code == contract.Code.RESOURCE_EXHAUSTED
    assert COUNT in event.response.error_message
    assert (event.resource.metadata.type, event.resource.metadata.id) == ("project", cloud.project_id)


async def test_a_denial_is_there_and_tells_nothing_of_others(cloud: Cloud) -> None:
    await refused(cloud.made_filesystem("data", parent_id="project-e00elsewhere"))
    (event,) = await events(cloud, "status = 'ERROR'")
    assert event.response.status_code == contract.Code.NOT_FOUND
    assert event.resource.metadata.id == "project-e00elsewhere"
    assert not event.resource.metadata.name and not event.resource.hierarchy


async def test_another_tenants_events_are_never_seen(cloud: Cloud) -> None:
    foreign = Row(
        "auditevent-e00f", cloud.running.server._dependencies.clock.now(), "s", "m/x", "", "", "q", 0,
        tenant_id="tenant-e00other", service="iam",
    )  # fmt: skip
    await cloud.running.store.write(lambda tx: tx.audit(foreign))
    assert "auditevent-e00f" not in {event.id for event in await events(cloud)}
    status = await refused(events(cloud, parent_id="tenant-e00other"))
    assert status.code.name == "NOT_FOUND"


async def test_time_pages_and_a_project_narrow_the_list(cloud: Cloud) -> None:
    for number in range(5):
        await cloud.made_filesystem(f"f{number}")
    now = datetime.now(UTC)
    span = {"start": now - timedelta(days=1), "end": now + timedelta(minutes=1)}
    names, token = [], ""
    client = AuditEventServiceClient(cloud.sdk)
    while True:
        request = question(parent_id=cloud.project_id, page_size=2, page_token=token, **span)
        page = await client.list(request)
        names += [event.resource.metadata.name for event in page.items]
        token = page.next_page_token
        if not token:
            break
    assert names == ["f4", "f3", "f2", "f1", "f0"]
    newest = (await events(cloud))[0].time
    assert newest is not None
    later = await events(cloud, start=newest + timedelta(microseconds=1))
    earlier = await events(cloud, end=newest)
    assert (later, len(earlier) > 3) == ([], True)


async def test_wrong_questions_are_told_what_is_right(cloud: Cloud) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"filter_": "who = 'me'"}, "where a field"),
        ({"region": "mars"}, "this cloud is 'eu-north1'"),
        ({"page_size": 5000}, "page_size"),
    ]
    for fields, told in wrong:
        status = await refused(events(cloud, **fields))
        assert (status.code.name, told in status.message) == ("INVALID_ARGUMENT", True), fields
    assert await events(cloud, event_type=EventType.DATA_PLANE) == []


def _fill(message: Any, secret: str, depth: int = 0) -> int:
    """Put the secret into every text and bytes field that the contract marks; says how many."""
    known, filled = contract.message_annotations(message.DESCRIPTOR), 0
    for field in message.DESCRIPTOR.fields:
        texts = (field.TYPE_STRING, field.TYPE_BYTES)
        if field.message_type is not None:
            if field.is_repeated or depth > 6 or field.message_type.full_name.startswith("google."):
                continue
            if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name):
                continue
            filled += _fill(getattr(message, field.name), secret, depth + 1)
        elif known[field.name].is_secret and not field.is_repeated and field.type in texts:
            setattr(message, field.name, secret if field.type == field.TYPE_STRING else secret.encode())
            filled += 1
    return filled


async def test_no_sensitive_field_of_any_served_request_reaches_the_log(cloud: Cloud) -> None:
    """All that is served is sent, mostly to be refused, with a secret wherever the contract marks one."""
    secret, sent = "hunter2-never-write-this-down", 0
    token = await cloud.sdk.get_token(timeout=60)
    async with grpc.aio.insecure_channel(cloud.running.server.addresses.grpc) as channel:
        for path in sorted(cloud.running.server.paths):
            rpc = contract.method(path)
            request = rpc.input()
            if not _fill(request, secret):
                continue
            sent += 1
            for place in ("metadata.parent_id", "id"):
                holder, _, name = place.rpartition(".")
                owner = getattr(request, holder, None) if holder else request
                if owner is not None and name in owner.DESCRIPTOR.fields_by_name:
                    setattr(owner, name, cloud.project_id)
            unary = channel.unary_unary(f"/{path}", rpc.input.SerializeToString, rpc.output.FromString)
            try:
                await unary(request, metadata=[("authorization", f"Bearer {token.token}")], timeout=20)
            except grpc.aio.AioRpcError as error:
                assert secret not in (error.details() or ""), path
    assert sent > 3
    query = AuditQuery(cloud.tenant_id)
    rows, _ = await cloud.running.store.read(lambda tx: tx.find_audit(query, Page(1000)))
    assert len(rows) > sent / 2
    for row in rows:
        assert secret not in repr(row), row.method


async def test_a_page_of_a_large_log_comes_quickly(cloud: Cloud) -> None:
    store, now = cloud.running.store, cloud.running.server._dependencies.clock.now()
    total, at_once = 100_000, 10_000
    hierarchy = json.dumps([[cloud.tenant_id, "t", "container"]])
    one = Row(
        "", now, "s", "nebius.iam.v1.X/Create", "", "r", "q", 0,
        tenant_id=cloud.tenant_id, service="iam", status="DONE", hierarchy=hierarchy,
    )  # fmt: skip

    def write(tx: Any, start: int) -> None:
        for number in range(start, start + at_once):
            tx.audit(
                replace(one, id=f"e{number}", at=now - timedelta(seconds=number), resource_name=f"n{number}")
            )
        tx.audit(replace(one, id=f"rare{start}", at=now - timedelta(seconds=start), service="vpc"))

    for start in range(0, total, at_once):
        await store.write(lambda tx, s=start: write(tx, s))
    for filter_ in (
        "",
        "service.name = 'iam'",
        "service.name = 'vpc'",
        "regex(resource.metadata.name, '9$')",
    ):
        began = time.process_time()  # others may be at work beside this test
        found = await events(cloud, filter_)
        took = time.process_time() - began
        print(f"{filter_ or 'everything'}: {len(found)} events in {took * 1000:.0f} ms")  # noqa: T201
        assert found and took < 20, filter_
