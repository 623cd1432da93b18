"""Images from objects: read with the rights of the account that made the image, and no others. The pod is a
fake; its program is tested in test_disk_import.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import grpc
import pytest
from neocloud.messages.nebius.compute.v1 import Image

from neocloud.core.reconcile.reconciler import Failed, RetryLater
from neocloud.emulator.fake_machines import FakeMachines
from neocloud.engines.base import ExecResult, Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services.compute.encryption import disk_key
from neocloud.services.compute.reconcile import image_import
from neocloud.services.compute.reconcile.image_import import IMPORT_POD, ImageImports
from neocloud.services.compute.render import VolumeView, volume_objects
from neocloud.services.storage.public import ObjectLocation
from tests import control_plane
from tests.fast.services.storage.cloud import AccessKey
from tests.fast.services.storage.served import ServedCloud

DISK = bytes(range(256)) * 4096
PIECE_BYTES = len(DISK) // 8
PLACE = {"bucket_name": "disks", "object_name": "rocky/9.qcow2"}


class Cloud(ServedCloud):
    api = "nebius.compute.v1"
    machines: FakeMachines
    owner: AccessKey

    async def image_as(self, account_id: str, name: str = "rocky", **source: str) -> str:
        mine, self.token = self.token, await self.token_of(account_id)
        try:
            return await self.create("Image", name, {"source_storage": PLACE | source})
        finally:
            self.token = mine


@pytest.fixture
async def stopped(tmp_path: Path) -> AsyncIterator[Cloud]:
    """A cloud with a disk in a bucket, whose object gateway does not run."""
    world = FakeWorld()
    machines = FakeMachines(world)
    engine = FakeEngine(world, responder=machines.respond)
    images = {"launcher": {"name": "launcher:test"}}
    async with control_plane.cloud_in_process(tmp_path, engine, images=images) as plain:
        found = Cloud(**vars(plain))
        found.machines = machines
        async with found.serving():
            await found.bucket("disks")
            found.owner = await found.access_key(await found.account("owner", "editors"))
            await found.put(found.owner, "disks", "rocky/9.qcow2", DISK)
        yield found


@pytest.fixture
async def cloud(stopped: Cloud) -> AsyncIterator[Cloud]:
    async with stopped.serving():
        yield stopped


async def maker(cloud: Cloud, *roles: str) -> tuple[str, str]:
    """Return an account that may make images, with more roles on the bucket, and its membership of them."""
    account, group = await cloud.account("maker"), await cloud.group("makers")
    await cloud.join(account, group)
    await cloud.permit(group, cloud.project_id, "compute.editor")
    readers = await cloud.group("readers")
    membership = await cloud.join(account, readers)
    bucket = await cloud.call(
        "nebius.storage.v1.BucketService/GetByName", parent_id=cloud.project_id, name="disks"
    )
    for role in roles:
        await cloud.permit(readers, bucket.metadata.id, role)
    return account, membership


async def code_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await call
    return found.value.code().name, found.value.details() or ""


def kinds(cloud: Cloud, image_id: str) -> set[str]:
    return {each.kind for each in cloud.engine.world.objects.of(image_id)} | {
        "Pod" for _ in cloud.engine.world.pods_of(image_id)
    }


async def test_an_object_becomes_an_image_and_a_disk(cloud: Cloud) -> None:
    account, _ = await maker(cloud, "storage.viewer")
    image_id = await cloud.image_as(account)
    image = await cloud.until(image_id, "READY")
    assert cloud.machines.imported[image_id] == DISK
    assert image.status.min_disk_size_bytes == len(DISK)
    assert kinds(cloud, image_id) == {"PersistentVolumeClaim", "NetworkPolicy"}, "the pod has gone"
    store = cloud.running.store
    key = await store.read(lambda tx: disk_key(tx, image_id))
    assert len(key) == 64
    assert "NCTK" not in repr(cloud.engine.world.objects), "no key is with the pod"
    disk_id = await cloud.create(
        "Disk", "boot", {"type": "NETWORK_SSD", "size_gibibytes": 1, "source_image_id": image_id}
    )
    await cloud.until(disk_id, "READY")
    assert await store.read(lambda tx: disk_key(tx, disk_id)) == key, "a disk is a copy of its file"
    await cloud.call("ImageService/Delete", id=image_id)
    await cloud.gone(image_id)
    assert kinds(cloud, image_id) == set()


async def test_who_may_make_images_but_not_read_the_bucket_is_refused(cloud: Cloud) -> None:
    account, _ = await maker(cloud)
    code, message = await code_of(cloud.image_as(account))
    assert code == "PERMISSION_DENIED" and "storage.objects.get" in message
    assert not (await cloud.call("ImageService/List", parent_id=cloud.project_id)).items


async def test_a_bucket_of_another_project_is_as_if_there_was_none(cloud: Cloud) -> None:
    made = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "other"}
    )
    await cloud.bucket("others-disks", made.resource_id)
    await cloud.put(cloud.owner, "others-disks", "rocky/9.qcow2", DISK)
    refusals = [
        await code_of(cloud.create("Image", "i", {"source_storage": PLACE | {"bucket_name": name}}))
        for name in ("others-disks", "absent-disks")
    ]
    assert [code for code, _ in refusals] == ["NOT_FOUND", "NOT_FOUND"]
    assert refusals[0][1].replace("others", "absent") == refusals[1][1]


async def test_a_right_that_was_taken_away_is_not_used(stopped: Cloud) -> None:
    account, membership = await maker(stopped, "storage.viewer")
    image_id = await stopped.image_as(account)
    await stopped.call("nebius.iam.v1.GroupMembershipService/Delete", id=membership)
    async with stopped.serving():
        image = await stopped.until(image_id, "ERROR")
    assert "may not be read any more" in image.status.state_description
    assert not stopped.machines.imported.get(image_id)


async def test_names_of_no_object_are_refused(cloud: Cloud) -> None:
    for source in ({"bucket_name": ""}, {"object_name": ""}, {"object_name": "folder/"}):
        refusal = await cloud.refusal(
            "ImageService/Create",
            metadata={"parent_id": cloud.project_id, "name": "i"},
            spec={"source_storage": PLACE | source},
        )
        (field,) = source
        assert refusal.details[0].bad_request.violations[0].field == f"spec.source_storage.{field}"


class Reads:
    """ObjectReads of one object, which is cut off where a test says so."""

    def __init__(self) -> None:
        self.breaks_after = len(DISK)
        self.largest = 0

    async def fetch(
        self, resource_id: str, place: ObjectLocation, target: BinaryIO, largest_bytes: int
    ) -> None:
        self.largest = largest_bytes
        for at in range(0, self.breaks_after, PIECE_BYTES):
            await asyncio.to_thread(target.write, DISK[at : at + PIECE_BYTES])
        if self.breaks_after < len(DISK):
            raise asyncio.CancelledError


@pytest.fixture
def machines() -> FakeMachines:
    return FakeMachines(FakeWorld())


class Imports:
    """An import of one image, run by hand; each has what a control plane keeps in memory."""

    def __init__(self, machines: FakeMachines, reads: Any) -> None:
        self.engine = FakeEngine(machines.world, responder=machines.respond)
        self.image = Image()
        self.image.metadata.id = "computeimage-e00rocky"
        self.image.spec.source_storage.bucket_name = "disks"
        self.image.spec.source_storage.object_name = "rocky/9.qcow2"
        self.imports = ImageImports(self.engine, lambda: reads, lambda: "launcher:test")

    async def finished(self, most_runs: int = 6000) -> int:
        await self.engine.apply(volume_objects(VolumeView(self.image.metadata.id, 1)))
        for _ in range(most_runs):
            observed = await self.engine.observe(self.image.metadata.id)
            try:
                return await self.imports.finish(self.image, observed, "5eed" * 16)
            except RetryLater:
                await asyncio.sleep(0.01)
        raise AssertionError("the import does not end")


async def test_a_copy_that_was_interrupted_begins_again(
    machines: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_import, "PIECE_BYTES", PIECE_BYTES)
    reads = Reads()
    first = Imports(machines, reads)
    reads.breaks_after = len(DISK) // 2
    with pytest.raises(asyncio.CancelledError):
        await first.finished()
    half = machines.imported[first.image.metadata.id]
    assert half == DISK[: len(half)] and half
    reads.breaks_after = len(DISK)
    assert await Imports(machines, reads).finished() == len(DISK)
    assert machines.imported[first.image.metadata.id] == DISK
    assert 0 < reads.largest <= image_import.LARGEST_STORED_BYTES


async def test_a_pod_that_has_it_all_is_not_written_again(machines: FakeMachines) -> None:
    """The control plane was killed while the pod converts."""
    reads = Reads()
    found = Imports(machines, reads)
    answer = machines.respond

    def respond(pod: Reference, container: str, command: Sequence[str], stdin: bytes) -> ExecResult | None:
        return ExecResult(0, b"{}", b"") if command[0] == "cat" else answer(pod, container, command, stdin)

    found.engine.responder = respond
    with pytest.raises(AssertionError, match="does not end"):
        await found.finished(most_runs=5)
    assert reads.largest == 0, "nothing was read"


async def test_what_the_pod_refuses_is_an_error_that_says_why(machines: FakeMachines) -> None:
    found = Imports(machines, Reads())
    answer = machines.respond

    def respond(pod: Reference, container: str, command: Sequence[str], stdin: bytes) -> ExecResult | None:
        done = answer(pod, container, command, stdin)
        logs = machines.world.pods[pod].containers[0].logs
        if logs:
            logs[-1] = json.dumps({"problem": "has a backing file"})
        return done

    found.engine.responder = respond
    with pytest.raises(Failed, match="it has a backing file") as caught:
        await found.finished()
    assert caught.value.reason == "SourceRefused"
    assert (await found.engine.observe(found.image.metadata.id)).pod(IMPORT_POD), "it stays to say why"
    await found.imports.cancel(found.image.metadata.id)
    assert not (await found.engine.observe(found.image.metadata.id)).pods
