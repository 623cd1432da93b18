"""Objects that the control plane reads for resources of other services, and the keys that it reads with."""

import asyncio
import io
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.nebius.common.v1 import ResourceMetadata

from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.readers import ServiceRegistry, Subject
from neocloud.core.service import Dependencies
from neocloud.data_plane.access_keys import KeyLimit
from neocloud.services.iam.access.signed_requests import StoreSignedRequests
from neocloud.services.iam.types import SignedRequests
from neocloud.services.storage.gateway_link import BucketBoard
from neocloud.services.storage.object_reads import StoreObjectReads
from neocloud.services.storage.public import AccessProblem, ObjectLocation, Unreadable
from tests import control_plane
from tests.fast.object_gateway.s3.served import error_of
from tests.fast.services.storage.cloud import AccessKey
from tests.fast.services.storage.served import ServedCloud, object_gateway
from tests.fast.services.storage.test_temporary_keys import person as made_person

pytestmark = pytest.mark.slow

PLACE = ObjectLocation("data-sets", "chats/bank.jsonl")
JOB = ResourceMetadata(id="finetuningjob-e00test")
LIMIT = 1000
DENIED = (403, "AccessDenied")


class Cloud(ServedCloud):
    account_id: str
    """Id of an editor of the tenant."""
    key: AccessKey
    bucket_id: str
    requests: StoreSignedRequests
    board: BucketBoard
    reads: StoreObjectReads

    @property
    def subject(self) -> Subject:
        return Subject(self.account_id, "service_account", "owner", self.tenant_id)

    async def allow(self, place: ObjectLocation = PLACE, subject: Subject | None = None) -> None:
        job = ResourceMetadata(id=JOB.id, parent_id=self.project_id)
        who = subject or self.subject
        await self.running.store.write(lambda tx: self.reads.allow(tx, who, job, place))

    async def fetch(self, place: ObjectLocation = PLACE) -> bytes:
        target = io.BytesIO()
        await self.reads.fetch(JOB.id, place, target, LIMIT)
        return target.getvalue()

    async def reading(self, prefix: str) -> Any:
        """Return an S3 client with a reading key."""
        limit = KeyLimit(self.bucket_id, prefix)
        made = await self.requests.limited_key(self.account_id, self.project_id, limit, timedelta(minutes=5))
        return self.s3(made.aws_access_key_id, made.secret)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with (
        control_plane.cloud_in_process(tmp_path) as plain,
        object_gateway(tmp_path, plain.running.server.addresses.grpc) as url,
    ):
        found = Cloud(**vars(plain))
        found.s3_url = url
        found.bucket_id = await found.bucket("data-sets")
        found.account_id = await found.account("owner", "editors")
        found.key = await found.access_key(found.account_id)
        for name in ("chats/bank.jsonl", "chats/shop.jsonl", "secret"):
            await found.put(found.key, "data-sets", name, name.encode())
        found.board, clock = BucketBoard(SystemClock()), SystemClock()
        found.board.endpoint = url.removeprefix("http://")
        found.requests = StoreSignedRequests(found.running.store, clock)
        provided = ServiceRegistry().add(SignedRequests, found.requests).add(BucketBoard, found.board)
        found.reads = StoreObjectReads(
            Dependencies(found.running.store, clock, found.engine, found.settings, provided)
        )
        yield found


async def problem_of(call: Any) -> AccessProblem:
    with pytest.raises(Unreadable) as found:
        await call
    return found.value.problem


async def test_objects_and_folders_that_were_allowed_are_read(cloud: Cloud) -> None:
    await cloud.allow()
    assert await cloud.fetch() == b"chats/bank.jsonl"
    folder = ObjectLocation("data-sets", "chats/")
    await cloud.allow(folder)
    assert await cloud.reads.names(JOB.id, folder, 2) == ["bank.jsonl", "shop.jsonl"]
    assert await problem_of(cloud.reads.names(JOB.id, folder, 1)) is AccessProblem.TOO_LARGE
    absent = ObjectLocation("data-sets", "none/")
    assert await problem_of(cloud.reads.names(JOB.id, absent, 1)) is AccessProblem.MISSING


async def test_a_resource_that_was_allowed_nothing_reads_nothing(cloud: Cloud) -> None:
    assert await problem_of(cloud.fetch()) is AccessProblem.MISSING


async def test_a_person_reads_until_they_are_blocked(cloud: Cloud) -> None:
    person, _ = await made_person(cloud, "viewers")
    await cloud.allow(subject=Subject(person, "user", "ann", cloud.tenant_id))
    assert await cloud.fetch() == b"chats/bank.jsonl"
    await cloud.call("nebius.iam.v1.TenantUserAccountService/Block", id=person)
    assert await problem_of(cloud.fetch()) is AccessProblem.FORBIDDEN


@pytest.mark.parametrize(
    ("answer", "problem", "tries"),
    [
        (b"Content-Length: 5\r\nx-amz-checksum-crc32: AAAAAA==\r\n\r\nhello", AccessProblem.DAMAGED, 3),
        (b"Content-Length: 500\r\n\r\nhello", AccessProblem.DAMAGED, 3),
        (b"", AccessProblem.UNANSWERED, 2),  # a request is sent twice
    ],
    ids=["wrong checksum", "cut off", "no answer"],
)
async def test_what_arrives_damaged_is_not_taken(
    cloud: Cloud, answer: bytes, problem: AccessProblem, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.services.storage.object_reads.WAITS_SECONDS", (0.0, 0.0))
    tried = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tried
        tried += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + answer if answer else b"")
        writer.close()

    await cloud.allow()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        cloud.board.endpoint = "{}:{}".format(*server.sockets[0].getsockname())
        assert await problem_of(cloud.fetch()) is problem
    assert tried == tries


async def test_a_sign_in_for_other_services_is_not_allowed_to_read(cloud: Cloud) -> None:
    """Also where everybody may read: the policy is for whole accounts."""
    rule = {"paths": ["*"], "roles": ["storage.viewer"], "anonymous": {}}
    await cloud.bucket("open-sets", bucket_policy={"rules": [rule]})
    limited = Subject(cloud.account_id, "service_account", "owner", cloud.tenant_id, scopes=("tuning.*",))
    for bucket in ("data-sets", "open-sets"):
        with pytest.raises(contract.ApiError, match="another service"):
            await cloud.allow(ObjectLocation(bucket, "x"), limited)


async def test_another_bucket_that_took_the_name_is_not_read(cloud: Cloud) -> None:
    """It may be another tenant's, and open to anybody."""
    await cloud.allow()
    for verb in ("Delete", "Purge"):
        await cloud.call(f"nebius.storage.v1.BucketService/{verb}", id=cloud.bucket_id)
    await cloud.gone(cloud.bucket_id)
    await cloud.bucket("data-sets")
    await cloud.put(cloud.key, "data-sets", PLACE.key, b"poison")
    assert await problem_of(cloud.fetch()) is AccessProblem.MISSING


async def test_a_reading_key_reads_below_its_prefix_and_does_nothing_else(cloud: Cloud) -> None:
    """Its account may do all of it."""
    await cloud.bucket("other-sets")
    await cloud.put(cloud.key, "other-sets", "chats/bank.jsonl", b"other")
    s3 = await cloud.reading("chats/")

    def attack() -> None:
        got = s3.get_object(Bucket="data-sets", Key="chats/shop.jsonl")["Body"].read()
        listed = s3.list_objects_v2(Bucket="data-sets", Prefix="chats/")["Contents"]
        assert got == b"chats/shop.jsonl" and len(listed) == 2
        inside = {"Bucket": "data-sets", "Key": "chats/new"}
        source = {"Bucket": "data-sets", "Key": "chats/bank.jsonl"}
        for call, request in (
            (s3.get_object, {"Bucket": "data-sets", "Key": "secret"}),
            (s3.get_object, {"Bucket": "other-sets", "Key": "chats/bank.jsonl"}),
            (s3.list_objects_v2, {"Bucket": "data-sets"}),
            (s3.put_object, {**inside, "Body": b""}),
            (s3.copy_object, {**inside, "CopySource": source}),
            (s3.delete_object, source),
            (s3.delete_objects, {"Bucket": "data-sets", "Delete": {"Objects": [{"Key": source["Key"]}]}}),
            (s3.create_multipart_upload, inside),
            (s3.put_object_tagging, {**source, "Tagging": {"TagSet": []}}),
            (s3.get_bucket_versioning, {"Bucket": "data-sets"}),
            (s3.create_bucket, {"Bucket": "new-sets"}),
            (s3.list_buckets, {}),
        ):
            assert error_of(call, **request) == DENIED, call

    await asyncio.to_thread(attack)


async def test_a_reading_key_gets_no_token_and_ends_with_its_account(cloud: Cloud) -> None:
    limit = KeyLimit(cloud.bucket_id, "ä" * 600)  # its id stays short
    made = await cloud.requests.limited_key(cloud.account_id, cloud.project_id, limit, timedelta(minutes=5))
    day = f"{SystemClock().now():%Y%m%d}"
    signer = await cloud.requests.signer(made.aws_access_key_id, day, "eu-north1")
    assert signer is not None and signer.limit == KeyLimit(cloud.bucket_id, "ä" * 50)
    assert await cloud.requests.token(made.aws_access_key_id) is None
    await cloud.call("nebius.iam.v1.ServiceAccountService/Delete", id=cloud.account_id)
    assert await cloud.requests.signer(made.aws_access_key_id, day, "eu-north1") is None


async def test_tags_of_a_bucket_are_read_back_at_once(cloud: Cloud) -> None:
    """They are labels of the control plane, which it takes before the gateway hears of them."""
    client = cloud.s3(cloud.key.aws_id, cloud.key.secret)

    def change() -> None:
        for value in range(10):
            tags = [{"Key": "team", "Value": str(value)}]
            client.put_bucket_tagging(Bucket="data-sets", Tagging={"TagSet": tags})
            assert client.get_bucket_tagging(Bucket="data-sets")["TagSet"] == tags
        client.delete_bucket_tagging(Bucket="data-sets")
        assert error_of(client.get_bucket_tagging, Bucket="data-sets") == (404, "NoSuchTagSet")

    await asyncio.to_thread(change)
