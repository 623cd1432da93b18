"""Filesystem buckets, from the API over the engine to a real object gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.nebius.storage.v1 import BucketStatus, StorageClass

from neocloud.core.contract import Code
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine
from tests import control_plane
from tests.fast.object_gateway.s3.served import error_of
from tests.fast.services.storage.served import ServedCloud

BUCKETS, FILESYSTEMS = "nebius.storage.v1.BucketService", "nebius.compute.v1.FilesystemService"
SIZE: dict[str, Any] = {"type": "NETWORK_SSD", "size_gibibytes": 1}


class FilesystemCloud(ServedCloud):
    async def filesystem(self, name: str, project_id: str = "") -> str:
        metadata = {"parent_id": project_id or self.project_id, "name": name}
        made = await self.call(f"{FILESYSTEMS}/Create", metadata=metadata, spec=SIZE)
        await self.until(made.resource_id, "READY")
        return made.resource_id

    async def refused(self, method: str, **given: Any) -> Any:
        return await self.refusal(method, **given)

    async def refused_bucket(self, spec: Any) -> Any:
        metadata = {"parent_id": self.project_id, "name": "refused"}
        return await self.refusal(f"{BUCKETS}/Create", metadata=metadata, spec=spec)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[FilesystemCloud]:
    engine = FakeEngine(folders=tmp_path / "filesystems")
    async with control_plane.cloud_in_process(tmp_path / "home", engine) as ready:
        yield FilesystemCloud(**vars(ready))


async def test_a_directory_of_a_filesystem_is_a_bucket(cloud: FilesystemCloud) -> None:
    async with cloud.serving():
        filesystem_id = await cloud.filesystem("shared")
        view = {"filesystem_id": filesystem_id, "directory": "/data/sets", "uid": 1000, "gid": 1000}
        bucket_id = await cloud.bucket("view", filesystem_bucket=view)
        await cloud.bucket("other")
        found = await cloud.call(f"{BUCKETS}/Get", id=bucket_id)
        assert found.spec.default_storage_class == StorageClass.Value("FILESYSTEM")
        assert found.spec.filesystem_bucket.file_mode == "644"
        assert found.status.bucket_type == BucketStatus.BucketType.Value("FILESYSTEM")
        for filters in ({"bucket_type": "FILESYSTEM"}, {"filesystem_id": filesystem_id}):
            listed = await cloud.call(
                f"{BUCKETS}/ListWithFilter", parent_id=cloud.project_id, filters=filters
            )
            assert [each.metadata.name for each in listed.items] == ["view"]
        account = await cloud.account("writer", "editors")
        key = await cloud.access_key(account)
        s3 = cloud.s3(key.aws_id, key.secret)
        await asyncio.to_thread(s3.put_object, Bucket="view", Key="a/file", Body=b"of a client")
        claim = Reference("PersistentVolumeClaim", filesystem_id, filesystem_id)
        folder = Path(await cloud.engine.shared_folder(claim))
        written = folder / "data/sets/a/file"
        assert written.read_bytes() == b"of a client" and written.stat().st_uid == 1000
        (folder / "data/sets/of-a-pod").write_bytes(b"of a pod")
        body = await asyncio.to_thread(s3.get_object, Bucket="view", Key="of-a-pod")
        assert await asyncio.to_thread(body["Body"].read) == b"of a pod"
        refused = await cloud.refusal(f"{FILESYSTEMS}/Delete", id=filesystem_id)
        assert refused.code is Code.FAILED_PRECONDITION and "bucket view" in refused.message
        assert refused.message.endswith("files stay: `neo storage bucket delete view`.")
        versioning = {"VersioningConfiguration": {"Status": "Enabled"}}
        status, _ = await asyncio.to_thread(error_of, s3.put_bucket_versioning, Bucket="view", **versioning)
        assert status == 400
        await cloud.call(f"{BUCKETS}/Delete", id=bucket_id)
        await cloud.gone(bucket_id)
        assert written.exists(), "the files are the filesystem's"
        await cloud.call(f"{FILESYSTEMS}/Delete", id=filesystem_id)
        await cloud.gone(filesystem_id)


async def test_what_a_filesystem_bucket_may_not_be(cloud: FilesystemCloud) -> None:
    filesystem_id = await cloud.filesystem("shared")
    view: dict[str, Any] = {"filesystem_id": filesystem_id}
    rule = {"id": "all", "status": "ENABLED", "expiration": {"days": 1}}
    for field, spec in (
        ("filesystem_bucket.filesystem_id", {"filesystem_bucket": {"filesystem_id": ""}}),
        *(
            ("filesystem_bucket.directory", {"filesystem_bucket": {**view, "directory": directory}})
            for directory in (
                "data",
                "/a/../b",
                "/..",
                "/a//b",
                "/a/",
                "/./a",
                "//",
                "/a\0b",
                "/" + "a" * 256,
            )
        ),
        *(
            (f"filesystem_bucket.{name}", {"filesystem_bucket": {**view, name: mode}})
            for name, mode in (
                ("file_mode", "4755"),
                ("file_mode", "2644"),
                ("directory_mode", "4755"),
                ("file_mode", "0888"),
                ("file_mode", "-1"),
                ("file_mode", "00644"),
                ("uid", 2**32 - 1),
                ("gid", 2**32 - 1),
            )
        ),
        ("versioning_policy", {"filesystem_bucket": view, "versioning_policy": "ENABLED"}),
        ("max_size_bytes", {"filesystem_bucket": view, "max_size_bytes": 1}),
        ("default_storage_class", {"filesystem_bucket": view, "default_storage_class": "STANDARD"}),
        ("rules[0]", {"filesystem_bucket": view, "lifecycle_configuration": {"rules": [rule]}}),
    ):
        refused = await cloud.refused_bucket(spec)
        assert refused.code is Code.INVALID_ARGUMENT and field in str(refused.message), (field, spec)


async def test_a_filesystem_of_another_project_or_without_the_right_is_no_bucket(
    cloud: FilesystemCloud,
) -> None:
    made = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "elsewhere"}
    )
    elsewhere = await cloud.filesystem("shared", made.resource_id)
    refused = await cloud.refused_bucket({"filesystem_bucket": {"filesystem_id": elsewhere}})
    assert refused.code is Code.INVALID_ARGUMENT and "no filesystem of this project" in refused.message
    own = await cloud.filesystem("own")
    account = await cloud.account("only-storage")
    group = await cloud.group("storage-editors")
    await cloud.join(account, group)
    await cloud.permit(group, cloud.project_id, "storage.editor")
    cloud.token = await cloud.token_of(account)
    refused = await cloud.refused_bucket({"filesystem_bucket": {"filesystem_id": own}})
    assert refused.code is Code.PERMISSION_DENIED


async def test_an_engine_that_shows_no_filesystems_has_no_such_buckets(tmp_path: Path) -> None:
    async with control_plane.cloud_in_process(tmp_path) as ready:
        cloud = FilesystemCloud(**vars(ready))
        filesystem_id = await cloud.filesystem("shared")
        refused = await cloud.refused_bucket({"filesystem_bucket": {"filesystem_id": filesystem_id}})
        assert refused.code is Code.INVALID_ARGUMENT and "engine of this cloud" in refused.message


async def test_there_are_no_inventories_of_a_filesystem_bucket(cloud: FilesystemCloud) -> None:
    async with cloud.serving():
        view = {"filesystem_id": await cloud.filesystem("shared")}
        bucket_id = await cloud.bucket("view", filesystem_bucket=view)
        reports = await cloud.bucket("reports")
        refused = await cloud.refusal(
            "nebius.storage.v1.InventoryService/Create",
            metadata={"parent_id": bucket_id, "name": "all"},
            spec={"destination_bucket_id": reports, "output_format": "CSV_GZIP", "schedule": "DAILY"},
        )
        assert refused.code is Code.FAILED_PRECONDITION
