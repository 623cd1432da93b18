"""A transfer from bucket to bucket by the official SDK, through the real object gateway."""

import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.common.v1 import GetByNameRequest, ResourceMetadata
from nebius.api.nebius.storage.v1 import (
    CreateTransferRequest,
    DeleteTransferRequest,
    GetIterationHistoryRequest,
    GetTransferRequest,
    ListTransfersRequest,
    ResumeTransferRequest,
    StopTransferRequest,
    TransferCredentialsAccessKey,
    TransferDestination,
    TransferIteration,
    TransferServiceClient,
    TransferSource,
    TransferSpec,
    TransferStatus,
    UpdateTransferRequest,
)
from nebius.sdk import SDK

from neocloud.testing.emulator import Emulator
from tests.real.emulator.test_object_storage import REGION, create, make_key, s3_client, until

State = TransferStatus.State


def test_a_transfer_by_the_sdk(sdk: SDK, neocloud_emulator: Emulator) -> None:
    for name in ("theirs", "ours"):
        create(sdk, neocloud_emulator, name)
    _, aws_id, secret = make_key(sdk, neocloud_emulator, "editors")
    s3 = s3_client(neocloud_emulator, aws_id, secret)
    s3.put_object(Bucket="theirs", Key="in/a.txt", Body=b"hello")
    key = TransferCredentialsAccessKey(access_key_id=aws_id, secret_access_key=secret)
    spec = TransferSpec(
        source=TransferSource(
            nebius=TransferSource.NebiusProvider(region=REGION, bucket_name="theirs", access_key=key),
            prefix="in/",
        ),
        destination=TransferDestination(
            nebius=TransferDestination.NebiusProvider(region=REGION, bucket_name="ours", access_key=key)
        ),
        infinite=TransferSpec.StopConditionInfinite(),
        overwrite_strategy=TransferSpec.OverwriteStrategy.IF_NEWER,
    )
    transfers = TransferServiceClient(sdk)
    metadata = ResourceMetadata(parent_id=neocloud_emulator.project_id, name="move")
    made = transfers.create(CreateTransferRequest(metadata=metadata, spec=spec)).wait()
    made.sync_wait()
    transfer_id = made.resource_id

    def found():
        return transfers.get(GetTransferRequest(id=transfer_id)).wait()

    def is_copied() -> bool:
        last = found().status.last_iteration
        return last.state == TransferIteration.State.COMPLETED and last.objects_transferred_count == 1

    until(is_copied)
    assert s3.get_object(Bucket="ours", Key="a.txt")["Body"].read() == b"hello"
    shown = found()
    assert shown.status.state == State.ACTIVE and shown.status.last_iteration.objects_transferred_size == 5
    assert aws_id in str(shown) and secret not in str(shown)
    transfers.stop(StopTransferRequest(id=transfer_id)).wait().sync_wait()
    assert found().status.state == State.STOPPED
    s3.put_object(Bucket="theirs", Key="in/b.txt", Body=b"later")
    shown = found()
    shown.spec.limiters.requests_per_second = 100
    transfers.update(UpdateTransferRequest(metadata=shown.metadata, spec=shown.spec)).wait().sync_wait()
    transfers.resume(ResumeTransferRequest(id=transfer_id)).wait().sync_wait()
    until(lambda: found().status.last_iteration.sequence_number == 2 and is_copied())
    history = transfers.get_iteration_history(GetIterationHistoryRequest(transfer_id=transfer_id)).wait()
    assert [each.sequence_number for each in history.iterations] == [2, 1]
    by_name = GetByNameRequest(parent_id=neocloud_emulator.project_id, name="move")
    assert transfers.get_by_name(by_name).wait().metadata.id == transfer_id
    listed = transfers.list(ListTransfersRequest(parent_id=neocloud_emulator.project_id)).wait()
    assert [each.metadata.id for each in listed.items] == [transfer_id]
    transfers.delete(DeleteTransferRequest(id=transfer_id)).wait().sync_wait()
    with pytest.raises(RequestError):
        found()
