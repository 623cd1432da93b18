"""Access keys and static keys through the official SDK: who is shown which secret, and how often.
IAM-06, IAM-07."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from nebius.aio.service_error import RequestError
from nebius.aio.token.token import Token
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.iam import v1, v2
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.services.iam.access.account_keys import find_signing_key
from tests.fast.services.iam.conftest import Cloud
from tests.fast.services.iam.test_access import robot

OBSERVABILITY = v1.StaticKeySpec.ClientService.OBSERVABILITY
INLINE, EXPLICIT = v2.SecretDeliveryMode.INLINE, v2.SecretDeliveryMode.EXPLICIT
ACTIVE, INACTIVE, EXPIRED = (
    getattr(v2.AccessKeyStatus.State, name) for name in ("ACTIVE", "INACTIVE", "EXPIRED")
)


class Keys:
    """Clients of the key services, as somebody."""

    def __init__(self, cloud: Cloud, sdk: SDK, account_id: str) -> None:
        self.cloud, self.account_id = cloud, account_id
        self.old, self.new = v1.AccessKeyServiceClient(sdk), v2.AccessKeyServiceClient(sdk)
        self.static = v1.StaticKeyServiceClient(sdk)

    @property
    def metadata(self) -> ResourceMetadata:
        return ResourceMetadata(parent_id=self.cloud.bank.project_id, name="backups")

    @property
    def account(self) -> v1.Account:
        return v1.Account(service_account=v1.Account.ServiceAccount(id=self.account_id))

    async def make(self, mode: Any = EXPLICIT, **spec: Any) -> str:
        given = v2.AccessKeySpec(account=self.account, secret_delivery_mode=mode, **spec)
        operation = await self.new.create(v2.CreateAccessKeyRequest(metadata=self.metadata, spec=given))
        return operation.resource_id

    async def issue(self, **spec: Any) -> v1.IssueStaticKeyResponse:
        given = v1.StaticKeySpec(account=self.account, service=OBSERVABILITY, **spec)
        return await self.static.issue(v1.IssueStaticKeyRequest(metadata=self.metadata, spec=given))


@pytest.fixture
async def sdks(cloud: Cloud) -> AsyncIterator[Any]:
    made: list[SDK] = []

    def sdk(token: str) -> SDK:
        made.append(
            SDK(
                resolver=Constant(cloud.address),
                options=[(INSECURE, True)],
                credentials=Token(token),
                user_agent_prefix="tests/1.0",
            )
        )
        return made[-1]

    yield sdk
    for each in made:
        await each.close()


@pytest.fixture
async def keys(cloud: Cloud, sdks: Any) -> Keys:
    account_id = await cloud.make_account("backups")
    return Keys(cloud, sdks(await cloud.operator_token()), account_id)


async def as_member_of(cloud: Cloud, sdks: Any, group: str) -> Keys:
    account_id, token = await robot(cloud, f"one-of-{group}")
    await cloud.add_to(group, account_id)
    return Keys(cloud, sdks(token), account_id)


async def refusal(call: Any) -> str:
    with pytest.raises(RequestError) as caught:
        await call
    return caught.value.status.code.name


async def test_version_one_shows_a_secret_once(keys: Keys) -> None:
    spec = v1.AccessKeySpec(account=keys.account, description="nightly")
    made = await keys.old.create(v1.CreateAccessKeyRequest(metadata=keys.metadata, spec=spec))
    key = await keys.old.get_by_id(v1.GetAccessKeyByIdRequest(id=made.resource_id))
    assert (key.spec.description, key.metadata.name, key.status.secret) == ("nightly", "backups", "")
    secret = (await keys.old.get_secret_once(v1.GetAccessKeySecretOnceRequest(id=made.resource_id))).secret
    assert len(secret) >= 40
    again = keys.old.get_secret_once(v1.GetAccessKeySecretOnceRequest(id=made.resource_id))
    assert await refusal(again) == "FAILED_PRECONDITION"
    signing = await keys.cloud.store.read(
        lambda tx: find_signing_key(tx, key.status.aws_access_key_id, keys.cloud.clock.now())
    )
    assert signing is not None
    assert (signing.secret, signing.subject.id) == (secret, keys.account_id)
    assert secret not in repr(signing)


async def test_both_ids_lead_to_the_same_key_in_both_versions(keys: Keys) -> None:
    key_id = await keys.make()
    aws_id = (await keys.new.get(v2.GetAccessKeyRequest(id=key_id))).status.aws_access_key_id
    for found in (
        await keys.old.get_by_aws_id(v1.GetAccessKeyByAwsIdRequest(aws_access_key_id=aws_id)),
        await keys.new.get_by_aws_id(v2.GetAccessKeyByAwsIdRequest(aws_access_key_id=aws_id)),
    ):
        assert found.metadata.id == key_id
    assert [item.metadata.id for item in await _listed(keys)] == [key_id] * 4
    identity = v1.KeyIdentity(aws_access_key_id=aws_id)
    await keys.old.deactivate(v1.DeactivateAccessKeyRequest(id=identity))
    assert (await keys.new.get(v2.GetAccessKeyRequest(id=key_id))).status.state == INACTIVE
    await keys.new.activate_by_aws_id(v2.ActivateAccessKeyByAwsIdRequest(aws_access_key_id=aws_id))
    assert (await keys.new.get(v2.GetAccessKeyRequest(id=key_id))).status.state == ACTIVE
    await keys.old.delete(v1.DeleteAccessKeyRequest(id=identity))
    assert await refusal(keys.new.get(v2.GetAccessKeyRequest(id=key_id))) == "NOT_FOUND"
    wrong = v2.GetAccessKeyByAwsIdRequest(aws_access_key_id="AKIAIOSFODNN7EXAMPLE")
    assert await refusal(keys.new.get_by_aws_id(wrong)) == "NOT_FOUND"


async def _listed(keys: Keys) -> list[Any]:
    parent_id = keys.cloud.bank.project_id
    pages = (
        await keys.old.list(v1.ListAccessKeysRequest(parent_id=parent_id)),
        await keys.new.list(v2.ListAccessKeysRequest(parent_id=parent_id)),
        await keys.old.list_by_account(v1.ListAccessKeysByAccountRequest(account=keys.account)),
        await keys.new.list_by_account(v2.ListAccessKeysByAccountRequest(account=keys.account)),
    )
    return [item for page in pages for item in page.items]


async def test_version_two_delivers_as_the_key_says(keys: Keys, cloud: Cloud, sdks: Any) -> None:
    viewer = await as_member_of(cloud, sdks, "viewers")
    inline = await keys.make(INLINE)
    secret = (await keys.new.get(v2.GetAccessKeyRequest(id=inline))).status.secret
    assert secret
    assert (await viewer.new.get(v2.GetAccessKeyRequest(id=inline))).status.secret == ""
    assert (
        await refusal(keys.new.get_secret(v2.GetAccessKeySecretRequest(id=inline))) == "FAILED_PRECONDITION"
    )
    keys_of = await viewer.new.list(v2.ListAccessKeysRequest(parent_id=cloud.bank.project_id))
    assert [key.status.secret for key in keys_of.items] == [""]


async def test_an_explicit_secret_is_for_who_may_get_secrets(keys: Keys, cloud: Cloud, sdks: Any) -> None:
    explicit = await keys.make(EXPLICIT)
    got = await keys.new.get_secret(v2.GetAccessKeySecretRequest(id=explicit))
    assert got.secret and got.aws_access_key_id.startswith("NCAK")
    assert (await keys.new.get(v2.GetAccessKeyRequest(id=explicit))).status.secret == ""
    for group in ("viewers", "editors"):
        other = await as_member_of(cloud, sdks, group)
        asked = other.new.get_secret(v2.GetAccessKeySecretRequest(id=explicit))
        assert await refusal(asked) == "PERMISSION_DENIED"


async def test_mystery_box_is_not_served(keys: Keys) -> None:
    assert await refusal(keys.make(v2.SecretDeliveryMode.MYSTERY_BOX)) == "UNIMPLEMENTED"


async def test_a_key_that_is_off_or_past_its_day_signs_nothing(keys: Keys, cloud: Cloud) -> None:
    key_id = await keys.make(expires_at=cloud.clock.now() + timedelta(hours=1))
    await keys.new.get_secret(v2.GetAccessKeySecretRequest(id=key_id))
    key = await keys.new.get(v2.GetAccessKeyRequest(id=key_id))

    async def signs() -> bool:
        aws_id = key.status.aws_access_key_id
        return bool(await cloud.store.read(lambda tx: find_signing_key(tx, aws_id, cloud.clock.now())))

    assert await signs()
    await keys.new.deactivate(v2.DeactivateAccessKeyRequest(id=key_id))
    assert not await signs()
    await keys.new.activate(v2.ActivateAccessKeyRequest(id=key_id))
    assert await signs()
    cloud.clock.offset = timedelta(minutes=59, seconds=59)
    assert await signs()
    cloud.clock.offset = timedelta(hours=1)
    assert not await signs()


async def test_an_expired_key_says_so(keys: Keys, cloud: Cloud) -> None:
    key_id = await keys.make(expires_at=cloud.clock.now() + timedelta(minutes=5))
    cloud.clock.offset = timedelta(minutes=6)
    assert (await keys.new.get(v2.GetAccessKeyRequest(id=key_id))).status.state == EXPIRED


async def test_a_static_key_is_shown_once_and_found_by_its_token(keys: Keys) -> None:
    issued = await keys.issue()
    assert issued.operation.resource_id.startswith("statickey-")
    found = (await keys.static.find(v1.FindStaticKeyRequest(token=issued.token))).static_key
    assert (found.metadata.id, found.status.active) == (issued.operation.resource_id, True)
    named = v1.GetStaticKeyByNameRequest(parent_id=keys.cloud.bank.project_id, name="backups")
    assert (await keys.static.get_by_name(named)).metadata.id == found.metadata.id
    forged = issued.token[:-1] + ("0" if issued.token[-1] != "0" else "1")
    assert await refusal(keys.static.find(v1.FindStaticKeyRequest(token=forged))) == "NOT_FOUND"
    assert await refusal(keys.issue()) == "ALREADY_EXISTS"


async def test_a_static_key_is_a_bearer_token_of_its_account(keys: Keys, sdks: Any) -> None:
    issued = await keys.issue()
    bearer = sdks(issued.token)
    profile = await v1.ProfileServiceClient(bearer).get(v1.GetProfileRequest())
    account = profile.service_account_profile
    assert account and account.info.metadata.id == keys.account_id
    await keys.static.revoke(v1.RevokeStaticKeyRequest(token=issued.token))
    keys.cloud.clock.offset = timedelta(seconds=1)
    asked = v1.ProfileServiceClient(sdks(issued.token)).get(v1.GetProfileRequest())
    assert await refusal(asked) == "UNAUTHENTICATED"
    gone = await keys.static.get(v1.GetStaticKeyRequest(id=issued.operation.resource_id))
    assert not gone.status.active


async def test_a_static_key_of_an_admin_opens_only_its_own_service(
    keys: Keys, cloud: Cloud, sdks: Any
) -> None:
    await cloud.add_to("admins", keys.account_id)
    bearer = sdks((await keys.issue()).token)
    asked = v1.ServiceAccountServiceClient(bearer).get(v1.GetServiceAccountRequest(id=keys.account_id))
    assert await refusal(asked) == "PERMISSION_DENIED"


async def test_a_static_key_ends_with_its_day(keys: Keys, cloud: Cloud) -> None:
    issued = await keys.issue(expiresAt=cloud.clock.now() + timedelta(hours=1))
    assert (await cloud.call("ProfileService/Get", {}, token=issued.token)).status == 200
    cloud.clock.offset = timedelta(hours=1)
    assert (await cloud.call("ProfileService/Get", {}, token=issued.token)).code == "unauthenticated"


async def test_a_static_key_ends_with_its_account(keys: Keys, cloud: Cloud) -> None:
    issued = await keys.issue()
    assert (await cloud.call("ProfileService/Get", {}, token=issued.token)).status == 200
    await cloud.call("ServiceAccountService/Delete", {"id": keys.account_id})
    cloud.clock.offset = timedelta(seconds=1)
    assert (await cloud.call("ProfileService/Get", {}, token=issued.token)).code == "unauthenticated"


async def test_the_store_has_only_a_hash_of_a_static_key(keys: Keys, cloud: Cloud) -> None:
    issued = await keys.issue()
    key_id = issued.operation.resource_id
    secret = issued.token.rpartition("_")[2].encode()
    kept = await cloud.store.read(lambda tx: tx.secret(key_id, "token-hash"))
    assert kept is not None
    assert secret not in kept and len(kept) == 32
