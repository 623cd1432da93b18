"""Keys for S3 of signed-in accounts: whose they are, what they open, and when they end."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from neocloud.messages.neocloud.storage.v1 import (
    IssueTokenRequest,
    ListGatewayBucketsRequest,
    ReportBucketsRequest,
)

from neocloud.core import contract
from neocloud.core.contract import Code
from neocloud.services.iam.access import tokens
from tests.control_plane import call
from tests.fast.services.storage.cloud import AccountCloud, StorageCloud
from tests.fast.services.storage.test_gateway_service import code_of, permissions, sign

pytestmark = pytest.mark.slow

ISSUE = "neocloud.storage.v1.TemporaryKeyService/Issue"
PASSWORD = "correct horse battery staple"
EMAIL = "alice@bank.example"


async def person(cloud: AccountCloud, *groups: str) -> tuple[str, Any]:
    """Return the id of a new user account, and its session."""
    made = await cloud.call(
        "neocloud.iam.v1.UserService/Create", parent_id=cloud.tenant_id, email=EMAIL, password=PASSWORD
    )
    account = made.tenant_user_account_id
    for group in groups:
        found = await cloud.call(
            "nebius.iam.v1.GroupService/GetByName", parent_id=cloud.tenant_id, name=group
        )
        await cloud.join(account, found.metadata.id)
    path = "neocloud.iam.v1.SignInService/WithPassword"
    request = contract.method(path).input(email=EMAIL, password=PASSWORD)
    return account, await call(cloud.channel, path, request)


async def issue(cloud: StorageCloud, token: str, project: str = "", **fields: Any) -> Any:
    request = contract.method(ISSUE).input(parent_id=project or cloud.project_id, **fields)
    return await call(cloud.channel, ISSUE, request, (("authorization", f"Bearer {token}"),))


async def test_a_key_signs_as_the_person_who_got_it(cloud: StorageCloud) -> None:
    account, session = await person(cloud, "viewers")
    key = await issue(cloud, session.access_token)
    assert key.aws_access_key_id.startswith("NCTK") and account not in key.aws_access_key_id
    found = await sign(cloud, key.aws_access_key_id)
    assert (found.subject_id, found.project_id, found.tenant_id) == (
        account,
        cloud.project_id,
        cloud.tenant_id,
    )
    assert len(found.group_ids) == 1 and key.secret.encode() not in found.SerializeToString()
    bucket_id = await cloud.bucket("data-sets")
    assert "storage.objects.get" in await permissions(cloud, account, bucket_id)
    assert "storage.objects.create" not in await permissions(cloud, account, bucket_id)
    remaining = key.expires_at.ToDatetime(UTC) - datetime.now(UTC)
    assert timedelta(minutes=55) < remaining <= timedelta(hours=1)


async def test_the_endpoint_is_the_one_that_the_gateway_reports(cloud: StorageCloud) -> None:
    _, session = await person(cloud)
    report = ReportBucketsRequest(is_complete=True, endpoint="127.0.0.1:8902", tls_port=8903)
    await cloud.gateway.call("ReportBuckets", report)
    key = await issue(cloud, session.access_token)
    assert (key.endpoint, key.tls_port) == ("127.0.0.1:8902", 8903)


async def test_a_key_ends_with_the_session_and_the_gateway_hears_of_it(cloud: StorageCloud) -> None:
    _, session = await person(cloud, "admins")
    key = await issue(cloud, session.access_token)
    await sign(cloud, key.aws_access_key_id)
    before = await cloud.gateway.call("ListBuckets", ListGatewayBucketsRequest())
    request = ListGatewayBucketsRequest(
        version=before.version, access_version=before.access_version, wait_seconds=20
    )
    asked = asyncio.create_task(cloud.gateway.call("ListBuckets", request))
    path = "neocloud.iam.v1.SignInService/SignOut"
    await call(cloud.channel, path, contract.method(path).input(refresh_token=session.refresh_token))
    assert (await asked).access_version != before.access_version
    assert await code_of(sign(cloud, key.aws_access_key_id)) == "NOT_FOUND"
    token = cloud.gateway.call("IssueToken", IssueTokenRequest(aws_access_key_id=key.aws_access_key_id))
    assert await code_of(token) == "NOT_FOUND"


async def test_a_blocked_person_has_no_rights_left(cloud: StorageCloud) -> None:
    account, session = await person(cloud, "admins")
    key = await issue(cloud, session.access_token)
    bucket_id = await cloud.bucket("data-sets")
    assert await permissions(cloud, account, bucket_id)
    await cloud.call("nebius.iam.v1.TenantUserAccountService/Block", id=account)
    assert await permissions(cloud, account, bucket_id) == set()
    assert await code_of(sign(cloud, key.aws_access_key_id)) == "NOT_FOUND"


async def test_revoking_the_tokens_of_a_service_account_ends_its_keys(cloud: StorageCloud) -> None:
    token = cloud.token
    key = await issue(cloud, token)
    subject = (await sign(cloud, key.aws_access_key_id)).subject_id
    await cloud.call("nebius.iam.v1.SessionManagementService/Revoke", service_account_id=subject)
    assert await code_of(sign(cloud, key.aws_access_key_id)) == "NOT_FOUND"


async def test_the_token_of_a_key_opens_storage_alone(cloud: StorageCloud) -> None:
    _, session = await person(cloud, "admins")
    key = await issue(cloud, session.access_token)
    answer = await cloud.gateway.call(
        "IssueToken", IssueTokenRequest(aws_access_key_id=key.aws_access_key_id)
    )
    headers = (("authorization", f"Bearer {answer.token}"),)
    lists: Any = contract.method("nebius.storage.v1.BucketService/List").input(parent_id=cloud.project_id)
    await call(cloud.channel, "nebius.storage.v1.BucketService/List", lists, headers)
    for path in ("nebius.compute.v1.DiskService/List", "nebius.iam.v1.ServiceAccountService/List"):
        request: Any = contract.method(path).input(parent_id=cloud.project_id)
        assert await code_of(call(cloud.channel, path, request, headers)) == "PERMISSION_DENIED"
    assert await code_of(issue(cloud, answer.token)) == "PERMISSION_DENIED", "no key from the token of a key"


async def test_ids_that_were_not_issued_here_sign_nothing(cloud: StorageCloud) -> None:
    _, session = await person(cloud)
    aws_id = (await issue(cloud, session.access_token)).aws_access_key_id
    other = aws_id[:60] + ("A" if aws_id[60] != "A" else "B") + aws_id[61:]
    for wrong in (
        other,
        aws_id[:-1],
        aws_id + "A",
        "NCTK",
        "NCTK" + "A" * 200,
        aws_id.upper(),
        aws_id + "\n",
    ):
        assert await code_of(sign(cloud, wrong)) == "NOT_FOUND"


async def test_who_gets_none(cloud: StorageCloud) -> None:
    _, session = await person(cloud)
    assert await code_of(issue(cloud, "")) == "UNAUTHENTICATED"
    assert await code_of(issue(cloud, "x")) == "UNAUTHENTICATED"
    for project in ("project-e00none", cloud.tenant_id, "tenant-e00other"):
        assert await code_of(issue(cloud, session.access_token, project)) == "NOT_FOUND"
    week = contract.method(ISSUE).input
    for seconds in (-1, 0, 59, 604801):
        request = week(parent_id=cloud.project_id)
        request.lifetime.seconds = seconds
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(cloud.channel, ISSUE, request, (("authorization", f"Bearer {session.access_token}"),))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await cloud.refusal(ISSUE, parent_id="")).code is Code.INVALID_ARGUMENT


async def test_a_key_does_not_outlive_a_token_that_cannot_be_revoked_alone(cloud: StorageCloud) -> None:
    account = await cloud.account("machine", "viewers")
    store, now = cloud.running.store, datetime.now(UTC)
    token = await tokens.issue(store, now, account, account, lifetime=timedelta(minutes=20))
    week = timedelta(days=7)
    key = await issue(cloud, token.value, lifetime=week)
    assert key.expires_at.ToDatetime(UTC) <= now + timedelta(minutes=21)
    assert (await sign(cloud, key.aws_access_key_id)).subject_id == account
    _, session = await person(cloud)
    kept = await issue(cloud, session.access_token, lifetime=week)
    assert kept.expires_at.ToDatetime(UTC) > now + timedelta(days=6)
