"""File buckets: who may choose one, and what keys the gateway gets for its objects.

A real control plane and a real object gateway; calls of the gateway carry the key from the state folder.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from neocloud.data_plane.gateway_keys import KEY_HEADER, gateway_key_file
from tests import control_plane
from tests.fast.object_gateway.s3.served import error_of
from tests.fast.services.storage.cloud import AccessKey
from tests.fast.services.storage.served import ServedCloud

GATEWAY = "neocloud.inference.v1.GatewayService"
FILE_BUCKETS = "neocloud.inference.v1.FileBucketService"
FILE, OTHER_FILE = "file-" + "a" * 24, "file-" + "b" * 24
DENIED = (403, "AccessDenied")


class Cloud(ServedCloud):
    owner: AccessKey
    bucket_id: str

    async def choose(self, account: str = "", bucket: str = "team-data", name: str = "files") -> str:
        """Choose a file bucket with the token of an account."""
        mine, self.token = self.token, await self.token_of(account) if account else self.token
        try:
            metadata = {"parent_id": self.project_id, "name": name}
            made = await self.call(f"{FILE_BUCKETS}/Create", metadata=metadata, spec={"bucket": bucket})
        finally:
            self.token = mine
        return made.resource_id

    async def refused(self, account: str = "", bucket: str = "team-data") -> tuple[str, str]:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await self.choose(account, bucket, "second")
        return found.value.code().name, found.value.details() or ""

    async def ask(self, verb: str, **request: Any) -> Any:
        """Call as the gateway."""
        key = gateway_key_file(self.home).read_text().strip()
        return await self.call(f"{GATEWAY}/{verb}", request, headers={KEY_HEADER: key})

    async def key(self, use: str = "READ", **over: Any) -> Any:
        asked = {"project_id": self.project_id, "bucket_id": self.bucket_id, "file_id": FILE, "use": use}
        return await self.ask("IssueFileKey", **{**asked, **over})

    async def no_key(self, **over: Any) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await self.key(**over)
        return found.value.code().name

    async def client(self, use: str) -> Any:
        key = await self.key(use)
        return self.s3(key.aws_access_key_id, key.secret)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with control_plane.cloud_in_process(tmp_path) as plain:
        found = Cloud(**vars(plain))
        async with found.serving():
            found.bucket_id = await found.bucket("team-data")
            found.owner = await found.access_key(await found.account("owner", "editors"))
            yield found


async def member(cloud: Cloud, *roles: tuple[str, str]) -> str:
    account, group = await cloud.account("chooser"), await cloud.group("choosers")
    await cloud.join(account, group)
    for role, target in roles:
        await cloud.permit(group, target, role)
    return account


async def test_who_may_not_use_the_bucket_may_not_choose_it(cloud: Cloud) -> None:
    account = await member(cloud, ("inference.editor", cloud.project_id), ("storage.viewer", cloud.bucket_id))
    code, message = await cloud.refused(account)
    assert code == "PERMISSION_DENIED" and "storage.objects.create" in message
    other = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "other"}
    )
    await cloud.bucket("others-data", other.resource_id)
    refusals = [await cloud.refused(bucket=name) for name in ("others-data", "absent-data")]
    assert [code for code, _ in refusals] == ["NOT_FOUND", "NOT_FOUND"]
    assert refusals[0][1].replace("others", "absent") == refusals[1][1]
    assert not (await cloud.ask("ListRoutes")).file_buckets
    assert await cloud.no_key() == "NOT_FOUND"


async def test_who_may_use_the_bucket_may_not_choose_it_for_the_project(cloud: Cloud) -> None:
    account = await member(cloud, ("storage.editor", cloud.project_id), ("inference.user", cloud.project_id))
    code, message = await cloud.refused(account)
    assert code == "PERMISSION_DENIED" and "inference.fileBuckets.create" in message


async def test_a_project_has_one_file_bucket_until_it_is_deleted(cloud: Cloud) -> None:
    chosen = await cloud.choose()
    [route] = (await cloud.ask("ListRoutes")).file_buckets
    assert (route.project_id, route.bucket_id, route.bucket) == (
        cloud.project_id,
        cloud.bucket_id,
        "team-data",
    )
    code, message = await cloud.refused()
    assert code == "INVALID_ARGUMENT" and "files already" in message
    await cloud.call(f"{FILE_BUCKETS}/Delete", id=chosen)
    await cloud.gone(chosen)
    assert not (await cloud.ask("ListRoutes")).file_buckets
    assert await cloud.no_key() == "NOT_FOUND"
    await cloud.choose()
    assert (await cloud.key()).bucket == "team-data"


async def test_a_key_opens_one_object_for_one_use(cloud: Cloud) -> None:
    """The account that chose the bucket may do all of it."""
    await cloud.choose()
    mine = {"Bucket": "team-data", "Key": f"openai-files/{FILE}"}
    others = {"Bucket": "team-data", "Key": f"openai-files/{OTHER_FILE}"}
    for each in (others["Key"], "secret"):
        await cloud.put(cloud.owner, "team-data", each, b"other")
    reads, writes, deletes = [await cloud.client(use) for use in ("READ", "WRITE", "DELETE")]

    def attack() -> None:
        writes.put_object(**mine, Body=b"{}")
        assert reads.get_object(**mine)["Body"].read() == b"{}"
        for s3, call, request in (
            (reads, "get_object", others),
            (reads, "get_object", {"Bucket": "team-data", "Key": "secret"}),
            (reads, "list_objects_v2", {"Bucket": "team-data", "Prefix": "openai-files/"}),
            (reads, "put_object", mine),
            (reads, "delete_object", mine),
            (writes, "put_object", others),
            (writes, "get_object", mine),
            (writes, "delete_object", mine),
            (deletes, "delete_object", others),
            (deletes, "get_object", mine),
            (deletes, "put_object", mine),
        ):
            assert error_of(getattr(s3, call), **request) == DENIED, (call, request)
        deletes.delete_object(**mine)

    await asyncio.to_thread(attack)


async def test_a_key_is_for_the_id_of_a_file(cloud: Cloud) -> None:
    await cloud.choose()
    for file_id in ("", "file-", FILE[:-1], "../secret", f"{FILE}/../x", f"{FILE}\n"):
        assert await cloud.no_key(file_id=file_id) == "INVALID_ARGUMENT"
    assert await cloud.no_key(use=0) == "INVALID_ARGUMENT"


async def test_a_key_is_for_the_bucket_that_was_chosen(cloud: Cloud) -> None:
    """Another one that takes the name may be another project's, and open to anybody."""
    await cloud.choose()
    assert await cloud.no_key(project_id=cloud.tenant_id) == "NOT_FOUND"
    assert await cloud.no_key(bucket_id=await cloud.bucket("more-data")) == "NOT_FOUND"
    for verb in ("Delete", "Purge"):
        await cloud.call(f"nebius.storage.v1.BucketService/{verb}", id=cloud.bucket_id)
    await cloud.gone(cloud.bucket_id)
    again = await cloud.bucket("team-data")
    assert await cloud.no_key() == "NOT_FOUND"
    assert await cloud.no_key(bucket_id=again) == "NOT_FOUND"


async def test_a_right_that_was_taken_away_ends_every_key(cloud: Cloud) -> None:
    account = await member(cloud, ("inference.editor", cloud.project_id))
    group = await cloud.group("writers")
    membership = await cloud.join(account, group)
    await cloud.permit(group, cloud.bucket_id, "storage.objects.editor")
    await cloud.choose(account)
    s3 = await cloud.client("WRITE")
    await cloud.call("nebius.iam.v1.GroupMembershipService/Delete", id=membership)
    for client in (s3, await cloud.client("WRITE")):
        said = await asyncio.to_thread(
            error_of, client.put_object, Bucket="team-data", Key=f"openai-files/{FILE}", Body=b""
        )
        assert said == DENIED
