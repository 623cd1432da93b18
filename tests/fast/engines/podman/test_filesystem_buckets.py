"""Filesystem buckets on real parts: control plane, Podman's engine with its file systems, object gateway."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.nebius.compute.v1 import UpdateFilesystemRequest

from neocloud.engines.base import Reference
from neocloud.engines.podman import PodmanEngine
from tests import control_plane, leftovers
from tests.fast.object_gateway.s3.served import error_of
from tests.fast.services.storage.served import ServedCloud

pytestmark = pytest.mark.slow

MIB = 1024**2
BUCKETS, FILESYSTEMS = "nebius.storage.v1.BucketService", "nebius.compute.v1.FilesystemService"


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[ServedCloud]:
    leftovers.record(tmp_path / "engine")
    engine = PodmanEngine(tmp_path / "engine")
    try:
        async with control_plane.cloud_in_process(tmp_path / "home", engine) as ready:
            yield ServedCloud(**vars(ready))
    finally:
        await engine.destroy()
        await engine.close()
        leftovers.forget(tmp_path / "engine")


async def test_a_filesystem_of_the_engine_is_a_bucket_of_the_gateway(cloud: ServedCloud) -> None:
    spec = {"type": "NETWORK_SSD", "size_mebibytes": 64}
    metadata = {"parent_id": cloud.project_id, "name": "shared"}
    made = await cloud.call(f"{FILESYSTEMS}/Create", metadata=metadata, spec=spec)
    filesystem_id = made.resource_id
    filesystem = await cloud.until(filesystem_id, "READY")
    async with cloud.serving():
        view = {"filesystem_id": filesystem_id, "directory": "/data", "uid": 1000, "gid": 1000}
        bucket_id = await cloud.bucket("view", filesystem_bucket=view)
        key = await cloud.access_key(await cloud.account("writer", "editors"))
        s3 = cloud.s3(key.aws_id, key.secret)
        body = os.urandom(20 * MIB)
        await asyncio.to_thread(s3.put_object, Bucket="view", Key="sets/one.bin", Body=body)
        claim = Reference("PersistentVolumeClaim", filesystem_id, filesystem_id)
        root = Path(await cloud.engine.shared_folder(claim))
        written = root / "data/sets/one.bin"
        assert written.read_bytes() == body and written.stat().st_uid == 1000
        assert os.statvfs(root).f_blocks * os.statvfs(root).f_frsize <= 64 * MIB, "it has its own size"
        free = os.statvfs(root).f_bfree
        big: dict[str, Any] = {"Bucket": "view", "Key": "new/big.bin", "Body": bytes(60 * MIB)}
        assert await asyncio.to_thread(error_of, s3.put_object, **big) == (403, "QuotaExceeded")
        assert os.statvfs(root).f_bfree >= free - 8 and not (root / "data/new").exists()

        filesystem.spec.size_mebibytes = 128
        update = UpdateFilesystemRequest(metadata=filesystem.metadata, spec=filesystem.spec)
        await cloud.call(f"{FILESYSTEMS}/Update", update)
        await cloud.when(filesystem_id, lambda found: found.status.size_bytes == 128 * MIB, "READY")
        await cloud.engine.shared_folder(claim)  # as the reconciler does within a minute
        await asyncio.to_thread(s3.put_object, **big)
        found = await asyncio.to_thread(s3.list_objects_v2, Bucket="view")
        assert [each["Key"] for each in found["Contents"]] == ["new/big.bin", "sets/one.bin"]

        await cloud.call(f"{BUCKETS}/Delete", id=bucket_id)
        await cloud.gone(bucket_id)
        assert written.exists()
