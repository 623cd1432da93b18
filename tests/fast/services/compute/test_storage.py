"""Disks, snapshots, images and filesystems of machines: CMP-13."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.nebius.compute.v1 import DiskStatus, ImageStatus

from neocloud.core.clock import SystemClock
from neocloud.core.contract import ApiError, Code
from neocloud.core.store import Transaction, open_store
from neocloud.engines.base import Reference
from neocloud.services.compute import sync_public_images
from neocloud.services.compute.types import IMAGE, PUBLIC_IMAGES_PARENT
from neocloud.settings.settings import Settings
from tests.fast.services.compute.cloud import (
    FAMILY,
    IMAGE_BYTES,
    IMAGE_ID,
    Cloud,
    boot_disk,
    existing,
    instance_spec,
    machine_cloud,
)

READY = DiskStatus.State.Value("READY")
GIB = 1 << 30


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[Cloud]:
    async with machine_cloud(tmp_path) as running:
        yield running


async def disk(cloud: Cloud, name: str = "data", **spec: Any) -> str:
    identifier = await cloud.create("Disk", name, {"type": "NETWORK_SSD", "size_gibibytes": 4} | spec)
    await cloud.when(identifier, lambda found: found.status.state == READY)
    return identifier


def source(cloud: Cloud, identifier: str) -> dict[str, str]:
    claim = cloud.engine.world.objects[Reference("PersistentVolumeClaim", identifier, identifier)].to_dict()
    return claim["spec"]["dataSourceRef"]


def fields(refusal: ApiError) -> list[str]:
    (detail,) = refusal.details
    return [violation.field for violation in detail.bad_request.violations]


async def test_a_disk_is_a_copy_of_the_newest_image_of_its_family(cloud: Cloud) -> None:
    identifier = await disk(cloud, source_image_family={"image_family": FAMILY})
    assert source(cloud, identifier)["kind"] == "MachineImage"
    assert source(cloud, identifier)["name"] == FAMILY
    assert (await cloud.get("Disk", identifier)).status.source_image_id == IMAGE_ID
    latest = await cloud.call("ImageService/GetLatestByFamily", image_family=FAMILY)
    assert latest.metadata.id == IMAGE_ID
    public = await cloud.call("ImageService/ListPublic", region="eu-north1")
    assert [image.metadata.id for image in public.items] == [IMAGE_ID]


async def test_a_snapshot_becomes_a_disk_and_an_image(cloud: Cloud) -> None:
    first = await disk(cloud)
    snapshot = await cloud.create("DiskSnapshot", "snap", {"source_disk_id": first})
    found = await cloud.when(snapshot, lambda found: found.status.state == 2)
    assert found.status.storage_size_bytes < found.status.content_size_bytes, "what is stored of it"
    assert source(cloud, snapshot)["name"] == first
    listed = await cloud.call("DiskSnapshotService/ListByDisk", disk_id=first)
    assert [item.metadata.id for item in listed.items] == [snapshot]
    second = await disk(cloud, "restored", source_snapshot_id=snapshot)
    assert source(cloud, second)["name"] == snapshot
    image = await cloud.create("Image", "golden", {"image_family": "golden", "source_disk_id": first})
    copied = await cloud.when(image, lambda found: found.status.state == 2)
    assert copied.status.min_disk_size_bytes == found.status.content_size_bytes
    assert copied.status.storage_size_bytes < copied.status.min_disk_size_bytes, "what is stored of it"
    third = await disk(
        cloud, "third", source_image_family={"image_family": "golden", "parent_id": cloud.project_id}
    )
    assert source(cloud, third)["name"] == image


async def test_the_machine_is_at_rest_while_its_disk_is_copied(cloud: Cloud) -> None:
    instance = await cloud.machine()
    disk_id = instance.status.disk_attachments[0].id
    snapshot = await cloud.create("DiskSnapshot", "snap", {"source_disk_id": disk_id})
    await cloud.when(snapshot, lambda found: found.status.state == 2)
    verbs = [call[1] for call in cloud.machines.calls]
    assert verbs == ["freeze", "thaw"]


async def test_a_disk_of_a_running_machine_grows_at_once(cloud: Cloud) -> None:
    data = await disk(cloud)
    instance = await cloud.machine(secondary_disks=[existing(data, device_id="data")])
    found = await cloud.get("Disk", data)
    assert found.status.read_write_attachment == instance.metadata.id
    found.spec.size_gibibytes = 6
    await cloud.update("Disk", found)
    await cloud.when(data, lambda seen: cloud.machines.sizes[data] == 6 * GIB)
    assert (instance.metadata.id, "resize-disk", data, str(6 * GIB)) in cloud.machines.calls


async def test_a_disk_never_shrinks_and_has_its_steps(cloud: Cloud) -> None:
    identifier = await disk(cloud)
    found = await cloud.get("Disk", identifier)
    found.spec.size_gibibytes = 3
    request = {"metadata": {"id": identifier}, "spec": {"size_gibibytes": 3}}
    assert fields(await cloud.refusal("DiskService/Update", **request)) == ["spec.size_gibibytes"]
    for kind in ("NETWORK_SSD_NON_REPLICATED", "NETWORK_SSD_IO_M3"):
        spec = {"type": kind, "size_gibibytes": 100}
        refusal = await cloud.refusal(
            "DiskService/Create", metadata={"parent_id": cloud.project_id, "name": "x"}, spec=spec
        )
        assert fields(refusal) == ["spec.size_gibibytes"]
        assert "e.g. 186 GiB" in refusal.message
    await disk(cloud, "steps", type="NETWORK_SSD_IO_M3", size_gibibytes=186)


async def test_a_disk_must_hold_what_it_is_a_copy_of(cloud: Cloud) -> None:
    spec = {"type": "NETWORK_SSD", "size_gibibytes": 1, "source_image_id": IMAGE_ID}
    metadata = {"parent_id": cloud.project_id, "name": "small"}
    refusal = await cloud.refusal("DiskService/Create", metadata=metadata, spec=spec)
    assert f"at least {IMAGE_BYTES >> 30} GiB" in refusal.message
    missing = spec | {"size_gibibytes": 9, "source_image_id": "computeimage-e00nothing"}
    assert (await cloud.refusal("DiskService/Create", metadata=metadata, spec=missing)).code in (
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
    )
    family = {"type": "NETWORK_SSD", "size_gibibytes": 9, "source_image_family": {"image_family": "plan9"}}
    refusal = await cloud.refusal("DiskService/Create", metadata=metadata, spec=family)
    assert fields(refusal) == ["spec.source_image_family.image_family"]


async def test_a_disk_is_written_by_one_machine_at_a_time(cloud: Cloud) -> None:
    data = await disk(cloud)
    first = await cloud.machine("one", secondary_disks=[existing(data)])
    spec = instance_spec(boot_disk=boot_disk("two-boot"), secondary_disks=[existing(data)])
    metadata = {"parent_id": cloud.project_id, "name": "two"}
    refusal = await cloud.refusal("InstanceService/Create", metadata=metadata, spec=spec)
    assert refusal.code == Code.FAILED_PRECONDITION
    assert f"attached to instance one ({first.metadata.id})" in refusal.message
    assert "`neo compute instance update one --secondary-disks`" in refusal.message
    assert (await cloud.refusal("DiskService/Delete", id=data)).code == Code.FAILED_PRECONDITION
    await cloud.call("InstanceService/Delete", id=first.metadata.id)
    await cloud.gone(first.metadata.id)
    second = await cloud.machine("two", boot_disk=boot_disk("two-boot"), secondary_disks=[existing(data)])
    assert cloud.machines.desired(second.metadata.id)["disks"][1]["id"] == data
    annotations = cloud.pod(second.metadata.id).manifest.to_dict()["metadata"]["annotations"]
    assert data in annotations["neocloud.dev/attached-claims"]


async def test_many_may_read_a_disk_that_nobody_writes(cloud: Cloud) -> None:
    data = await disk(cloud)
    for name in ("one", "two"):
        await cloud.machine(
            name, boot_disk=boot_disk(f"{name}-boot"), secondary_disks=[existing(data, "READ_ONLY")]
        )
    spec = instance_spec(boot_disk=boot_disk("three-boot"), secondary_disks=[existing(data)])
    metadata = {"parent_id": cloud.project_id, "name": "three"}
    assert (await cloud.refusal("InstanceService/Create", metadata=metadata, spec=spec)).code == (
        Code.FAILED_PRECONDITION
    )


async def test_disks_are_attached_and_detached_while_the_machine_is_stopped(cloud: Cloud) -> None:
    data = await disk(cloud)
    instance = await cloud.machine()
    identifier = instance.metadata.id
    await cloud.call("InstanceService/Stop", id=identifier)
    stopped = await cloud.until(identifier, "STOPPED")
    stopped.spec.secondary_disks.add(attach_mode="READ_WRITE").existing_disk.id = data
    await cloud.update("Instance", stopped)
    await cloud.call("InstanceService/Start", id=identifier)
    await cloud.until(identifier, "RUNNING")
    assert [disk["id"] for disk in cloud.machines.desired(identifier)["disks"]][1:] == [data]
    await cloud.call("InstanceService/Stop", id=identifier)
    stopped = await cloud.until(identifier, "STOPPED")
    del stopped.spec.secondary_disks[:]
    await cloud.update("Instance", stopped, mask="spec.secondary_disks")
    await cloud.call("DiskService/Delete", id=data)
    await cloud.gone(data)


async def test_a_boot_disk_stays(cloud: Cloud) -> None:
    instance = await cloud.machine()
    other = await disk(cloud, "other", source_image_id=IMAGE_ID)
    await cloud.call("InstanceService/Stop", id=instance.metadata.id)
    await cloud.until(instance.metadata.id, "STOPPED")
    request = {"metadata": {"id": instance.metadata.id}, "spec": {"boot_disk": existing(other)}}
    assert "spec.boot_disk" in fields(await cloud.refusal("InstanceService/Update", **request))
    boot = instance.status.disk_attachments[0].id
    assert (await cloud.refusal("DiskService/Delete", id=boot)).code == Code.FAILED_PRECONDITION


async def test_a_filesystem_is_shared_by_machines(cloud: Cloud) -> None:
    shared = await cloud.create("Filesystem", "shared", {"type": "NETWORK_SSD", "size_gibibytes": 1})
    attached = [{"attach_mode": "READ_WRITE", "mount_tag": "data", "existing_filesystem": {"id": shared}}]
    for name in ("one", "two"):
        instance = await cloud.machine(name, boot_disk=boot_disk(f"{name}-boot"), filesystems=attached)
    desired = cloud.machines.desired(instance.metadata.id)
    assert desired["filesystems"] == [{"tag": "data", "path": "/filesystems/0", "read_only": False}]
    assert (await cloud.refusal("FilesystemService/Delete", id=shared)).code == Code.FAILED_PRECONDITION
    found = await cloud.when(shared, lambda seen: len(seen.status.read_write_attachments) == 2)
    assert instance.metadata.id in found.status.read_write_attachments


async def test_an_image_of_the_cloud_says_what_its_file_takes(tmp_path: Path) -> None:
    """Also one whose row a release before wrote, which took the size of the smallest disk for it."""
    clock, settings = SystemClock(), Settings(home=tmp_path)
    folder = tmp_path / "images" / "machine" / FAMILY
    folder.mkdir(parents=True)
    machine = {"name": FAMILY, "family": FAMILY, "title": "Test", "minimum_bytes": 4 * GIB}
    (folder / "image.json").write_text(json.dumps(machine))
    (folder / "disk.qcow2").write_bytes(b"x" * 100_000)
    store = await open_store(":memory:", b"k" * 32, clock)

    async def status() -> ImageStatus:
        await sync_public_images(store, settings, clock)
        (row,) = await store.read(lambda tx: tx.list(IMAGE, parent_id=PUBLIC_IMAGES_PARENT)[0])
        return ImageStatus.FromString(row.status)

    first = await status()
    assert first.min_disk_size_bytes == 4 * GIB
    assert 0 < first.storage_size_bytes <= 1 << 20

    def as_before(tx: Transaction) -> None:
        (row,) = tx.list(IMAGE, parent_id=PUBLIC_IMAGES_PARENT)[0]
        before = ImageStatus(storage_size_bytes=4 * GIB)
        before.MergeFrom(ImageStatus(min_disk_size_bytes=4 * GIB, state=first.state))
        tx.update(replace(row, status=before.SerializeToString()))

    await store.write(as_before)
    assert await status() == first
    await store.close()
