"""Objects that the control plane writes for resources of other services, and the keys that it writes with."""

import asyncio
import io
from datetime import timedelta

import pytest

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.data_plane.access_keys import KeyLimit
from neocloud.services.storage import object_writes
from neocloud.services.storage.object_writes import StoreObjectWrites
from neocloud.services.storage.public import AccessProblem, ObjectLocation, Unwritable
from tests.fast.object_gateway.s3.served import error_of
from tests.fast.services.storage.test_object_reads import DENIED, JOB, Cloud, cloud

pytestmark = pytest.mark.slow

__all__ = ["cloud"]
FOLDER = ObjectLocation("data-sets", "out/job/")
MIB = 1024**2


def writes_of(cloud: Cloud) -> StoreObjectWrites:
    reads = cloud.reads._clients._dependencies  # pyright: ignore[reportPrivateUsage]
    return StoreObjectWrites(reads)


async def allow(cloud: Cloud, writes: StoreObjectWrites, subject: Subject | None = None) -> None:
    job = contract.message("nebius.common.v1.ResourceMetadata")(id=JOB.id, parent_id=cloud.project_id)
    await cloud.running.store.write(lambda tx: writes.allow(tx, subject or cloud.subject, job, FOLDER))


async def put(writes: StoreObjectWrites, name: str, body: bytes, size: int | None = None) -> None:
    await writes.put(JOB.id, FOLDER, name, io.BytesIO(body), len(body) if size is None else size)


async def content(cloud: Cloud, key: str) -> bytes:
    s3 = cloud.s3(cloud.key.aws_id, cloud.key.secret)
    return await asyncio.to_thread(lambda: s3.get_object(Bucket="data-sets", Key=key)["Body"].read())


async def test_small_and_large_files_are_written(cloud: Cloud) -> None:
    writes, body = writes_of(cloud), bytes(range(256)) * (70 * 1024)  # in parts
    await allow(cloud, writes)
    await put(writes, "small", b"hello")
    await put(writes, "large", body)
    await put(writes, "endless", b"x" * MIB, 10)  # it grew since it was opened
    assert await content(cloud, "out/job/small") == b"hello"
    assert await content(cloud, "out/job/large") == body
    assert await content(cloud, "out/job/endless") == b"x" * 10


async def test_what_is_put_once_replaces_nothing_and_may_be_repeated(cloud: Cloud) -> None:
    """A writing key may not look at what is there."""
    writes = writes_of(cloud)
    await allow(cloud, writes)
    await writes.put_once(JOB.id, FOLDER, "day", io.BytesIO(b"log"))
    await writes.put_once(JOB.id, FOLDER, "day", io.BytesIO(b"log"))
    for other in (b"lo", b"forged", b""):
        with pytest.raises(Unwritable) as found:
            await writes.put_once(JOB.id, FOLDER, "day", io.BytesIO(other))
        assert found.value.problem is AccessProblem.OCCUPIED
    assert await content(cloud, "out/job/day") == b"log"


async def test_a_resource_that_was_allowed_nothing_writes_nothing(cloud: Cloud) -> None:
    with pytest.raises(Unwritable) as found:
        await put(writes_of(cloud), "x", b"")
    assert found.value.problem is AccessProblem.MISSING


async def test_a_right_to_read_is_not_one_to_write(cloud: Cloud) -> None:
    viewer = await cloud.account("viewer", "viewers")
    subject = Subject(viewer, "service_account", "viewer", cloud.tenant_id)
    await cloud.allow(subject=subject)
    with pytest.raises(contract.ApiError, match=r"storage\.objects\.create"):
        await allow(cloud, writes_of(cloud), subject)
    with pytest.raises(Unwritable):
        await put(writes_of(cloud), "x", b"")


async def test_an_account_that_is_gone_writes_nothing(cloud: Cloud) -> None:
    writes = writes_of(cloud)
    await allow(cloud, writes)
    await cloud.call("nebius.iam.v1.ServiceAccountService/Delete", id=cloud.account_id)
    with pytest.raises(Unwritable) as found:
        await put(writes, "x", b"")
    assert found.value.problem is AccessProblem.FORBIDDEN


async def test_a_writing_key_creates_below_its_prefix_and_does_nothing_else(cloud: Cloud) -> None:
    """Its account may do all of it."""
    limit = KeyLimit(cloud.bucket_id, "out/", writes=True)
    made = await cloud.requests.limited_key(cloud.account_id, cloud.project_id, limit, timedelta(minutes=5))
    await cloud.bucket("other-sets")
    await cloud.put(cloud.key, "data-sets", "out/old", b"old")
    s3 = cloud.s3(made.aws_access_key_id, made.secret)

    def attack() -> None:
        inside = {"Bucket": "data-sets", "Key": "out/new"}
        s3.put_object(**inside, Body=b"new")
        upload = s3.create_multipart_upload(**inside)["UploadId"]
        secret = {"Bucket": "data-sets", "Key": "secret"}
        part = {**inside, "UploadId": upload, "PartNumber": 1}
        for call, request in (
            (s3.put_object, {**secret, "Body": b""}),
            (s3.put_object, {"Bucket": "other-sets", "Key": "out/x", "Body": b""}),
            (s3.create_multipart_upload, secret),
            (s3.get_object, {"Bucket": "data-sets", "Key": "out/old"}),
            (s3.list_objects_v2, {"Bucket": "data-sets", "Prefix": "out/"}),
            (s3.list_multipart_uploads, {"Bucket": "data-sets", "Prefix": "out/"}),
            (s3.copy_object, {**inside, "CopySource": secret}),
            (s3.upload_part_copy, {**part, "CopySource": secret}),
            (s3.delete_object, inside),
            (s3.delete_objects, {"Bucket": "data-sets", "Delete": {"Objects": [{"Key": "out/old"}]}}),
            (s3.put_object_tagging, {**inside, "Tagging": {"TagSet": []}}),
            (s3.get_bucket_versioning, {"Bucket": "data-sets"}),
            (s3.create_bucket, {"Bucket": "new-sets"}),
            (s3.list_buckets, {}),
        ):
            assert error_of(call, **request) == DENIED, call
        s3.abort_multipart_upload(**inside, UploadId=upload)

    await asyncio.to_thread(attack)
    assert await cloud.requests.token(made.aws_access_key_id) is None


async def test_a_deleting_key_deletes_below_its_prefix_and_does_nothing_else(cloud: Cloud) -> None:
    """Its account may do all of it."""
    limit = KeyLimit(cloud.bucket_id, "out/old", deletes=True)
    made = await cloud.requests.limited_key(cloud.account_id, cloud.project_id, limit, timedelta(minutes=5))
    await cloud.bucket("other-sets")
    for bucket, key in (("data-sets", "out/old"), ("data-sets", "out/kept"), ("other-sets", "out/old")):
        await cloud.put(cloud.key, bucket, key, b"old")
    s3 = cloud.s3(made.aws_access_key_id, made.secret)

    def attack() -> None:
        inside = {"Bucket": "data-sets", "Key": "out/old"}
        for call, request in (
            (s3.delete_object, {"Bucket": "data-sets", "Key": "out/kept"}),
            (s3.delete_object, {"Bucket": "other-sets", "Key": "out/old"}),
            (s3.get_object, inside),
            (s3.head_object, inside),
            (s3.list_objects_v2, {"Bucket": "data-sets", "Prefix": "out/old"}),
            (s3.put_object, {**inside, "Body": b""}),
            (s3.create_multipart_upload, inside),
            (s3.put_object_tagging, {**inside, "Tagging": {"TagSet": []}}),
            (s3.put_object_retention, {**inside, "Retention": {"Mode": "GOVERNANCE"}}),
            (s3.delete_bucket, {"Bucket": "data-sets"}),
            (s3.list_buckets, {}),
        ):
            assert error_of(call, **request)[0] == 403, call
        assert error_of(s3.delete_object, **inside, IfMatch='"other"') == (412, "PreconditionFailed")
        s3.delete_object(**inside)

    await asyncio.to_thread(attack)
    assert await content(cloud, "out/kept") == b"old"


async def test_a_write_that_lasts_gets_new_keys(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore renews a key a quarter of an hour before its end."""
    used: list[str] = []
    issue = cloud.requests.limited_key

    async def noted(*arguments: object) -> object:
        made = await issue(*arguments)  # pyright: ignore[reportArgumentType]
        used.append(made.aws_access_key_id)
        return made

    monkeypatch.setattr(cloud.requests, "limited_key", noted)
    short = object_writes.Use(
        "object-writer", True, timedelta(seconds=30), is_renewed=True, attempts=1, error=Unwritable
    )
    monkeypatch.setattr(object_writes, "_USE", short)
    writes = writes_of(cloud)
    await allow(cloud, writes)
    await put(writes, "large", b"x" * 40 * MIB)
    assert len(set(used)) > 1 and await content(cloud, "out/job/large") == b"x" * 40 * MIB


async def test_a_write_that_is_cancelled_leaves_no_upload(cloud: Cloud) -> None:
    writes = writes_of(cloud)
    await allow(cloud, writes)
    loop, has_begun = asyncio.get_running_loop(), asyncio.Event()
    ended = asyncio.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 32 * MIB:
                loop.call_soon_threadsafe(has_begun.set)
                asyncio.run_coroutine_threadsafe(ended.wait(), loop).result()
            return super().read(size)

    writing = asyncio.create_task(writes.put(JOB.id, FOLDER, "x", Slow(bytes(64 * MIB)), 64 * MIB))
    await has_begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    ended.set()
    s3 = cloud.s3(cloud.key.aws_id, cloud.key.secret)
    while (await asyncio.to_thread(s3.list_multipart_uploads, Bucket="data-sets")).get("Uploads"):
        pass
    assert "out/job/x" not in {
        each["Key"] for each in (await asyncio.to_thread(s3.list_objects_v2, Bucket="data-sets"))["Contents"]
    }
