"""Object storage from end to end: buckets by the official SDK, objects by boto3, through the real gateway.

IAM-07."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.iam.v1 import (
    Account,
    CreateGroupMembershipRequest,
    CreateServiceAccountRequest,
    GetGroupByNameRequest,
    GroupMembershipServiceClient,
    GroupMembershipSpec,
    GroupServiceClient,
    ServiceAccountServiceClient,
)
from nebius.api.nebius.iam.v2 import (
    AccessKeyServiceClient,
    AccessKeySpec,
    CreateAccessKeyRequest,
    DeactivateAccessKeyRequest,
    GetAccessKeySecretRequest,
    SecretDeliveryMode,
)
from nebius.api.nebius.storage.v1 import (
    BucketServiceClient,
    BucketSpec,
    BucketStatus,
    CreateBucketRequest,
    DeleteBucketRequest,
    GetBucketRequest,
    PurgeBucketRequest,
    UndeleteBucketRequest,
    VersioningPolicy,
)
from nebius.sdk import SDK

from neocloud.testing.emulator import Emulator, connected, emulator_process

REGION = "eu-north1"
DEADLINE_SECONDS = 60.0


def until(holds: Callable[[], Any]) -> Any:
    """Return what `holds` returns once it is true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def make_key(sdk: SDK, cloud: Emulator, group: str) -> tuple[str, str, str]:
    """Return an access key of a new account: its id, and what S3 clients call it and its secret."""
    metadata = ResourceMetadata(parent_id=cloud.project_id)
    account = ServiceAccountServiceClient(sdk).create(CreateServiceAccountRequest(metadata=metadata)).wait()
    named = GetGroupByNameRequest(parent_id=cloud.tenant_id, name=group)
    members = ResourceMetadata(parent_id=GroupServiceClient(sdk).get_by_name(named).wait().metadata.id)
    joins = GroupMembershipSpec(member_id=account.resource_id)
    GroupMembershipServiceClient(sdk).create(
        CreateGroupMembershipRequest(metadata=members, spec=joins)
    ).wait()
    spec = AccessKeySpec(
        account=Account(service_account=Account.ServiceAccount(id=account.resource_id)),
        secret_delivery_mode=SecretDeliveryMode.EXPLICIT,
    )
    keys = AccessKeyServiceClient(sdk)
    key = keys.create(CreateAccessKeyRequest(metadata=metadata, spec=spec)).wait()
    secret = keys.get_secret(GetAccessKeySecretRequest(id=key.resource_id)).wait()
    return key.resource_id, secret.aws_access_key_id, secret.secret


def s3_client(cloud: Emulator, aws_id: str, secret: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=cloud.s3_endpoint,
        region_name=REGION,
        aws_access_key_id=aws_id,
        aws_secret_access_key=secret,
    )


def create(sdk: SDK, cloud: Emulator, name: str) -> str:
    metadata = ResourceMetadata(parent_id=cloud.project_id, name=name)
    request = CreateBucketRequest(metadata=metadata, spec=BucketSpec())
    made = BucketServiceClient(sdk).create(request).wait()
    made.sync_wait()
    return made.resource_id


def state_of(sdk: SDK, bucket_id: str) -> BucketStatus.State:
    return BucketServiceClient(sdk).get(GetBucketRequest(id=bucket_id)).wait().status.state


@pytest.fixture
def s3(sdk: SDK, neocloud_emulator: Emulator) -> Iterator[Any]:
    _, aws_id, secret = make_key(sdk, neocloud_emulator, "editors")
    yield s3_client(neocloud_emulator, aws_id, secret)


def test_a_bucket_by_the_sdk_takes_objects_by_boto3(
    sdk: SDK, neocloud_emulator: Emulator, s3: Any, new_name: Callable[[], str]
) -> None:
    """S3-01."""
    name = new_name()
    bucket_id = create(sdk, neocloud_emulator, name)
    status = BucketServiceClient(sdk).get(GetBucketRequest(id=bucket_id)).wait().status
    assert status.state == BucketStatus.State.ACTIVE and status.region == REGION
    assert f"http://{status.domain_name}" == neocloud_emulator.s3_endpoint
    s3.put_object(Bucket=name, Key="a/b.txt", Body=b"hello", Metadata={"by": "test"})
    found = s3.get_object(Bucket=name, Key="a/b.txt")
    assert (found["Body"].read(), found["Metadata"]) == (b"hello", {"by": "test"})
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=name)["Contents"]] == ["a/b.txt"]

    def counted() -> bool:
        found = BucketServiceClient(sdk).get(GetBucketRequest(id=bucket_id)).wait().status.counters
        return any(each.counters.simple_objects_size == 5 for each in found)

    until(counted)


def test_buckets_over_s3_are_the_api_s(
    sdk: SDK, neocloud_emulator: Emulator, s3: Any, new_name: Callable[[], str]
) -> None:
    name = new_name()
    s3.create_bucket(Bucket=name)
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    listed = neocloud_emulator.client.call(
        "nebius.storage.v1.BucketService/GetByName",
        {"parent_id": neocloud_emulator.project_id, "name": name},
    )
    assert listed.spec.versioning_policy == VersioningPolicy.ENABLED
    assert name in [each["Name"] for each in s3.list_buckets()["Buckets"]]
    s3.put_object(Bucket=name, Key="k", Body=b"x")
    with pytest.raises(ClientError, match="BucketNotEmpty"):
        s3.delete_bucket(Bucket=name)
    version = s3.list_object_versions(Bucket=name)["Versions"][0]["VersionId"]
    s3.delete_object(Bucket=name, Key="k", VersionId=version)
    s3.delete_bucket(Bucket=name)
    with pytest.raises(ClientError, match="NoSuchBucket|404"):
        s3.list_objects_v2(Bucket=name)


def test_a_deleted_bucket_is_gone_for_clients_and_comes_back_whole(
    sdk: SDK, neocloud_emulator: Emulator, s3: Any, new_name: Callable[[], str]
) -> None:
    name = new_name()
    bucket_id = create(sdk, neocloud_emulator, name)
    s3.put_object(Bucket=name, Key="k", Body=b"x" * 100_000)
    buckets = BucketServiceClient(sdk)
    buckets.delete(DeleteBucketRequest(id=bucket_id)).wait().sync_wait()
    assert state_of(sdk, bucket_id) == BucketStatus.State.SCHEDULED_FOR_DELETION
    with pytest.raises(ClientError, match="NoSuchBucket|404"):
        s3.get_object(Bucket=name, Key="k")
    buckets.undelete(UndeleteBucketRequest(id=bucket_id)).wait().sync_wait()
    assert s3.get_object(Bucket=name, Key="k")["Body"].read() == b"x" * 100_000
    buckets.delete(DeleteBucketRequest(id=bucket_id)).wait().sync_wait()
    buckets.purge(PurgeBucketRequest(id=bucket_id)).wait().sync_wait()
    s3.create_bucket(Bucket=name)
    assert "Contents" not in s3.list_objects_v2(Bucket=name)


def test_rights_end_with_the_key(
    sdk: SDK, neocloud_emulator: Emulator, s3: Any, new_name: Callable[[], str]
) -> None:
    name = new_name()
    create(sdk, neocloud_emulator, name)
    s3.put_object(Bucket=name, Key="k", Body=b"x")
    key_id, aws_id, secret = make_key(sdk, neocloud_emulator, "viewers")
    viewer = s3_client(neocloud_emulator, aws_id, secret)
    assert viewer.get_object(Bucket=name, Key="k")["Body"].read() == b"x"
    with pytest.raises(ClientError, match="AccessDenied"):
        viewer.put_object(Bucket=name, Key="k", Body=b"y")
    with pytest.raises(ClientError, match="AccessDenied"):
        viewer.create_bucket(Bucket=new_name())
    AccessKeyServiceClient(sdk).deactivate(DeactivateAccessKeyRequest(id=key_id)).wait()

    def is_refused() -> bool:
        try:
            viewer.get_object(Bucket=name, Key="k")
        except ClientError as error:
            return error.response.get("Error", {}).get("Code") == "InvalidAccessKeyId"
        return False

    until(is_refused)


def test_objects_outlive_a_killed_gateway_and_a_restart(tmp_path: Path) -> None:
    with emulator_process(tmp_path), connected(tmp_path) as cloud:
        sdk = cloud.sdk()
        _, aws_id, secret = make_key(sdk, cloud, "editors")
        create(sdk, cloud, "data-sets")
        sdk.sync_close()
        s3 = s3_client(cloud, aws_id, secret)
        s3.put_object(Bucket="data-sets", Key="k", Body=b"x" * 1_000_000)
        record = tmp_path / "objects" / "process.json"
        os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
        assert until(lambda: read(s3)) == b"x" * 1_000_000
    with emulator_process(tmp_path), connected(tmp_path) as cloud:
        s3 = s3_client(cloud, aws_id, secret)
        assert until(lambda: read(s3)) == b"x" * 1_000_000


def read(s3: Any) -> bytes:
    """Return the object; nothing while the gateway does not answer."""
    try:
        return s3.get_object(Bucket="data-sets", Key="k")["Body"].read()
    except (BotoCoreError, ClientError):
        return b""
