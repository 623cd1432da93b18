"""Disks of machines that run: attached, held to their limits, and detached (CMP-13)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from neocloud.core.contract import Code
from neocloud.core.store.protocol import Transaction
from neocloud.engines.fake import FakeWorld
from neocloud.engines.manifest import Pod
from neocloud.services.compute.disk_limits import DiskLimits, disk_limits
from neocloud.services.compute.encryption import ENCRYPTED
from neocloud.services.compute.reconcile import machine_disks
from neocloud.testing.waiting import until
from tests.fast.services.compute.cloud import Cloud, boot_disk, existing, instance_spec, machine_cloud
from tests.fast.services.compute.test_storage import disk

GIB, MIB = 2**30, 2**20


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with machine_cloud(tmp_path) as running:
        yield running


async def change(cloud: Cloud, instance_id: str, *disks: dict[str, Any]) -> Any:
    """Attach exactly these disks beside the boot disk; return the operation."""
    spec = {"secondary_disks": list(disks)}
    mask = {"x-resetmask": "spec.secondary_disks"}
    return await cloud.call("InstanceService/Update", metadata={"id": instance_id}, spec=spec, headers=mask)


async def ended(cloud: Cloud, operation_id: str) -> Any:
    return await until(
        lambda: cloud.call("nebius.common.v1.OperationService/Get", id=operation_id),
        "the operation has ended",
        holds=lambda operation: operation.HasField("status"),
    )


async def described(cloud: Cloud, disk_id: str, text: str) -> None:
    await until(
        lambda: cloud.get("Disk", disk_id),
        f"the disk's state is described as {text}",
        holds=lambda found: text in found.status.state_description,
    )


def guest_disks(cloud: Cloud, instance_id: str) -> set[str]:
    return set(cloud.machines.attached[instance_id]["disks"])


def claims(cloud: Cloud, instance_id: str) -> set[str]:
    return {claim.name for claim in cloud.pod(instance_id).manifest.mounted_claims}


async def test_a_running_machine_gets_a_disk_and_releases_it(cloud: Cloud) -> None:
    data = await disk(cloud)
    first = (await cloud.machine("one")).metadata.id
    started_at = cloud.pod(first).containers[0].started_at
    await change(cloud, first, existing(data))
    seen = await cloud.when(first, lambda found: len(found.status.disk_attachments) == 2)
    assert seen.status.state == (await cloud.get("Instance", first)).status.state
    await cloud.when(data, lambda found: found.status.read_write_attachment == first)
    await until(lambda: data in claims(cloud, first), "the pod has the disk")
    assert data in {item["id"] for item in cloud.machines.desired(first)["disks"]}
    await change(cloud, first)
    await cloud.when(first, lambda found: len(found.status.disk_attachments) == 1)
    await cloud.when(data, lambda found: not found.status.read_write_attachment)
    assert data not in claims(cloud, first) and data not in guest_disks(cloud, first)
    assert cloud.pod(first).containers[0].started_at == started_at, "the machine ran all the time"
    second = await cloud.machine("two", boot_disk=boot_disk("two-boot"), secondary_disks=[existing(data)])
    assert data in guest_disks(cloud, second.metadata.id)


async def test_a_guest_that_keeps_a_disk_keeps_others_from_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = await disk(cloud)
    first = (await cloud.machine("one", secondary_disks=[existing(data)])).metadata.id
    cloud.machines.keeping.add(data)
    monkeypatch.setattr(machine_disks, "RELEASE_SECONDS", 0.5)
    operation = await change(cloud, first)
    failed = await ended(cloud, operation.id)
    assert failed.status.code == Code.FAILED_PRECONDITION and "data" in failed.status.message
    found = await cloud.get("Instance", first)
    assert [shown.id for shown in found.status.disk_attachments][1:] == [data]
    assert found.status.state == 4, "it runs, and is charged for"
    spec = instance_spec(boot_disk=boot_disk("two-boot"), secondary_disks=[existing(data)])
    metadata = {"parent_id": cloud.project_id, "name": "two"}
    refusal = await cloud.refusal("InstanceService/Create", metadata=metadata, spec=spec)
    assert refusal.code == Code.FAILED_PRECONDITION
    assert (await cloud.refusal("DiskService/Delete", id=data)).code == Code.FAILED_PRECONDITION
    assert "has not released it" in (await cloud.get("Disk", data)).status.state_description
    found.metadata.labels["a"] = "b"
    operation = await cloud.update("Instance", found)
    assert (await ended(cloud, operation.id)).status.code == Code.OK, "other changes are not in its way"
    await cloud.call("InstanceService/Stop", id=first)
    await cloud.until(first, "STOPPED")
    await cloud.when(data, lambda seen: not seen.status.read_write_attachment)


async def test_a_disk_is_attached_again_while_the_guest_keeps_it(cloud: Cloud) -> None:
    data = await disk(cloud)
    first = (await cloud.machine("one", secondary_disks=[existing(data, device_id="data")])).metadata.id
    cloud.machines.keeping.add(data)
    await change(cloud, first)
    operation = await change(cloud, first, existing(data, device_id="data"))
    assert (await ended(cloud, operation.id)).status.code == Code.OK
    assert (await cloud.get("Disk", data)).status.read_write_attachment == first
    assert guest_disks(cloud, first) > {data}


async def test_a_detach_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    world = FakeWorld()
    async with machine_cloud(tmp_path, world) as cloud:
        data = await disk(cloud)
        first = (await cloud.machine("one", secondary_disks=[existing(data)])).metadata.id
        cloud.machines.keeping.add(data)
        await change(cloud, first)
        await cloud.when(first, lambda found: found.status.reconciling)
        attached = cloud.machines.attached
    async with machine_cloud(tmp_path, world) as cloud:
        cloud.machines.attached = attached
        await cloud.when(data, lambda found: not found.status.read_write_attachment)
        assert data not in claims(cloud, first)


async def test_a_disk_of_a_running_machine_keeps_its_name_and_mode(cloud: Cloud) -> None:
    one, two = await disk(cloud, "one"), await disk(cloud, "two")
    identifier = (await cloud.machine("web", secondary_disks=[existing(one), existing(two)])).metadata.id
    for disks, said in (
        ([existing(two)], 'device_id "disk-2"'),
        ([existing(one, "READ_ONLY")], "attach_mode"),
    ):
        mask = {"x-resetmask": "spec.secondary_disks"}
        with pytest.raises(grpc.aio.AioRpcError, match=said):
            await cloud.call(
                "InstanceService/Update",
                metadata={"id": identifier},
                spec={"secondary_disks": disks},
                headers=mask,
            )
    await change(cloud, identifier, existing(two, device_id="disk-2"))
    await cloud.when(one, lambda found: not found.status.read_write_attachment)
    assert guest_disks(cloud, identifier) > {two}


async def test_limits_grow_with_a_disk_and_show_where_they_are_enforced(cloud: Cloud) -> None:
    data = await disk(cloud, type="NETWORK_HDD", size_gibibytes=256)
    assert (await cloud.get("Disk", data)).status.state_description == ENCRYPTED, "no limit is enforced"
    identifier = (await cloud.machine("web")).metadata.id
    await change(cloud, identifier, existing(data))
    await described(cloud, data, "300 read and 300 write")
    found = await cloud.get("Disk", data)
    assert "30 MiB read" in found.status.state_description and "web" in found.status.state_description
    found.spec.size_gibibytes = 257
    await cloud.update("Disk", found)
    await described(cloud, data, "600 read and 600 write")
    assert cloud.machines.limits[data]["read_operations"] == 600
    await cloud.call("InstanceService/Stop", id=identifier)
    await cloud.until(identifier, "STOPPED")
    assert (await cloud.get("Disk", data)).status.state_description == ENCRYPTED


@pytest.mark.parametrize(
    ("kind", "gibibytes", "limits"),
    [
        ("NETWORK_SSD", 1, DiskLimits(20_000, 40_000, 450 * MIB, 450 * MIB)),
        ("NETWORK_SSD_NON_REPLICATED", 93, DiskLimits(75_000, 75_000, GIB, GIB)),
        ("NETWORK_SSD_IO_M3", 93_000, DiskLimits(75_000, 75_000, GIB, GIB)),
        ("NETWORK_HDD", 1, DiskLimits(300, 300, 30 * MIB, 30 * MIB)),
        ("NETWORK_HDD", 512, DiskLimits(600, 600, 60 * MIB, 60 * MIB)),
        ("NETWORK_HDD", 256 * 1024, DiskLimits(2_000, 11_000, 240 * MIB, 240 * MIB)),
    ],
)
def test_limits_are_those_published(kind: str, gibibytes: int, limits: DiskLimits) -> None:
    assert disk_limits(kind, gibibytes * GIB) == limits


async def as_of_an_earlier_release(cloud: Cloud, instance_id: str, disk_id: str) -> None:
    """Make the machine's pod one that has this disk as a volume of its spec."""
    pod = cloud.pod(instance_id)
    spec = pod.manifest.spec()
    volumes, mounts = spec["volumes"], spec["containers"][0]["volumeMounts"]
    spec["volumes"] = [each for each in volumes if each["name"] != "attached-claims"]
    spec["volumes"].append({"name": "disk-1", "persistentVolumeClaim": {"claimName": disk_id}})
    mounts[:] = [each for each in mounts if each["name"] != "attached-claims"]
    mounts.append({"name": "disk-1", "mountPath": "/disks/1"})
    document = {**pod.manifest.to_dict(), "spec": spec}
    annotations = document["metadata"]["annotations"]
    del annotations["neocloud.dev/attached-claims"]
    held = json.loads(annotations["neocloud.dev/claims"])
    annotations["neocloud.dev/claims"] = json.dumps({**held, disk_id: disk_id})

    def as_before(tx: Transaction) -> None:
        content = json.loads(tx.secret(instance_id, "machine") or b"")
        kept = {"halt": content["halt"], "pod_spec": spec}
        tx.put_secret(instance_id, "machine", json.dumps(kept).encode())
        pod.manifest = Pod.from_dict(document)  # no look may come between the two

    await cloud.running.store.write(as_before)


async def test_a_machine_that_an_earlier_release_started_keeps_its_pod(cloud: Cloud) -> None:
    """Its secondary disks are volumes of its spec: they can be detached, and no others attached."""
    data, more = await disk(cloud), await disk(cloud, "more")
    identifier = (await cloud.machine("web", secondary_disks=[existing(data)])).metadata.id
    await as_of_an_earlier_release(cloud, identifier, data)
    pod = cloud.pod(identifier)
    await change(cloud, identifier, existing(data), existing(more))

    def paths() -> dict[str, str]:
        return {item["id"]: item["path"] for item in cloud.machines.desired(identifier)["disks"]}

    # "reconciling" is true from the update on, before the disks are looked at.
    as_it_runs = {data: "/disks/1/disk.qcow2"}
    await cloud.when(
        identifier, lambda found: found.status.reconciling and as_it_runs.items() <= paths().items()
    )
    assert more not in paths()
    await change(cloud, identifier)
    await cloud.when(data, lambda found: not found.status.read_write_attachment)
    assert cloud.pod(identifier) is pod, "not replaced"
