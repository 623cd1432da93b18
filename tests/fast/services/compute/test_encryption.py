"""The keys of disks: made, copied, given to machines, lost and deleted."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from neocloud.core.contract import Code
from neocloud.engines.base import Reference
from neocloud.services.compute.encryption import disk_key, is_encrypted
from neocloud.testing.waiting import until
from tests.fast.services.compute.cloud import Cloud, existing, instance_spec, machine_cloud
from tests.fast.services.compute.test_attachments import change

MANAGED: dict[str, Any] = {"disk_encryption": {"type": "DISK_ENCRYPTION_MANAGED"}}
READY = 2


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[Cloud]:
    async with machine_cloud(tmp_path) as running:
        yield running


async def disk(cloud: Cloud, name: str = "data", **spec: Any) -> str:
    identifier = await cloud.create("Disk", name, {"type": "NETWORK_SSD", "size_gibibytes": 4} | spec)
    await cloud.when(identifier, lambda found: found.status.state == READY)
    return identifier


async def key(cloud: Cloud, identifier: str) -> str:
    return await cloud.running.store.read(lambda tx: disk_key(tx, identifier))


def forget(home: Path, identifier: str, *, mark: bool = False) -> None:
    """Lose the key of a volume; with the mark, the volume is as an earlier release created it."""
    (database,) = home.glob("**/*.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        gone = connection.execute(
            "DELETE FROM secrets WHERE resource_id = ? AND name IN (?, ?)",
            (identifier, "disk-key", "disk-encryption" if mark else ""),
        )
    assert gone.rowcount == 1 + mark


def secret(cloud: Cloud, instance_id: str) -> dict[str, bytes]:
    return cloud.engine.world.objects[Reference("Secret", instance_id, "machine")].contents


async def test_each_disk_has_a_key_of_its_own_and_its_machine_gets_it(cloud: Cloud) -> None:
    data = await disk(cloud, **MANAGED)
    machine = await cloud.machine(secondary_disks=[existing(data)])
    boot = machine.status.disk_attachments[0].id
    files = secret(cloud, machine.metadata.id)
    keys = {await key(cloud, data), await key(cloud, boot)}
    assert len(keys) == 2 and all(len(bytes.fromhex(each)) == 32 for each in keys)
    assert {files[f"key-{boot}"].decode(), files[f"key-{data}"].decode()} == keys
    assert all(each["encrypted"] for each in json.loads(files["machine.json"])["disks"])
    assert not any(each.encode() in files["machine.json"] for each in keys)
    assert "encrypted (LUKS)" in (await cloud.get("Disk", data)).status.state_description
    assert (await cloud.get("Disk", data)).spec.disk_encryption.type == 1


async def test_a_disk_that_is_attached_later_brings_its_key_but_not_in_an_argument(cloud: Cloud) -> None:
    identifier, data = (await cloud.machine()).metadata.id, await disk(cloud)
    await change(cloud, identifier, existing(data))
    await cloud.when(data, lambda found: found.status.read_write_attachment == identifier)
    calls = await until(
        lambda: [call for call in cloud.machines.calls if call[1] == "attach-disk"], "it is attached"
    )
    assert secret(cloud, identifier)[f"key-{data}"].decode() == await key(cloud, data)
    assert json.loads(calls[0][2])["encrypted"] is True
    assert await key(cloud, data) not in calls[0][2]


async def test_copies_keep_the_key_when_the_original_is_deleted(cloud: Cloud) -> None:
    first = await disk(cloud)
    known = await key(cloud, first)
    snapshot = await cloud.create("DiskSnapshot", "snap", {"source_disk_id": first})
    await cloud.when(snapshot, lambda found: found.status.state == READY)
    image = await cloud.create("Image", "golden", {"image_family": "golden", "source_disk_id": first})
    await cloud.when(image, lambda found: found.status.state == READY)
    await cloud.call("DiskService/Delete", id=first)
    await cloud.gone(first)
    assert await key(cloud, snapshot) == await key(cloud, image) == known
    assert await key(cloud, await disk(cloud, "of-snapshot", source_snapshot_id=snapshot)) == known
    assert await key(cloud, await disk(cloud, "of-image", source_image_id=image)) == known
    assert await key(cloud, first) == ""
    assert not await cloud.running.store.read(lambda tx: is_encrypted(tx, first)), "the key goes with it"


async def test_a_disk_of_an_earlier_release_stays_plain_and_a_copy_of_it_gets_a_key(
    cloud: Cloud, tmp_path: Path
) -> None:
    old = await disk(cloud)
    forget(tmp_path, old, mark=True)
    assert "Not encrypted" in (await cloud.get("Disk", old)).status.state_description
    machine = await cloud.machine(secondary_disks=[existing(old)])
    files = secret(cloud, machine.metadata.id)
    assert f"key-{old}" not in files
    assert [each["encrypted"] for each in json.loads(files["machine.json"])["disks"]] == [True, False]
    snapshot = await cloud.create("DiskSnapshot", "snap", {"source_disk_id": old})
    await cloud.when(snapshot, lambda found: found.status.state == READY)
    assert await key(cloud, snapshot) == ""
    assert await key(cloud, await disk(cloud, "copy", source_snapshot_id=snapshot))


async def test_a_lost_key_is_told_and_no_machine_starts_with_it(cloud: Cloud, tmp_path: Path) -> None:
    data = await disk(cloud)
    forget(tmp_path, data)
    one = await cloud.create("Instance", "one", instance_spec(secondary_disks=[existing(data)]))
    await cloud.until(one, "ERROR")
    assert cloud.pod(one) is None
    broken = await cloud.until(data, "BROKEN")
    assert f"The key of {data} is lost" in broken.status.state_description


async def test_a_copy_of_a_disk_whose_key_is_lost_fails(cloud: Cloud, tmp_path: Path) -> None:
    data = await disk(cloud)
    forget(tmp_path, data)
    copy = await cloud.create("DiskSnapshot", "snap", {"source_disk_id": data})
    await cloud.until(copy, "ERROR")
    assert not cloud.engine.world.objects.get(Reference("PersistentVolumeClaim", copy, copy))


async def test_encryption_cannot_be_changed(cloud: Cloud) -> None:
    spec = {"type": "NETWORK_SSD", "size_gibibytes": 4, **MANAGED}
    refusal = await cloud.refusal("DiskService/Update", metadata={"id": await disk(cloud)}, spec=spec)
    assert (refusal.code, refusal.details[0].bad_request.violations[0].field) == (
        Code.INVALID_ARGUMENT,
        "spec.disk_encryption",
    )
