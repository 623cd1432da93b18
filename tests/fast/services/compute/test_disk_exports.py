"""Disks written to buckets: with the rights of the account that made the export, whole or not at all. The pod
is a fake; its program is tested in test_disk_export.py.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from botocore.exceptions import ClientError

from neocloud.emulator.fake_machines import FakeMachines
from neocloud.engines.base import ExecResult, Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services.compute import disk_export
from neocloud.services.compute.reconcile import disk_export_pod
from tests import control_plane
from tests.fast.services.storage.cloud import AccessKey
from tests.fast.services.storage.served import ServedCloud

pytestmark = pytest.mark.slow

PIECE = 2**20
FILE = os.urandom(20 * PIECE)
"""Two parts of an upload."""
EXPORTS = "neocloud.compute.v1.DiskExportService"
PLACE = {"bucket_name": "disks", "object_name": "out/golden.qcow2"}


class Cloud(ServedCloud):
    api = "nebius.compute.v1"
    machines: FakeMachines
    owner: AccessKey
    disk_id: str
    image_id: str

    async def export(self, name: str = "golden", *, parent: str = "", **spec: Any) -> str:
        spec.setdefault("source_image_id", self.image_id)
        spec = {"destination_storage": PLACE} | spec
        spec = {key: value for key, value in spec.items() if value}
        metadata = {"parent_id": parent or self.project_id, "name": name}
        return (await self.call(f"{EXPORTS}/Create", metadata=metadata, spec=spec)).resource_id

    async def get_export(self, export_id: str) -> Any:
        return await self.call(f"{EXPORTS}/Get", id=export_id)

    async def export_as(self, account_id: str, **spec: Any) -> str:
        mine, self.token = self.token, await self.token_of(account_id)
        try:
            return await self.export(**spec)
        finally:
            self.token = mine

    async def read(self, bucket: str = "disks", key: str = PLACE["object_name"]) -> bytes | None:
        s3 = self.s3(self.owner.aws_id, self.owner.secret)
        try:
            found = await asyncio.to_thread(s3.get_object, Bucket=bucket, Key=key)
        except ClientError as error:
            assert error.response.get("Error", {}).get("Code") == "NoSuchKey"
            return None
        return await asyncio.to_thread(found["Body"].read)


@pytest.fixture
async def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cloud]:
    """A cloud with an image of a disk and a bucket, whose object gateway does not run."""
    monkeypatch.setattr(disk_export_pod, "MOST_READ", PIECE)
    world = FakeWorld()
    machines = FakeMachines(world, exported=FILE)
    engine = FakeEngine(world, responder=machines.respond)
    images = {"launcher": {"name": "launcher:test"}}
    async with control_plane.cloud_in_process(tmp_path, engine, images=images) as plain:
        found = Cloud(**vars(plain))
        found.machines = machines
        async with found.serving():
            await found.bucket("disks")
            found.owner = await found.access_key(await found.account("owner", "editors"))
        found.disk_id = await found.create("Disk", "data", {"type": "NETWORK_SSD", "size_gibibytes": 1})
        await found.until(found.disk_id, "READY")
        found.image_id = await found.create("Image", "golden", {"source_disk_id": found.disk_id})
        await found.until(found.image_id, "READY")
        yield found


@pytest.fixture
async def cloud(stopped: Cloud) -> AsyncIterator[Cloud]:
    async with stopped.serving():
        yield stopped


async def code_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await call
    return found.value.code().name, found.value.details() or ""


async def maker(cloud: Cloud, role: str = "compute.editor", *bucket_roles: str) -> tuple[str, str]:
    """Return an account with a role in the project and roles on the bucket, and its membership of these."""
    account, group = await cloud.account("maker"), await cloud.group("makers")
    await cloud.join(account, group)
    await cloud.permit(group, cloud.project_id, role)
    writers = await cloud.group("writers")
    membership = await cloud.join(account, writers)
    bucket = await cloud.call(
        "nebius.storage.v1.BucketService/GetByName", parent_id=cloud.project_id, name="disks"
    )
    for each in bucket_roles:
        await cloud.permit(writers, bucket.metadata.id, each)
    return account, membership


def left_of(cloud: Cloud, export_id: str) -> set[str]:
    kinds = {each.kind for each in cloud.engine.world.objects.of(export_id)}
    return (kinds | {"Pod" for _ in cloud.engine.world.pods_of(export_id)}) - {"NetworkPolicy"}


async def test_an_image_becomes_an_object_that_is_whole(cloud: Cloud) -> None:
    account, _ = await maker(cloud, "compute.editor", "storage.objects.editor")
    export_id = await cloud.export_as(account)
    export = await cloud.until(export_id, "READY")
    assert await cloud.read() == FILE
    status = export.status
    assert (status.object_size_bytes, status.sent_bytes) == (len(FILE), len(FILE))
    assert status.sha256 == hashlib.sha256(FILE).hexdigest()
    assert left_of(cloud, export_id) == set(), "pod, key and copy have gone"
    asked: dict[str, Any] = {"parent_id": cloud.tenant_id, "region": "eu-north1"}
    asked |= {"start": "2026-01-01T00:00:00Z", "end": "2100-01-01T00:00:00Z"}
    events = (await cloud.call("nebius.audit.v2.AuditEventService/List", **asked)).items
    assert export_id in {event.resource.metadata.id for event in events}
    await cloud.call(f"{EXPORTS}/Delete", id=export_id)
    await cloud.gone(export_id)
    assert await cloud.read() == FILE, "the object stays"


@pytest.mark.parametrize("kind", ["disk", "snapshot"])
async def test_disks_and_snapshots_become_objects(cloud: Cloud, kind: str) -> None:
    source = {"source_disk_id": cloud.disk_id}
    if kind == "snapshot":
        snapshot_id = await cloud.create("DiskSnapshot", "s", source)
        await cloud.until(snapshot_id, "READY")
        source = {"source_disk_snapshot_id": snapshot_id}
    await cloud.until(await cloud.export(source_image_id="", **source), "READY")
    assert await cloud.read() == FILE


async def test_who_may_read_images_but_not_write_to_the_bucket_is_refused(cloud: Cloud) -> None:
    account, _ = await maker(cloud, "compute.editor", "storage.viewer")
    code, message = await code_of(cloud.export_as(account))
    assert code == "PERMISSION_DENIED" and "storage.objects.create" in message
    assert not (await cloud.call(f"{EXPORTS}/List", parent_id=cloud.project_id)).items


@pytest.mark.parametrize("role", ["compute.viewer", "compute.images.user", "storage.editor"])
async def test_who_may_only_look_at_images_exports_none(cloud: Cloud, role: str) -> None:
    account, _ = await maker(cloud, role, "storage.objects.editor")
    code, message = await code_of(cloud.export_as(account))
    assert code == "PERMISSION_DENIED" and "storage" not in message


async def other_project(cloud: Cloud) -> str:
    made = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "other"}
    )
    return made.resource_id


async def test_a_bucket_of_another_project_is_as_if_there_was_none(cloud: Cloud) -> None:
    await cloud.bucket("others-disks", await other_project(cloud))
    refusals = [
        await code_of(cloud.export(destination_storage=PLACE | {"bucket_name": name}))
        for name in ("others-disks", "absent-disks")
    ]
    assert [code for code, _ in refusals] == ["NOT_FOUND", "NOT_FOUND"]
    assert refusals[0][1].replace("others", "absent") == refusals[1][1]


async def test_an_image_of_another_project_cannot_be_exported(cloud: Cloud) -> None:
    project = await other_project(cloud)
    await cloud.bucket("their-disks", project)
    place = PLACE | {"bucket_name": "their-disks"}
    code, message = await code_of(cloud.export(parent=project, destination_storage=place))
    assert code == "INVALID_ARGUMENT" and "source_image_id" in message
    account, _ = await maker(cloud, "compute.editor", "storage.objects.editor")
    metadata = {"parent_id": project, "name": "theirs"}
    disk = {"type": "NETWORK_SSD", "size_gibibytes": 1}
    foreign = (await cloud.call("DiskService/Create", metadata=metadata, spec=disk)).resource_id
    code, _ = await code_of(cloud.export_as(account, source_image_id="", source_disk_id=foreign))
    assert code == "NOT_FOUND"


async def test_names_of_no_object_and_exports_of_nothing_are_refused(cloud: Cloud) -> None:
    for name in ("", "folder/", "k" * 1025):
        place = PLACE | {"object_name": name}
        assert (await code_of(cloud.export(destination_storage=place)))[0] == "INVALID_ARGUMENT", name
    assert (await code_of(cloud.export(source_image_id="")))[0] == "INVALID_ARGUMENT"


async def test_a_key_with_dots_is_a_key_and_no_path(cloud: Cloud) -> None:
    place = PLACE | {"object_name": "../../etc/passwd"}
    await cloud.until(await cloud.export(destination_storage=place), "READY")
    assert await cloud.read(key="../../etc/passwd") == FILE


async def test_an_object_that_is_there_is_not_replaced(cloud: Cloud) -> None:
    await cloud.put(cloud.owner, "disks", PLACE["object_name"], b"mine")
    export = await cloud.until(export_id := await cloud.export(), "ERROR")
    assert "nothing is replaced" in export.status.state_description
    assert await cloud.read() == b"mine"
    assert left_of(cloud, export_id) == set()


async def test_a_right_that_was_taken_away_is_not_used(stopped: Cloud) -> None:
    account, membership = await maker(stopped, "compute.editor", "storage.objects.editor")
    export_id = await stopped.export_as(account)
    await stopped.call("nebius.iam.v1.GroupMembershipService/Delete", id=membership)
    async with stopped.serving():
        export = await stopped.until(export_id, "ERROR")
        assert "may not be written any more" in export.status.state_description
        assert await stopped.read() is None
    assert left_of(stopped, export_id) == set()


class Gate:
    """Lets the pod give so many pieces, and then none until it is opened."""

    def __init__(self, machines: FakeMachines, pieces: int) -> None:
        self.answer, self.left = machines.respond, pieces

    def __call__(self, pod: Reference, container: str, command: Sequence[str], stdin: bytes) -> Any:
        if pod.name == disk_export_pod.EXPORT_POD and command[0] != "cat":
            self.left -= 1
            if self.left < 0:
                return ExecResult(1, b"", b"not yet")
        return self.answer(pod, container, command, stdin)


async def sent_in_part(cloud: Cloud) -> str:
    """Return the id of an export that has been interrupted after a part of an upload."""
    cloud.engine.responder = Gate(cloud.machines, 17)
    export_id = await cloud.export()
    async with asyncio.timeout(30):
        while not (await cloud.get_export(export_id)).status.sent_bytes:
            await asyncio.sleep(0.05)
    return export_id


async def test_an_export_that_is_deleted_half_way_leaves_nothing(cloud: Cloud) -> None:
    export_id = await sent_in_part(cloud)
    assert "Pod" in left_of(cloud, export_id)
    code, message = await code_of(cloud.call("ImageService/Delete", id=cloud.image_id))
    assert code == "FAILED_PRECONDITION" and export_id in message, "its source stays meanwhile"
    await cloud.call(f"{EXPORTS}/Delete", id=export_id)
    await cloud.gone(export_id)
    assert await cloud.read() is None
    assert left_of(cloud, export_id) == set()
    s3 = cloud.s3(cloud.owner.aws_id, cloud.owner.secret)
    assert not (await asyncio.to_thread(s3.list_multipart_uploads, Bucket="disks")).get("Uploads")


async def test_an_export_that_was_interrupted_begins_again(cloud: Cloud) -> None:
    export_id = await sent_in_part(cloud)
    assert await cloud.read() is None, "no half object"
    cloud.engine.responder = cloud.machines.respond
    await cloud.until(export_id, "READY")
    assert await cloud.read() == FILE


async def test_an_object_that_was_written_before_a_kill_is_recognised(cloud: Cloud) -> None:
    """The control plane was killed after the object was whole, and before it noted that."""
    await cloud.until(await cloud.export(), "READY")
    await cloud.until(await cloud.export("again"), "READY")
    assert await cloud.read() == FILE


async def test_more_than_a_disk_can_have_is_refused(cloud: Cloud) -> None:
    huge = 3 * disk_export.LARGEST_DISK_BYTES
    answer = cloud.machines.respond

    def respond(pod: Reference, container: str, command: Sequence[str], stdin: bytes) -> Any:
        if pod.name == disk_export_pod.EXPORT_POD and command[0] == "cat":
            return ExecResult(0, f'{{"file_size_bytes": {huge}}}'.encode(), b"")
        return answer(pod, container, command, stdin)

    cloud.engine.responder = respond
    export = await cloud.until(await cloud.export(), "ERROR")
    assert f"{huge:,} bytes" in export.status.state_description
