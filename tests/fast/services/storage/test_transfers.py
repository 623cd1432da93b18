"""The verbs of transfers, with a gateway that reports what a test says."""

from typing import Any

import pytest
from neocloud.messages.nebius.storage.v1 import TransferError, TransferIteration
from neocloud.messages.neocloud.storage.v1 import (
    GatewayTransfer,
    ListGatewayTransfersRequest,
    ReportTransfersRequest,
    TransferReport,
)

from neocloud.core.contract import Code
from neocloud.services.storage.types import ITERATIONS_KEPT
from tests.fast.services.storage.cloud import StorageCloud

SECRET = "the-secret-of-the-source"
SPEC: dict[str, Any] = {
    "source": {
        "s3_compatible": {
            "endpoint": "https://s3.example.com",
            "region": "eu-west-1",
            "bucket_name": "theirs",
            "access_key": {"access_key_id": "AKTHEIRS", "secret_access_key": SECRET},
        },
        "prefix": "in/",
    },
    "destination": {
        "nebius": {
            "region": "eu-north1",
            "bucket_name": "ours",
            "access_key": {"access_key_id": "NCAKOURS", "secret_access_key": "other-secret"},
        }
    },
    "infinite": {},
    "overwrite_strategy": "NEVER",
}
RUNNING, STOPPED, FINISHED, FAILED, REMOVED = range(1, 6)


async def create(cloud: StorageCloud, **changes: Any) -> str:
    return await cloud.create("Transfer", "move", {**SPEC, **changes})


async def listed(cloud: StorageCloud) -> list[GatewayTransfer]:
    answer = await cloud.gateway.call("ListTransfers", ListGatewayTransfersRequest())
    return list(answer.transfers)


async def report(cloud: StorageCloud, phase: int = RUNNING, **more: Any) -> None:
    """Report each transfer as applied, in this phase."""
    request = ReportTransfersRequest()
    for each in await listed(cloud):
        found = TransferReport(id=each.id, applied_generation=each.generation, run=each.run, **more)
        found.phase = phase  # type: ignore[assignment]
        request.transfers.append(found)
    await cloud.gateway.call("ReportTransfers", request)


def iteration(number: int, state: str = "COMPLETED") -> TransferIteration:
    return TransferIteration(sequence_number=number, state=state, objects_transferred_count=number)  # type: ignore[arg-type]


async def test_the_gateway_gets_a_transfer_with_its_secrets_and_nobody_else(cloud: StorageCloud) -> None:
    transfer_id = await create(cloud)
    (found,) = await listed(cloud)
    assert (found.id, found.generation, found.run, found.mode) == (transfer_id, 1, 1, 1)
    assert (found.source_secret, found.destination_secret) == (SECRET, "other-secret")
    assert found.spec.inter_iteration_interval.seconds == 900
    shown = await cloud.get("Transfer", transfer_id)
    assert SECRET not in str(found.spec) and SECRET not in str(shown)
    operations = await cloud.call("nebius.common.v1.OperationService/List", resource_id=transfer_id)
    assert operations.operations and SECRET not in str(operations)
    files = [path for path in cloud.home.rglob("*") if path.is_file()]
    assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]


async def test_an_update_keeps_the_secrets_it_does_not_name(cloud: StorageCloud) -> None:
    transfer_id = await create(cloud)
    await report(cloud)
    await cloud.row_when(transfer_id, lambda row: row is not None and row.observed_version == 1)
    operation = await cloud.call(
        "TransferService/Update",
        metadata={"id": transfer_id, "parent_id": cloud.project_id, "name": "move"},
        spec={"limiters": {"requests_per_second": 5}},
    )
    (found,) = await listed(cloud)
    assert (found.generation, found.spec.limiters.requests_per_second) == (2, 5)
    assert (found.source_secret, found.destination_secret) == (SECRET, "other-secret")
    await report(cloud)
    assert (await cloud.operation(operation)).code == 0


async def test_keys_can_be_changed_and_places_cannot(cloud: StorageCloud) -> None:
    transfer_id = await create(cloud)
    await report(cloud)
    await cloud.row_when(transfer_id, lambda row: row is not None and row.observed_version == 1)
    metadata = {"id": transfer_id, "parent_id": cloud.project_id, "name": "move"}
    key = {"access_key_id": "AKNEW", "secret_access_key": "new-secret"}
    whole = {**SPEC, **source(access_key=key), "inter_iteration_interval": "60s"}
    await cloud.call("TransferService/Update", metadata=metadata, spec=whole)
    (found,) = await listed(cloud)
    assert (found.source_secret, found.destination_secret) == ("new-secret", "other-secret")
    await report(cloud)
    for changes in (
        source(bucket_name="others"),
        {"source": {"nebius": SPEC["destination"]["nebius"]}},
        {"destination": {**SPEC["destination"], "prefix": "other/"}},
        {"overwrite_strategy": "IF_NEWER"},
    ):
        refused = await cloud.refusal("TransferService/Update", metadata=metadata, spec={**SPEC, **changes})
        assert refused.code is Code.INVALID_ARGUMENT and "cannot be changed" in refused.message


async def test_states_follow_from_reports(cloud: StorageCloud) -> None:
    transfer_id = await create(cloud)
    error = TransferError(origin="SOURCE", code="AccessDenied", message="No.")  # type: ignore[arg-type]
    running = iteration(1, "IN_PROGRESS")
    await report(cloud, last_iteration=running)
    found = await cloud.when(transfer_id, lambda it: it.status.last_iteration == running, "ACTIVE")
    assert not found.status.HasField("error")
    await report(cloud, failures=1, error=error)
    found = await cloud.until(transfer_id, "FAILING")
    assert found.status.error == error
    await report(cloud, FAILED, failures=3, error=error)
    await cloud.until(transfer_id, "FAILED")
    await cloud.call("TransferService/Resume", id=transfer_id)
    (desired,) = await listed(cloud)
    assert (desired.run, desired.mode) == (2, 1)
    await report(cloud, FINISHED)
    found = await cloud.until(transfer_id, "STOPPED")
    assert not found.status.HasField("error")


async def test_stop_is_done_when_the_gateway_has_stopped(cloud: StorageCloud) -> None:
    transfer_id = await create(cloud)
    await report(cloud)
    operation = await cloud.call("TransferService/Stop", id=transfer_id)
    await report(cloud, RUNNING)
    await cloud.until(transfer_id, "STOPPING")
    (desired,) = await listed(cloud)
    assert desired.mode == 2
    await report(cloud, STOPPED)
    assert (await cloud.operation(operation)).code == 0
    await cloud.until(transfer_id, "STOPPED")
    again = await cloud.refusal("TransferService/Stop", id=transfer_id)
    assert again.code is Code.FAILED_PRECONDITION and "while it is ACTIVE" in again.message
    operation = await cloud.call("TransferService/Resume", id=transfer_id)
    await report(cloud)
    assert (await cloud.operation(operation)).code == 0
    refused = await cloud.refusal("TransferService/Resume", id=transfer_id)
    assert refused.code is Code.FAILED_PRECONDITION


async def test_it_is_gone_when_the_gateway_has_forgotten_it(cloud: StorageCloud) -> None:
    transfer_id = await create(cloud)
    await report(cloud)
    operation = await cloud.call("TransferService/Delete", id=transfer_id)
    await cloud.until(transfer_id, "DELETING")
    (desired,) = await listed(cloud)
    assert desired.mode == 3
    await report(cloud, REMOVED)
    assert (await cloud.operation(operation)).code == 0
    assert await cloud.row(transfer_id) is None and await listed(cloud) == []


async def test_the_history_has_the_last_iterations_page_by_page(cloud: StorageCloud) -> None:
    transfer_id = await create(cloud)
    for start in range(1, 1201, 400):
        ended = [iteration(number) for number in range(start, start + 400)]
        await report(cloud, last_iteration=ended[-1], ended_iterations=ended)
    await report(cloud, last_iteration=iteration(1201, "IN_PROGRESS"))
    await cloud.when(transfer_id, lambda it: it.status.last_iteration.sequence_number == 1201)
    found: list[int] = []
    token = ""
    while token or not found:
        page = await cloud.call(
            "TransferService/GetIterationHistory", transfer_id=transfer_id, page_size=300, page_token=token
        )
        found += [each.sequence_number for each in page.iterations]
        token = page.next_page_token
    assert found == list(range(1201, 1200 - ITERATIONS_KEPT, -1))


def source(**changes: Any) -> dict[str, Any]:
    return {"source": {"s3_compatible": {**SPEC["source"]["s3_compatible"], **changes}}}


AZURE = {"azure_blob_storage": {"endpoint": "https://a", "container_name": "c", "anonymous": {}}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"source": AZURE}, "spec.source.azure_blob_storage"),
        (source(endpoint="file:///etc"), "endpoint"),
        (source(bucket_name="../x"), "bucket_name"),
        (source(region="eu/west"), "region"),
        (source(access_key={"access_key_id": "a/b", "secret_access_key": "x"}), "access_key_id"),
        (source(access_key={"access_key_id": "a"}), "secret_access_key"),
        ({"source": {"nebius": SPEC["destination"]["nebius"]}}, "spec.destination"),
        ({"limiters": {"bandwidth_bytes_per_second": 1}}, "bandwidth_bytes_per_second"),
        ({"inter_iteration_interval": "99999999s"}, "spec.inter_iteration_interval"),
    ],
)
async def test_what_is_no_transfer_is_refused(
    cloud: StorageCloud, changes: dict[str, Any], field: str
) -> None:
    metadata = {"parent_id": cloud.project_id, "name": "move"}
    refused = await cloud.refusal("TransferService/Create", metadata=metadata, spec={**SPEC, **changes})
    assert refused.code is Code.INVALID_ARGUMENT and field in refused.message
