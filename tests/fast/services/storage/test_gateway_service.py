"""Answers to the object gateway, and to no other caller."""

import asyncio
import hmac
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from neocloud.messages.neocloud.storage.v1 import (
    AuthorizeRequest,
    IssueTokenRequest,
    ListGatewayBucketsRequest,
    ReportBucketsRequest,
    SignRequest,
)

from neocloud.core import contract
from neocloud.core.contract import Code
from neocloud.object_gateway.work.bucket_messages import in_parts
from neocloud.server.validation import check_bounds
from tests.control_plane import call
from tests.fast.services.storage.cloud import StorageCloud

REGION = "eu-north1"
VERBS = (
    *("Sign", "Authorize", "IssueToken", "ListBuckets", "ReportBuckets"),
    *("ListTransfers", "ReportTransfers", "ReportObjectEvents"),
)


def today() -> str:
    return f"{datetime.now(UTC):%Y%m%d}"


async def sign(cloud: StorageCloud, aws_id: str, day: str = "", region: str = REGION) -> Any:
    request = SignRequest(aws_access_key_id=aws_id, day=day or today(), region=region)
    return await cloud.gateway.call("Sign", request)


async def code_of(asked: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked
    return caught.value.code().name


@pytest.mark.parametrize("verb", VERBS)
async def test_only_the_object_gateway_may_ask(cloud: StorageCloud, verb: str) -> None:
    rpc = contract.method(f"neocloud.storage.v1.ObjectGatewayService/{verb}")
    request: Any = rpc.input()
    gateways_key = (cloud.home / "gateway" / "key").read_text().strip()
    answers = {
        await code_of(cloud.gateway.call(verb, request, key="")),
        await code_of(cloud.gateway.call(verb, request, key="x" * 43)),
        await code_of(cloud.gateway.call(verb, request, key=gateways_key)),
        (await cloud.refusal(rpc.path, request)).code.name,
    }
    assert answers == {"PERMISSION_DENIED"}


async def test_the_key_of_a_day_checks_signatures_of_that_day(cloud: StorageCloud) -> None:
    account = await cloud.account("writer", "editors")
    key = await cloud.access_key(account)
    found = await sign(cloud, key.aws_id)
    assert (found.subject_id, found.project_id) == (account, cloud.project_id)
    assert found.tenant_id == cloud.tenant_id and found.access_key_id == key.id
    assert len(found.group_ids) == 1 and key.secret.encode() not in found.SerializeToString()

    request = AWSRequest("GET", "http://127.0.0.1/bucket/key", headers={"x-amz-content-sha256": "0" * 64})
    request.context["timestamp"] = f"{today()}T120000Z"
    auth = S3SigV4Auth(Credentials(key.aws_id, key.secret), "s3", REGION)
    text = f"AWS4-HMAC-SHA256\n{today()}T120000Z\n{today()}/{REGION}/s3/aws4_request\n" + "0" * 64
    theirs = auth.signature(text, request)
    ours = hmac.new(found.signing_key, text.encode(), "sha256").hexdigest()
    assert ours == theirs


async def test_keys_of_far_days_and_unknown_keys_stay_here(cloud: StorageCloud) -> None:
    key = await cloud.access_key(await cloud.account("writer", "editors"))
    later = f"{datetime.now(UTC) + timedelta(days=3):%Y%m%d}"
    for aws_id, day, region in (
        (key.aws_id, later, REGION),
        (key.aws_id, "20200101", REGION),
        (key.aws_id, "99999999", REGION),
        (key.aws_id, "../../..", REGION),
        (key.aws_id, today(), "a b\n"),
        ("NCAKE00XXXXXXXXXXXXXX", today(), REGION),
        ("'; DROP TABLE resource", today(), REGION),
    ):
        assert await code_of(sign(cloud, aws_id, day, region)) == "NOT_FOUND"


async def test_a_key_that_is_off_signs_no_more_and_the_gateway_hears_of_it(cloud: StorageCloud) -> None:
    key = await cloud.access_key(await cloud.account("writer", "editors"))
    before = await cloud.gateway.call("ListBuckets", ListGatewayBucketsRequest())
    request = ListGatewayBucketsRequest(
        version=before.version, access_version=before.access_version, wait_seconds=20
    )
    asked = asyncio.create_task(cloud.gateway.call("ListBuckets", request))
    await cloud.call("nebius.iam.v2.AccessKeyService/Deactivate", id=key.id)
    assert (await asked).access_version != before.access_version
    assert await code_of(sign(cloud, key.aws_id)) == "NOT_FOUND"
    token = cloud.gateway.call("IssueToken", IssueTokenRequest(aws_access_key_id=key.aws_id))
    assert await code_of(token) == "NOT_FOUND"


async def permissions(cloud: StorageCloud, account: str, target: str) -> set[str]:
    request = AuthorizeRequest(subject_id=account, target_id=target)
    return set((await cloud.gateway.call("Authorize", request)).permissions)


async def test_rights_follow_the_roles_of_the_groups(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    viewer = await cloud.account("reader", "viewers")
    assert await permissions(cloud, viewer, bucket_id) == {
        "storage.buckets.get",
        "storage.buckets.list",
        "storage.objects.get",
        "storage.objects.list",
    }
    editor = await cloud.account("writer", "editors")
    assert "storage.objects.delete" in await permissions(cloud, editor, bucket_id)
    nobody = await cloud.account("nobody")
    assert await permissions(cloud, nobody, bucket_id) == set()
    group = await cloud.group("putters")
    await cloud.permit(group, bucket_id, "storage.objects.editor")
    await cloud.join(nobody, group)
    found = await permissions(cloud, nobody, bucket_id)
    assert "storage.objects.create" in found and "storage.buckets.delete" not in found
    assert "storage.buckets.bypassRetention" not in found, "who puts objects must not go past their retention"
    assert "storage.buckets.bypassRetention" in await permissions(cloud, editor, bucket_id)
    assert await permissions(cloud, nobody, cloud.project_id) == set()
    assert await permissions(cloud, cloud.project_id, bucket_id) == set()
    assert await permissions(cloud, "serviceaccount-e00none", bucket_id) == set()


async def test_the_token_of_a_key_opens_storage_alone_and_ends_with_the_key(cloud: StorageCloud) -> None:
    key = await cloud.access_key(await cloud.account("admin", "admins"))
    answer = await cloud.gateway.call("IssueToken", IssueTokenRequest(aws_access_key_id=key.aws_id))
    headers = (("authorization", f"Bearer {answer.token}"),)
    lists: Any = contract.method("nebius.storage.v1.BucketService/List").input(parent_id=cloud.project_id)
    await call(cloud.channel, "nebius.storage.v1.BucketService/List", lists, headers)
    disks: Any = contract.method("nebius.compute.v1.DiskService/List").input(parent_id=cloud.project_id)
    assert await code_of(call(cloud.channel, "nebius.compute.v1.DiskService/List", disks, headers)) == (
        "PERMISSION_DENIED"
    )
    members: Any = contract.message("nebius.iam.v1.CreateGroupRequest")()
    members.metadata.parent_id = cloud.tenant_id
    members.metadata.name = "mine"
    assert await code_of(call(cloud.channel, "nebius.iam.v1.GroupService/Create", members, headers)) == (
        "PERMISSION_DENIED"
    )
    await cloud.call("nebius.iam.v2.AccessKeyService/Delete", id=key.id)
    async with asyncio.timeout(20):
        while True:
            try:
                await call(cloud.channel, "nebius.storage.v1.BucketService/List", lists, headers)
            except grpc.aio.AioRpcError as error:
                assert error.code().name == "UNAUTHENTICATED"
                break


async def test_policies_come_with_the_permissions_of_their_roles(cloud: StorageCloud) -> None:
    group = await cloud.group("readers")
    rules = [
        {"paths": ["public/*"], "roles": ["storage.viewer"], "anonymous": {}},
        {"paths": ["*"], "roles": ["storage.objects.editor"], "group_id": group},
    ]
    bucket_id = await cloud.bucket("data-sets", bucket_policy={"rules": rules})
    assert (await cloud.get("Bucket", bucket_id)).status.anonymous_access_enabled
    (bucket,) = cloud.gateway.known.buckets
    anybody, members = bucket.policy
    assert (list(anybody.paths), anybody.group_id) == (["public/*"], "")
    assert set(anybody.permissions) == {
        "storage.buckets.get",
        "storage.buckets.list",
        "storage.objects.get",
        "storage.objects.list",
    }
    assert members.group_id == group and "storage.objects.delete" in members.permissions


async def test_buckets_that_the_control_plane_does_not_have_are_left_alone(cloud: StorageCloud) -> None:
    stray: Any = {"id": "storagebucket-e00stray", "name": "stray", "applied": "SERVE"}
    request = ReportBucketsRequest(buckets=[stray])
    await cloud.gateway.call("ReportBuckets", request)
    again = await cloud.gateway.call("ListBuckets", ListGatewayBucketsRequest())
    assert [each.name for each in again.buckets] == []
    assert (await cloud.refusal("BucketService/Get", id="storagebucket-e00stray")).code is Code.NOT_FOUND


async def test_the_operator_hears_of_scrubs_and_of_buckets_that_nobody_has(cloud: StorageCloud) -> None:
    bucket_id = await cloud.bucket("data-sets")
    problem: Any = {
        "bucket": "data-sets",
        "key": "k",
        "version_id": "v",
        "what": "the stored bytes are missing",
    }
    scrub: Any = {"versions": 7, "bytes": 70, "problem_count": 1, "problems": [problem]}
    request = ReportBucketsRequest(scrub=scrub, endpoint="127.0.0.1:8902")
    request.blob_place.name, request.blob_place.problem = "s3://engine/blobs", "ConnectionError: refused"
    request.scrub.started_at.FromDatetime(datetime(2026, 1, 1, 2, tzinfo=UTC))
    request.scrub.finished_at.FromDatetime(datetime(2026, 1, 1, 3, tzinfo=UTC))
    stray: Any = {"id": "storagebucket-e00stray", "name": "stray", "applied": "SERVE"}
    request.buckets.add(**stray)
    for _ in range(2):
        await cloud.gateway.call("ReportBuckets", request)
    address = f"http://{cloud.running.server.addresses.http}/status"
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {cloud.token}"}) as http:
        told = (await http.get(address)).json()["reports"]["storage"]
    assert told["orphan_buckets"] == [{"id": "storagebucket-e00stray", "name": "stray"}], bucket_id
    assert (told["blob_place"]["name"], told["blob_place"]["problem"]) == (
        *("s3://engine/blobs", "ConnectionError: refused"),
    )
    assert told["scrub"] == {
        "started_at": "2026-01-01T02:00:00+00:00",
        "finished_at": "2026-01-01T03:00:00+00:00",
        "versions": 7,
        "bytes": 70,
        "problem_count": 1,
        "problems": [problem],
    }
    asked = {
        "parent_id": cloud.tenant_id,
        "start": "2026-01-01T00:00:00Z",
        "end": "2026-01-02T00:00:00Z",
        "region": REGION,
        "filter": "action = 'scrub'",
    }
    (event,) = (await cloud.call("nebius.audit.v2.AuditEventService/List", asked)).items
    assert "data-sets/k v: the stored bytes are missing" in str(event), "written once"


def test_a_report_of_many_buckets_goes_in_requests_that_are_taken() -> None:
    whole = ReportBucketsRequest(is_complete=True, endpoint="127.0.0.1:8902", tls_port=8903)
    whole.scrub.versions = 1
    for number in range(1050):
        report = whole.buckets.add(id=f"storagebucket-e00{number}", name=f"data-{number}", is_empty=True)
        for storage_class in (1, 2, 3, 4):
            counters = report.counters.add(storage_class=storage_class)
            for message in (counters.counters, counters.non_current_counters):
                for field in message.DESCRIPTOR.fields:
                    setattr(message, field.name, 1)
    parts = list(in_parts(whole))
    for part in parts:
        check_bounds(part, part.ByteSize())
        assert part.endpoint and part.tls_port and not part.is_complete
    assert [each.id for part in parts for each in part.buckets] == [each.id for each in whole.buckets]
    assert [part.HasField("scrub") for part in parts] == [True, *([False] * (len(parts) - 1))]
