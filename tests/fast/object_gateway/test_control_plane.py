"""The calls that the object gateway makes, against a control plane in this process."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from neocloud.messages.nebius.storage.v1 import Bucket, BucketSpec, VersioningPolicy

from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.data_plane.gateway_keys import object_gateway_key_file
from neocloud.object_gateway.access import RefusalCode, Refused, UnknownAccessKey
from neocloud.object_gateway.control_plane import GrpcControlPlane
from tests.fast.services.storage.cloud import AccessKey, StorageCloud, cloud_in_process

ENABLED = VersioningPolicy.Value("ENABLED")


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[StorageCloud]:
    async with cloud_in_process(tmp_path) as ready:
        yield ready


@pytest.fixture
async def control_plane(cloud: StorageCloud) -> AsyncIterator[GrpcControlPlane]:
    client = GrpcControlPlane(cloud.running.server.addresses.grpc, object_gateway_key_file(cloud.home))
    yield client
    await client.close()


@pytest.fixture
async def key(cloud: StorageCloud) -> AccessKey:
    return await cloud.access_key(await cloud.account("writer", "editors"))


async def found(cloud: StorageCloud, name: str) -> Bucket:
    return await cloud.call("BucketService/GetByName", parent_id=cloud.project_id, name=name)


async def refusal_of(asked: object) -> RefusalCode:
    with pytest.raises(Refused) as caught:
        await asked  # type: ignore[misc]
    return caught.value.code


async def test_a_signing_key_names_the_caller(
    cloud: StorageCloud, control_plane: GrpcControlPlane, key: AccessKey
) -> None:
    day = f"{datetime.now(UTC):%Y%m%d}"
    signer = await control_plane.sign(key.aws_id, day, "eu-north1")
    assert len(signer.key) == 32 and signer.project_id == cloud.project_id
    assert signer.subject_name == "writer" and signer.expires_at is None
    assert key.secret not in repr(signer) and repr(signer.key) not in repr(signer)
    rights = await control_plane.authorize(signer.subject_id, cloud.project_id)
    assert "storage.buckets.create" in rights
    with pytest.raises(UnknownAccessKey):
        await control_plane.sign("NCAKE00XXXXXXXXXXXXXX", day, "eu-north1")


async def test_buckets_are_made_changed_and_removed_as_the_caller(
    cloud: StorageCloud, control_plane: GrpcControlPlane, key: AccessKey
) -> None:
    spec = BucketSpec(versioning_policy=ENABLED)
    spec.lifecycle_configuration.rules.add(id="a", status="ENABLED").expiration.days = 1
    await control_plane.create_bucket(key.aws_id, cloud.project_id, "data-sets", spec)
    bucket = await found(cloud, "data-sets")
    assert bucket.status.State.Name(bucket.status.state) == "ACTIVE"
    again = control_plane.create_bucket(key.aws_id, cloud.project_id, "data-sets", spec)
    assert await refusal_of(again) is RefusalCode.NAME_TAKEN
    bad = control_plane.create_bucket(key.aws_id, cloud.project_id, "A", spec)
    assert await refusal_of(bad) is RefusalCode.INVALID

    def change(bucket: Bucket) -> None:
        bucket.metadata.labels["team"] = "search"
        del bucket.spec.lifecycle_configuration.rules[:]
        rule = bucket.spec.lifecycle_configuration.rules.add(id="b", status="ENABLED")
        rule.abort_incomplete_multipart_upload.days_after_initiation = 2

    await control_plane.update_bucket(key.aws_id, bucket.metadata.id, change)
    changed = await found(cloud, "data-sets")
    (rule,) = changed.spec.lifecycle_configuration.rules
    assert rule.id == "b" and not rule.HasField("expiration"), "the old rule must not shine through"
    assert dict(changed.metadata.labels) == {"team": "search"}
    assert changed.spec.versioning_policy == ENABLED

    def clear(bucket: Bucket) -> None:
        bucket.spec.ClearField("lifecycle_configuration")
        bucket.metadata.labels.clear()

    await control_plane.update_bucket(key.aws_id, bucket.metadata.id, clear)
    cleared = await found(cloud, "data-sets")
    assert not cleared.spec.HasField("lifecycle_configuration") and not cleared.metadata.labels

    await control_plane.delete_bucket(key.aws_id, bucket.metadata.id)
    assert await cloud.row(bucket.metadata.id) is None
    gone = control_plane.delete_bucket(key.aws_id, bucket.metadata.id)
    assert await refusal_of(gone) is RefusalCode.NOT_FOUND
    events = await cloud.running.store.read(lambda tx: tx.list_audit(resource_id=bucket.metadata.id)[0])
    account = (await control_plane.sign(key.aws_id, f"{datetime.now(UTC):%Y%m%d}", "eu-north1")).subject_id
    assert {event.subject for event in events} == {account}


async def test_a_bucket_that_is_not_empty_stays(
    cloud: StorageCloud, control_plane: GrpcControlPlane, key: AccessKey
) -> None:
    bucket_id = await cloud.bucket("data-sets")
    await cloud.gateway.put("data-sets", 5)
    assert await refusal_of(control_plane.delete_bucket(key.aws_id, bucket_id)) is RefusalCode.CONFLICT
    await cloud.until(bucket_id, "ACTIVE")


async def test_a_caller_has_its_own_rights(cloud: StorageCloud, control_plane: GrpcControlPlane) -> None:
    bucket_id = await cloud.bucket("data-sets")
    reader = await cloud.access_key(await cloud.account("reader", "viewers"))
    made = control_plane.create_bucket(reader.aws_id, cloud.project_id, "other", BucketSpec())
    assert await refusal_of(made) is RefusalCode.DENIED
    assert await refusal_of(control_plane.delete_bucket(reader.aws_id, bucket_id)) is RefusalCode.DENIED
    await cloud.call("nebius.iam.v2.AccessKeyService/Delete", id=reader.id)
    with pytest.raises(UnknownAccessKey):
        await control_plane.create_bucket(reader.aws_id, cloud.project_id, "other", BucketSpec())


async def test_a_control_plane_that_is_away(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("x" * 43)
    client = GrpcControlPlane("127.0.0.1:1", key_file)
    with pytest.raises(ControlPlaneUnavailable):
        await client.list_buckets("", "", 0)
    key_file.unlink()
    with pytest.raises(ControlPlaneUnavailable, match="cannot be read"):
        await client.authorize("a", "b")
    await client.close()
