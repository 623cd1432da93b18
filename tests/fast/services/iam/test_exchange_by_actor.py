"""Tokens for a service account that somebody else asks for: who impersonates it, workloads of other issuers,
machines of this cloud. IAM-02, IAM-06.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from nebius.aio.token.federated_credentials import FederatedCredentialsBearer
from nebius.api.nebius.iam.v1 import GetProfileRequest, ProfileServiceClient
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.base.service_account.federated_credentials import StaticFederatedCredentials
from nebius.sdk import SDK

from neocloud.core import contract
from neocloud.services.iam.access.tokens import token_issuer
from tests.fast.services.iam.conftest import Answer, Cloud
from tests.fast.services.iam.keys import key_pair
from tests.fast.services.iam.people import ALICE, make_user, profile, sign_in
from tests.fast.services.iam.provider import Provider, provider_key, running_provider

IDENTIFIER = "urn:nebius:params:oauth:token-type:subject_identifier"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
JWT = "urn:ietf:params:oauth:token-type:jwt"
WORKLOAD = "repo:bank/training:ref:refs/heads/main"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as started:
        yield started


async def impersonate(cloud: Cloud, account_id: str, actor_token: str) -> Answer:
    fields = {
        "subjectTokenType": IDENTIFIER, "actorToken": actor_token, "actorTokenType": ACCESS_TOKEN,
    }  # fmt: skip
    return await cloud.exchange(account_id, **fields)


async def from_workload(cloud: Cloud, account_id: str, token: str) -> Answer:
    fields = {"subjectTokenType": IDENTIFIER, "actorToken": token, "actorTokenType": JWT}
    return await cloud.exchange(account_id, **fields)


async def trust(cloud: Cloud, account_id: str, provider: Provider, **oidc: str) -> str:
    spec = {
        "oidcProvider": {"issuerUrl": provider.issuer, **oidc},
        "federatedSubjectId": WORKLOAD,
        "subjectId": account_id,
    }
    body = {"metadata": {"parentId": cloud.bank.project_id, "name": "ci"}, "spec": spec}
    return await cloud.made("FederatedCredentialsService/Create", body)


def workload_token(cloud: Cloud, provider: Provider, **claims: Any) -> str:
    now = int(cloud.clock.now().timestamp())
    return provider.token(**{"sub": WORKLOAD, "aud": "neocloud", "iat": now, "exp": now + 300, **claims})


async def test_an_admin_impersonates_and_both_are_in_the_audit_log(cloud: Cloud) -> None:
    admin_id = await make_user(cloud, ALICE, "admins")
    robot_id = await cloud.make_account("robot")
    await cloud.add_to("editors", robot_id)
    answer = await impersonate(cloud, robot_id, (await sign_in(cloud)).access)
    assert (answer.status, answer.body["expiresIn"]) == (200, "900")
    token = answer.body["accessToken"]
    found = (await profile(cloud, token)).body["serviceAccountProfile"]["info"]["metadata"]
    assert found["id"] == robot_id
    metadata = {"parentId": cloud.bank.project_id, "name": "data"}
    body = {"metadata": metadata, "spec": {"sizeGibibytes": "1", "type": "NETWORK_SSD"}}
    made = await cloud.call("FilesystemService/Create", body, token=token, api="nebius.compute.v1")
    assert made.status == 200
    events, _ = await cloud.store.read(lambda tx: tx.list_audit())
    exchange = next(event for event in events if event.method.endswith("/Exchange"))
    assert (exchange.subject, exchange.resource_id, exchange.code) == (admin_id, robot_id, 0)
    change = next(event for event in events if event.method.endswith("FilesystemService/Create"))
    assert (change.subject, change.impersonator_id) == (robot_id, admin_id)


@pytest.mark.parametrize("group", ["editors", "viewers"])
async def test_who_may_not_impersonate_learns_nothing(cloud: Cloud, group: str) -> None:
    await make_user(cloud, ALICE, group)
    token = (await sign_in(cloud)).access
    there = await impersonate(cloud, cloud.bank.service_account_id, token)
    missing = await impersonate(cloud, "serviceaccount-e00nowhere", token)
    foreign = await impersonate(cloud, cloud.other.service_account_id, token)
    assert {answer.code for answer in (there, missing, foreign)} == {"not_found"}
    events, _ = await cloud.store.read(lambda tx: tx.list_audit())
    assert sum(event.method.endswith("/Exchange") and event.code == 5 for event in events) == 3


async def test_an_admin_does_not_reach_into_another_tenant(cloud: Cloud) -> None:
    token = await cloud.operator_token()
    assert (await impersonate(cloud, cloud.other.service_account_id, token)).code == "not_found"


async def test_an_impersonated_token_dies_with_the_session_and_the_right(cloud: Cloud) -> None:
    admin_id = await make_user(cloud, ALICE)
    membership_id = await cloud.add_to("admins", admin_id)
    robot_id = await cloud.make_account("robot")
    session = await sign_in(cloud)
    token = (await impersonate(cloud, robot_id, session.access)).body["accessToken"]
    assert (await profile(cloud, token)).status == 200
    await cloud.call("GroupMembershipService/Delete", {"id": membership_id})
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, token)).code == "unauthenticated"
    await cloud.add_to("admins", admin_id)
    assert (await profile(cloud, token)).status == 200
    await cloud.call("SessionManagementService/Revoke", {"tenantUserAccountId": admin_id})
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, token)).code == "unauthenticated"


async def test_impersonation_does_not_chain_and_forged_actors_are_refused(cloud: Cloud) -> None:
    robot_id = await cloud.make_account("robot")
    await cloud.add_to("admins", robot_id)
    operator = await cloud.operator_token()
    token = (await impersonate(cloud, robot_id, operator)).body["accessToken"]
    chained = await impersonate(cloud, cloud.bank.service_account_id, token)
    assert chained.code == "permission_denied"
    for actor in ("garbage", operator[:-6] + "AAAAAA", cloud.subject_token(cloud.bank.credentials)):
        assert (await impersonate(cloud, robot_id, actor)).code == "unauthenticated"
    cloud.clock.offset += timedelta(hours=2)
    assert (await impersonate(cloud, robot_id, operator)).code == "unauthenticated"


async def test_a_workload_of_another_issuer_signs_in_by_the_official_sdk(
    cloud: Cloud, provider: Provider
) -> None:
    robot_id = await cloud.make_account("robot")
    await trust(cloud, robot_id, provider)
    bearer = FederatedCredentialsBearer(
        StaticFederatedCredentials(workload_token(cloud, provider)), service_account_id=robot_id
    )
    sdk = SDK(
        resolver=Constant(cloud.address),
        options=[(INSECURE, True)],
        credentials=bearer,
        user_agent_prefix="tests/1.0",
    )
    bearer.set_channel(sdk)
    try:
        found = await ProfileServiceClient(sdk).get(GetProfileRequest())
        profile = found.service_account_profile
        assert profile and profile.info.metadata.id == robot_id
    finally:
        await sdk.close()


async def test_a_workload_token_dies_with_the_trust(cloud: Cloud, provider: Provider) -> None:
    robot_id = await cloud.make_account("robot")
    credentials_id = await trust(cloud, robot_id, provider)
    answer = await from_workload(cloud, robot_id, workload_token(cloud, provider))
    token = answer.body["accessToken"]
    assert (await profile(cloud, token)).status == 200
    await cloud.call("FederatedCredentialsService/Delete", {"id": credentials_id})
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, token)).code == "unauthenticated"
    answer = await from_workload(cloud, robot_id, workload_token(cloud, provider))
    assert answer.code == "unauthenticated"


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "repo:evil/fork"},
        {"aud": "sts.amazonaws.com"},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"iat": 2**40},
    ],
)
async def test_a_workload_token_with_wrong_claims_is_refused(
    cloud: Cloud, provider: Provider, claims: Any
) -> None:
    robot_id = await cloud.make_account("robot")
    await trust(cloud, robot_id, provider)
    answer = await from_workload(cloud, robot_id, workload_token(cloud, provider, **claims))
    assert answer.code == "unauthenticated"


async def test_a_workload_signs_in_for_no_other_account(cloud: Cloud, provider: Provider) -> None:
    await trust(cloud, await cloud.make_account("robot"), provider)
    token = workload_token(cloud, provider)
    for account_id in (cloud.bank.service_account_id, cloud.other.service_account_id, "serviceaccount-e00x"):
        assert (await from_workload(cloud, account_id, token)).code == "unauthenticated"


async def test_keys_that_were_given_are_used_and_the_issuer_is_not_asked(
    cloud: Cloud, provider: Provider
) -> None:
    robot_id = await cloud.make_account("robot")
    await trust(cloud, robot_id, provider, jwkSetJson=json.dumps(provider.key_set()))
    assert (await from_workload(cloud, robot_id, workload_token(cloud, provider))).status == 200
    provider.keys = [provider_key("second")]
    assert (await from_workload(cloud, robot_id, workload_token(cloud, provider))).code == "unauthenticated"
    assert provider.key_requests == 0


@pytest.mark.parametrize(
    ("oidc", "field"),
    [
        ({"issuerUrl": "http://issuer.example"}, "issuer_url"),
        ({"jwkSetJson": "{}"}, "jwk_set_json"),
        ({"jwkSetJson": '{"keys": [{"kty": "oct", "k": "x"}]}'}, "jwk_set_json"),
        ({"jwkSetJson": json.dumps({"keys": [provider_key("first").as_dict(private=True)]})}, "private key"),
    ],
)
async def test_credentials_that_could_not_be_checked_are_refused(cloud: Cloud, oidc: Any, field: str) -> None:
    robot_id = await cloud.make_account("robot")
    oidc = {"issuerUrl": "https://issuer.example", **oidc}
    spec = {"oidcProvider": oidc, "federatedSubjectId": WORKLOAD, "subjectId": robot_id}
    body = {"metadata": {"parentId": cloud.bank.project_id}, "spec": spec}
    answer = await cloud.call("FederatedCredentialsService/Create", body)
    assert (answer.code, field in answer.message) == ("invalid_argument", True), answer


async def test_machines_get_tokens_that_die_with_the_account(cloud: Cloud) -> None:
    issuer = token_issuer(cloud.store, cloud.clock)
    robot_id = await cloud.make_account("robot")
    token, expires_at = await issuer(robot_id, timedelta(minutes=30))
    assert expires_at - cloud.clock.now() <= timedelta(minutes=30)
    assert (await profile(cloud, token)).status == 200
    await cloud.call("ServiceAccountService/Delete", {"id": robot_id})
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, token)).code == "unauthenticated"
    for account_id in (robot_id, cloud.bank.tenant_id):
        with pytest.raises(contract.ApiError, match="no service account"):
            await issuer(account_id, timedelta(minutes=30))


async def test_a_machines_token_ends_on_time(cloud: Cloud) -> None:
    issuer = token_issuer(cloud.store, cloud.clock)
    token, _ = await issuer(cloud.bank.service_account_id, timedelta(minutes=5))
    cloud.clock.offset += timedelta(minutes=6)
    assert (await profile(cloud, token)).code == "unauthenticated"


async def test_a_public_key_past_its_day_reads_expired(cloud: Cloud) -> None:
    robot_id = await cloud.make_account("robot")
    ends = (cloud.clock.now() + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    spec = {"account": {"serviceAccount": {"id": robot_id}}, "data": key_pair("EdDSA").public_pem}
    body = {"metadata": {"parentId": cloud.bank.project_id}, "spec": {**spec, "expiresAt": ends}}
    key_id = await cloud.made("AuthPublicKeyService/Create", body)
    for state, minutes in (("ACTIVE", 9), ("EXPIRED", 2)):
        cloud.clock.offset += timedelta(minutes=minutes)
        found = await cloud.call("AuthPublicKeyService/Get", {"id": key_id})
        assert found.body["status"]["state"] == state
