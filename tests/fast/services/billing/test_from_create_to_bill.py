"""The whole way with the official SDK: sign in, make a filesystem, see it on the bill, delete it. BILL-03."""

from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    CreateFilesystemRequest,
    DeleteFilesystemRequest,
    FilesystemServiceClient,
    FilesystemSpec,
    FilesystemStatus,
    GetFilesystemRequest,
    ListPlatformsRequest,
    PlatformServiceClient,
)

from tests.fast.services.billing.conftest import Bank


async def test_a_filesystem_from_create_to_bill(bank: Bank) -> None:
    platforms = await PlatformServiceClient(bank.sdk).list(ListPlatformsRequest(parent_id=bank.project_id))
    assert "cpu-local" in {platform.metadata.name for platform in platforms.items}

    filesystems = FilesystemServiceClient(bank.sdk)
    spec = FilesystemSpec(size_gibibytes=730, type=FilesystemSpec.FilesystemType.NETWORK_SSD)
    metadata = ResourceMetadata(parent_id=bank.project_id, name="data")
    operation = await filesystems.create(CreateFilesystemRequest(metadata=metadata, spec=spec))
    await operation.wait(interval=0.05)
    assert operation.successful()
    found = await filesystems.get(GetFilesystemRequest(id=operation.resource_id))
    assert found.status.state == FilesystemStatus.State.READY

    deletion = await filesystems.delete(DeleteFilesystemRequest(id=operation.resource_id))
    await deletion.wait(interval=0.05)
    assert deletion.successful()

    usage, report = await bank.bill("ListUsage"), await bank.bill("GetReport")
    # It lived for a part of a second or a little more: whole seconds are charged, and nothing is made up.
    seconds = sum(int(item["seconds"]) for item in usage.get("items", []))
    lines = report.get("lines", [])
    assert {line["resourceName"] for line in lines} <= {"data"}
    assert report["totalCost"] == f"{seconds * 730 * 0.08 / (730 * 3600):.6f}"
