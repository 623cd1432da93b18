"""An inventory by the official SDK, through the real object gateway, read by boto3."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.common.v1 import GetByNameRequest, ResourceMetadata
from nebius.api.nebius.storage.v1 import (
    CreateInventoryRequest,
    DeleteInventoryRequest,
    GetInventoryRequest,
    InventoryServiceClient,
    InventorySpec,
    InventoryStatus,
    ListInventoriesRequest,
    UpdateInventoryRequest,
)
from nebius.sdk import SDK

from neocloud.testing.emulator import Emulator
from tests.fast.object_gateway.work.inventories.cloud import is_manifest, read_report
from tests.real.emulator.test_object_storage import create, make_key, s3_client, until
from tests.real.emulator.test_storage_commands import neo


def test_an_inventory_by_the_sdk(sdk: SDK, neocloud_emulator: Emulator, new_name: Callable[[], str]) -> None:
    source, destination = new_name(), new_name()
    source_id, destination_id = (create(sdk, neocloud_emulator, each) for each in (source, destination))
    _, aws_id, secret = make_key(sdk, neocloud_emulator, "editors")
    s3 = s3_client(neocloud_emulator, aws_id, secret)
    for key in ("in/a,\n.txt", "in/b", "out"):
        s3.put_object(Bucket=source, Key=key, Body=b"hello")
    inventories = InventoryServiceClient(sdk)
    spec = InventorySpec(
        enabled=True,
        source_prefix="in/",
        destination_bucket_id=destination_id,
        destination_prefix="reports",
        output_format=InventorySpec.OutputFormat.CSV_GZIP,
        optional_fields=[InventorySpec.OptionalField.CHECKSUM_ALGORITHMS],
        schedule=InventorySpec.Schedule.DAILY,
    )
    metadata = ResourceMetadata(parent_id=source_id, name="all")
    made = inventories.create(CreateInventoryRequest(metadata=metadata, spec=spec)).wait()
    made.sync_wait()

    def found():
        return inventories.get(GetInventoryRequest(id=made.resource_id)).wait()

    until(lambda: found().status.last_success)
    shown = found().status
    assert shown.error_code == InventoryStatus.Error.NO_ERROR
    last = shown.last_success
    assert last is not None and datetime.now(UTC) - last < timedelta(minutes=5)
    keys = [each["Key"] for each in s3.list_objects_v2(Bucket=destination)["Contents"]]
    (manifest,) = [key for key in keys if is_manifest(key, made.resource_id)]
    report = read_report(s3, destination, manifest)
    assert report.names == ["in/a,\n.txt", "in/b"]
    assert [each["Size"] for each in report.lines] == ["5", "5"]

    changed = found()
    changed.spec.schedule = InventorySpec.Schedule.WEEKLY
    inventories.update(
        UpdateInventoryRequest(metadata=changed.metadata, spec=changed.spec)
    ).wait().sync_wait()
    by_name = GetByNameRequest(parent_id=source_id, name="all")
    assert inventories.get_by_name(by_name).wait().spec.schedule == InventorySpec.Schedule.WEEKLY
    listed = inventories.list(ListInventoriesRequest(parent_id=source_id)).wait()
    assert [each.metadata.id for each in listed.items] == [made.resource_id]
    inventories.delete(DeleteInventoryRequest(id=made.resource_id)).wait().sync_wait()
    with pytest.raises(RequestError):
        found()
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=destination)["Contents"]] == keys


def test_an_inventory_by_neo(
    sdk: SDK, neocloud_emulator: Emulator, new_name: Callable[[], str], tmp_path: Path
) -> None:
    source, destination = new_name(), new_name()
    for name in (source, destination):
        create(sdk, neocloud_emulator, name)

    def neo_storage(verb: str, *arguments: str) -> Any:
        words = ("storage", "inventory", verb, *arguments, "--bucket", source)
        ran = neo(tmp_path, *words, cloud=neocloud_emulator)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    fields = ("--optional-fields", "TAGS", "--optional-fields", "IS_MULTIPART_UPLOAD")
    where = ("--destination-bucket-id", destination, "--output-format", "CSV_GZIP", "--schedule", "DAILY")
    neo_storage("create", "all", "--enabled", *where, *fields)
    shown = json.loads(neo_storage("get", "all", "-o", "json"))
    assert shown["spec"]["optional_fields"] == ["TAGS", "IS_MULTIPART_UPLOAD"]
    assert "all" in neo_storage("list")
    neo_storage("delete", "all", "--yes")
    assert "all" not in neo_storage("list")
