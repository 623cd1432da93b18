"""Sign-in at the registry with real credentials of the cloud, and the rights of roles: IAM-09."""

import asyncio
from datetime import timedelta

import pytest

from neocloud.core.clock import SystemClock
from neocloud.data_plane.access_keys import repository_limit
from neocloud.services.iam.access.signed_requests import StoreSignedRequests
from neocloud.services.iam.types import KeyLimit
from tests.fast.object_gateway.oci.client import digest_of
from tests.fast.services.registry.cloud import Credentials, RegistryCloud, short


async def key_of(cloud: RegistryCloud, account: str) -> Credentials:
    key = await cloud.access_key(account)
    return key.aws_id, key.secret


async def with_role(cloud: RegistryCloud, name: str, resource: str, role: str) -> Credentials:
    """Return the key of a new account that has a role on a resource."""
    account = await cloud.account(name)
    group = await cloud.group(f"{name}s")
    await cloud.join(account, group)
    await cloud.permit(group, resource, role)
    return await key_of(cloud, account)


async def test_tokens_and_keys_of_the_cloud_sign_in(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    key = await key_of(cloud, await cloud.account("builder", "editors"))
    content = await cloud.push(name, "v1", key)
    answer = await cloud.ask("GET", name, "manifests/v1")
    assert answer.content == content


@pytest.mark.parametrize(
    ("role", "pulls", "pushes", "deletes"),
    [
        ("container-registry.images.puller", True, False, False),
        ("container-registry.images.pusher", True, True, False),
        ("viewer", True, False, False),
        ("editor", True, True, True),
        ("compute.editor", False, False, False),
    ],
)
async def test_what_roles_allow(
    cloud: RegistryCloud, role: str, pulls: bool, pushes: bool, deletes: bool
) -> None:
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    content = await cloud.push(name, "v1")
    key = await with_role(cloud, "robot", registry_id, role)
    pulled = await cloud.ask("GET", name, "manifests/v1", key)
    assert (pulled.status_code == 200) is pulls
    pushed = await cloud.ask("POST", name, "blobs/uploads/", key)
    assert (pushed.status_code == 202) is pushes
    deleted = await cloud.ask("DELETE", name, f"manifests/{digest_of(content)}", key)
    assert (deleted.status_code == 202) is deletes
    refused = [each for each in (pulled, pushed, deleted) if each.status_code > 299]
    assert all(each.status_code == 403 and "DENIED" in each.text for each in refused)


async def test_a_role_on_one_registry_is_none_on_another(cloud: RegistryCloud) -> None:
    one, other = await cloud.registry("one"), await cloud.registry("other")
    key = await with_role(cloud, "robot", one, "container-registry.images.pusher")
    await cloud.push(f"{short(one)}/app", "v1", key)
    answer = await cloud.ask("POST", f"{short(other)}/app", "blobs/uploads/", key)
    assert answer.status_code == 403
    missing = await cloud.ask("POST", "e00nothing/app", "blobs/uploads/", key)
    assert missing.text == answer.text, "that a registry exists is not told"


async def test_a_deleted_key_ends_at_once(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    account = await cloud.account("builder", "editors")
    key = await cloud.access_key(account)
    token = (await cloud.access(name, (key.aws_id, key.secret))).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    url = f"/v2/{name}/blobs/uploads/"
    assert (await cloud.http.post(url, headers=headers)).status_code == 202
    await cloud.call("nebius.iam.v2.AccessKeyService/Delete", id=key.id)
    await cloud.refused_by_gateway(url, headers)
    assert (await cloud.access(name, (key.aws_id, key.secret))).status_code == 401


async def test_a_member_who_left_the_group_is_denied(cloud: RegistryCloud) -> None:
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    account, group = await cloud.account("builder"), await cloud.group("pushers")
    membership = await cloud.join(account, group)
    await cloud.permit(group, registry_id, "container-registry.images.pusher")
    key = await key_of(cloud, account)
    token = (await cloud.access(name, key)).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    url = f"/v2/{name}/blobs/uploads/"
    assert (await cloud.http.post(url, headers=headers)).status_code == 202
    await cloud.call("nebius.iam.v1.GroupMembershipService/Delete", id=membership)
    assert (await cloud.refused_by_gateway(url, headers)).status_code == 403


@pytest.mark.parametrize("password", ["", "not a token", "ncsk_x_y", "eyJhbGciOiJFZERTQSJ9.e30.AAAA"])
async def test_what_is_no_token_does_not_sign_in(cloud: RegistryCloud, password: str) -> None:
    answer = await cloud.access("e00nothing/app", ("iam", password))
    assert answer.status_code == 401 and answer.headers["WWW-Authenticate"].startswith("Basic ")


async def test_a_pulling_key_pulls_one_repository_and_does_nothing_else(cloud: RegistryCloud) -> None:
    """Not another one with its beginning, not with the limit of a bucket; and it ends with the role."""
    registry_id = await cloud.registry()
    name = f"{short(registry_id)}/app"
    for each in (name, f"{name}-2", f"{name}/more"):
        await cloud.push(each, "v1")
    puller, group = await cloud.account("puller"), await cloud.group("pullers")
    await cloud.join(puller, group)
    permit = await cloud.permit(group, registry_id, "editor")
    requests = StoreSignedRequests(cloud.running.store, SystemClock())

    async def limited(limit: KeyLimit) -> Credentials:
        made = await requests.limited_key(puller, cloud.project_id, limit, timedelta(minutes=5))
        return made.aws_access_key_id, made.secret

    key = await limited(KeyLimit(registry_id, repository_limit("app")))
    assert (await cloud.ask("GET", name, "manifests/v1", key)).status_code == 200
    for method, path, rest in (
        ("GET", f"{name}-2", "manifests/v1"),
        ("GET", f"{name}/more", "manifests/v1"),
        ("PUT", name, "manifests/v2"),
        ("DELETE", name, "manifests/v1"),
        ("POST", name, "blobs/uploads/"),
    ):
        assert (await cloud.ask(method, path, rest, key)).status_code in (401, 403), (method, path)
    writing = KeyLimit(registry_id, repository_limit("app"), writes=True)
    deleting = KeyLimit(registry_id, repository_limit("app"), deletes=True)
    for limit in (KeyLimit(registry_id, ""), KeyLimit(registry_id, "app"), writing, deleting):
        assert (await cloud.ask("GET", name, "manifests/v1", await limited(limit))).status_code in (401, 403)
    await cloud.call("nebius.iam.v1.AccessPermitService/Delete", id=permit)
    async with asyncio.timeout(20):
        while (await cloud.ask("GET", name, "manifests/v1", key)).status_code == 200:
            await asyncio.sleep(0.05)


async def test_a_temporary_key_does_not_sign_in(cloud: RegistryCloud) -> None:
    """It is for S3 alone; a token of the registry would outlive what ends it."""
    path = "neocloud.storage.v1.TemporaryKeyService/Issue"
    key = await cloud.call(path, parent_id=cloud.project_id)
    user, secret = key.aws_access_key_id, key.secret
    asked = await cloud.access("e00nothing/app", (user, secret))
    form = {"grant_type": "password", "username": user, "password": secret}
    posted = await cloud.http.post("/v2/token", data=form)
    for answer in (asked, posted):
        assert answer.status_code == 401
        assert "Temporary keys are for S3 alone" in answer.text and "user iam" in answer.text
