"""The official SDK is the judge of what the server says."""

import asyncio
from typing import Any

import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.common.v1 import GetByNameRequest, ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    CreateFilesystemRequest,
    DeleteFilesystemRequest,
    FilesystemServiceClient,
    FilesystemSpec,
    FilesystemStatus,
    GetFilesystemRequest,
    ListFilesystemsRequest,
    ListOperationsByParentRequest,
    UpdateFilesystemRequest,
)

from neocloud.server import grpc_server
from tests.fast.server.conftest import ADMIN, OTHER_PROJECT, PROJECT, READER, Cloud

SSD = FilesystemSpec.FilesystemType.NETWORK_SSD


def filesystems(cloud: Cloud, token: str = ADMIN) -> FilesystemServiceClient:
    return FilesystemServiceClient(cloud.sdk(token))


async def create(client: FilesystemServiceClient, name: str, *, parent: str = PROJECT, **spec: Any) -> str:
    metadata = ResourceMetadata(parent_id=parent, name=name, labels={"team": "bank"})
    fields: dict[str, Any] = {"size_gibibytes": 10, **spec}
    given = FilesystemSpec(type=SSD, **fields)
    operation = await client.create(CreateFilesystemRequest(metadata=metadata, spec=given))
    await operation.wait()
    return operation.resource_id


async def refused(call: Any) -> Any:
    """The status of a request that must fail."""
    with pytest.raises(RequestError) as caught:
        await call
    return caught.value.status


@pytest.fixture
def short_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "MAX_IDLE_MS", 200)


async def test_a_client_whose_idle_connection_was_closed_connects_again(
    short_idle: None, cloud: Cloud
) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    for _ in range(4):
        await asyncio.sleep(1)  # whether the connection has been closed by now does not matter
        assert (await client.get(GetFilesystemRequest(id=identifier))).metadata.name == "data"


async def test_a_resource_lives_from_create_to_delete(cloud: Cloud) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    assert identifier.startswith("computefilesystem-e00")
    found = await client.get(GetFilesystemRequest(id=identifier))
    assert (found.metadata.name, found.metadata.labels) == ("data", {"team": "bank"})
    assert (found.metadata.resource_version, found.metadata.parent_id) == (1, PROJECT)
    assert found.metadata.created_at is not None
    assert found.status.state == FilesystemStatus.State.READY
    assert found.status.size_bytes == 10 << 30
    by_name = await client.get_by_name(GetByNameRequest(parent_id=PROJECT, name="data"))
    assert by_name.metadata.id == identifier
    await (await client.delete(DeleteFilesystemRequest(id=identifier))).wait()
    status = await refused(client.get(GetFilesystemRequest(id=identifier)))
    assert status.code.name == "NOT_FOUND"


async def test_instant_work_answers_with_a_finished_operation(cloud: Cloud) -> None:
    metadata = ResourceMetadata(parent_id=PROJECT, name="data")
    spec = FilesystemSpec(type=SSD, size_gibibytes=1)
    operation = await filesystems(cloud).create(CreateFilesystemRequest(metadata=metadata, spec=spec))
    assert operation.done()
    assert operation.successful()
    assert operation.resource_id
    assert operation.finished_at and operation.created_at <= operation.finished_at
    assert operation.created_by == "serviceaccount-e00admin"
    assert operation.description == "Create filesystem data"


async def test_defaults_are_filled_and_nothing_else_is(cloud: Cloud) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    spec = (await client.get(GetFilesystemRequest(id=identifier))).spec
    assert spec.block_size_bytes == 4096
    assert spec.size_gibibytes == 10
    assert spec.forbid_deletion is False


async def test_an_update_changes_what_it_names(cloud: Cloud) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    request = UpdateFilesystemRequest(
        metadata=ResourceMetadata(id=identifier, labels={"team": "risk"}),
        spec=FilesystemSpec(type=SSD, size_gibibytes=20, block_size_bytes=4096),
    )
    await (await client.update(request)).wait()
    found = await client.get(GetFilesystemRequest(id=identifier))
    assert found.spec.size_gibibytes == 20
    assert (found.metadata.name, found.metadata.labels) == ("data", {"team": "risk"})
    assert found.metadata.resource_version == 2
    assert found.status.size_bytes == 20 << 30


async def test_a_change_of_labels_alone_keeps_the_version(cloud: Cloud) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    found = await client.get(GetFilesystemRequest(id=identifier))
    found.metadata.labels = {"team": "risk"}
    await (await client.update(UpdateFilesystemRequest(metadata=found.metadata, spec=found.spec))).wait()
    again = await client.get(GetFilesystemRequest(id=identifier))
    assert (again.metadata.labels, again.metadata.resource_version) == ({"team": "risk"}, 1)


async def test_an_update_without_a_spec_keeps_the_spec(cloud: Cloud) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    request = UpdateFilesystemRequest(metadata=ResourceMetadata(id=identifier, name="renamed"))
    await (await client.update(request)).wait()
    found = await client.get(GetFilesystemRequest(id=identifier))
    assert (found.metadata.name, found.spec.size_gibibytes) == ("renamed", 10)


async def test_a_stale_version_is_aborted(cloud: Cloud) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    stale = await client.get(GetFilesystemRequest(id=identifier))
    stale.spec.size_gibibytes = 20
    await (await client.update(UpdateFilesystemRequest(metadata=stale.metadata, spec=stale.spec))).wait()
    stale.spec.size_gibibytes = 30
    status = await refused(client.update(UpdateFilesystemRequest(metadata=stale.metadata, spec=stale.spec)))
    assert status.code.name == "ABORTED"
    assert "Get it again" in status.message
    assert status.service_errors[0].resource_conflict.resource_id == identifier


async def test_an_immutable_field_cannot_change(cloud: Cloud) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    found = await client.get(GetFilesystemRequest(id=identifier))
    found.spec.block_size_bytes = 8192
    status = await refused(client.update(UpdateFilesystemRequest(metadata=found.metadata, spec=found.spec)))
    assert status.code.name == "INVALID_ARGUMENT"
    assert [v.field for v in status.service_errors[0].bad_request.violations] == ["spec.block_size_bytes"]


async def test_pages_hold_all_and_each_once(cloud: Cloud) -> None:
    client = filesystems(cloud)
    made = [await create(client, f"data-{number}") for number in range(5)]
    seen, token = [], ""
    while True:
        page = await client.list(ListFilesystemsRequest(parent_id=PROJECT, page_size=2, page_token=token))
        seen += [item.metadata.id for item in page.items]
        token = page.next_page_token
        if not token:
            break
    assert seen == made
    whole = await client.list(ListFilesystemsRequest(parent_id=PROJECT))
    assert [item.metadata.id for item in whole.items] == made
    status = await refused(client.list(ListFilesystemsRequest(parent_id=PROJECT, page_token="bad")))
    assert status.code.name == "INVALID_ARGUMENT"


async def test_a_name_is_taken_once_in_each_parent(cloud: Cloud) -> None:
    client = filesystems(cloud)
    first = await create(client, "data")
    status = await refused(create(client, "data"))
    assert status.code.name == "ALREADY_EXISTS"
    assert status.service_errors[0].resource_already_exists.resource_id == first
    assert await create(client, "") != await create(client, "")


@pytest.mark.parametrize(
    ("spec", "field"),
    [({"size_gibibytes": 5000}, "spec.size_gibibytes"), ({"type": 0}, "spec.type")],
)
async def test_a_wrong_field_is_named(cloud: Cloud, spec: dict[str, Any], field: str) -> None:
    given = {"type": SSD, "size_gibibytes": 10} | spec
    given["type"] = FilesystemSpec.FilesystemType(given["type"])
    request = CreateFilesystemRequest(
        metadata=ResourceMetadata(parent_id=PROJECT, name="data"), spec=FilesystemSpec(**given)
    )
    status = await refused(filesystems(cloud).create(request))
    assert status.code.name == "INVALID_ARGUMENT"
    assert [v.field for v in status.service_errors[0].bad_request.violations] == [field]


async def test_an_error_names_its_service_and_its_request(cloud: Cloud) -> None:
    status = await refused(filesystems(cloud).get(GetFilesystemRequest(id="computefilesystem-e00none")))
    assert status.service_errors[0].service == "nebius.compute.v1.FilesystemService"
    assert len(status.request_id) == 32
    assert status.trace_id


async def test_deny_by_default(cloud: Cloud) -> None:
    reader = filesystems(cloud, READER)
    assert not (await reader.list(ListFilesystemsRequest(parent_id=PROJECT))).items
    assert (await refused(create(reader, "data"))).code.name == "PERMISSION_DENIED"
    status = await refused(create(filesystems(cloud), "data", parent=OTHER_PROJECT))
    assert status.code.name == "PERMISSION_DENIED"


async def test_a_denial_and_a_change_are_in_the_audit_log(cloud: Cloud) -> None:
    await refused(create(filesystems(cloud, READER), "data"))
    identifier = await create(filesystems(cloud), "data")
    events, _ = await cloud.store.read(lambda tx: tx.list_audit())
    change, denial = events
    assert (change.subject, change.code, change.resource_id) == ("serviceaccount-e00admin", 0, identifier)
    assert (denial.subject, denial.code, denial.resource_id) == ("serviceaccount-e00reader", 7, PROJECT)
    assert change.method == denial.method == "nebius.compute.v1.FilesystemService/Create"


async def test_operations_can_be_listed_by_resource_and_by_parent(cloud: Cloud) -> None:
    client = filesystems(cloud)
    identifier = await create(client, "data")
    await (await client.delete(DeleteFilesystemRequest(id=identifier))).wait()
    page = await client.list_operations_by_parent(ListOperationsByParentRequest(parent_id=PROJECT))
    assert [op.description for op in page.operations] == ["Delete filesystem data", "Create filesystem data"]
    assert page.operations[1].request is not None


async def test_an_unserved_method_of_the_contract_is_unimplemented(cloud: Cloud) -> None:
    from_disks = await cloud.call("nebius.compute.v1.DiskService/List", {"parentId": PROJECT})
    assert from_disks.status_code == 501
    assert "nebius.compute.v1.DiskService/List is not implemented" in from_disks.json()["message"]


async def test_many_callers_at_once_make_each_resource_once(cloud: Cloud) -> None:
    client = filesystems(cloud)
    made = await asyncio.gather(*(create(client, f"data-{number}") for number in range(20)))
    assert len(set(made)) == 20
