"""Signing in: key in, access token out, and every way it must fail. IAM-06."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import jwt
import pytest
from jwt.utils import base64url_encode
from nebius.api.nebius.iam.v1 import (
    GetProfileRequest,
    ListProjectsRequest,
    ListTenantsRequest,
    ProfileServiceClient,
    ProjectServiceClient,
    TenantServiceClient,
)
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.core.store.protocol import Transaction
from neocloud.services.iam import bootstrap
from tests.fast.services.iam.conftest import Cloud
from tests.fast.services.iam.keys import key_pair


async def test_the_official_sdk_signs_in_with_the_credentials_file(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(cloud.bank.credentials))
    sdk = SDK(
        resolver=Constant(cloud.address),
        options=[(INSECURE, True)],
        credentials_file_name=str(path),
        user_agent_prefix="tests/1.0",
    )
    try:
        profile = await ProfileServiceClient(sdk).get(GetProfileRequest())
        assert profile.service_account_profile
        info = profile.service_account_profile.info
        assert (info.metadata.id, info.metadata.name) == (cloud.bank.service_account_id, "operator")
        tenants = await TenantServiceClient(sdk).list(ListTenantsRequest())
        assert [tenant.metadata.id for tenant in tenants.items] == [cloud.bank.tenant_id]
        projects = await ProjectServiceClient(sdk).list(ListProjectsRequest(parent_id=cloud.bank.tenant_id))
        (project,) = projects.items
        assert (project.metadata.id, project.status.region) == (cloud.bank.project_id, "eu-north1")
        assert project.metadata.name.startswith("default")
    finally:
        await sdk.close()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_key_of_each_accepted_kind_signs_in(cloud: Cloud, algorithm: str) -> None:
    pair = key_pair(algorithm)
    account_id = await cloud.make_account("robot")
    key_id = await cloud.make_key(account_id, pair.public_pem)
    answer = await cloud.exchange(cloud.subject_token(pair.credentials(key_id, account_id)))
    assert answer.status == 200
    assert answer.body["tokenType"] == "Bearer"
    assert answer.body["expiresIn"] == "3600"
    assert answer.body["issuedTokenType"] == "urn:ietf:params:oauth:token-type:access_token"
    profile = await cloud.call("ProfileService/Get", {}, token=answer.body["accessToken"])
    assert profile.body["serviceAccountProfile"]["info"]["metadata"]["id"] == account_id
    key = await cloud.call("AuthPublicKeyService/Get", {"id": key_id})
    assert (key.body["status"]["state"], key.body["status"]["algorithm"]) == ("ACTIVE", algorithm)
    assert len(key.body["status"]["fingerprint"]) == 64


@pytest.mark.parametrize(
    ("claims", "complaint"),
    [
        ({"exp": 1}, "has expired"),
        ({"exp": 2**40}, "more than an hour"),
        ({"iat": 2**40}, "in the future"),
        ({"nbf": 2**40}, "in the future"),
        ({"aud": "somebody-else"}, "its `aud` must be"),
        ({"iss": "serviceaccount-e00other"}, '"iss" and "sub"'),
        ({"exp": "soon"}, "exp|times|not signed"),
    ],
)
async def test_a_subject_token_with_wrong_claims_is_refused(cloud: Cloud, claims, complaint: str) -> None:
    answer = await cloud.exchange(cloud.subject_token(cloud.bank.credentials, **claims))
    assert answer.code in {"unauthenticated", "invalid_argument"}
    with pytest.raises(AssertionError, match=complaint):
        raise AssertionError(answer.message)


@pytest.mark.parametrize(
    ("ahead", "complaint"),
    [
        (3600, r"times of the subject token are 60 min in the future.* at the cloud it is 20\d\d-"),
        (-3600, r"has expired.*If it is new, the clock .* is 60 min behind the cloud's: set it to 20\d\d-"),
    ],
)
async def test_a_clock_that_is_an_hour_off_is_named(cloud: Cloud, ahead: int, complaint: str) -> None:
    there = int(cloud.clock.now().timestamp()) + ahead
    token = cloud.subject_token(cloud.bank.credentials, iat=there, exp=there + 300)
    answer = await cloud.exchange(token)
    assert answer.code == "unauthenticated" and re.search(complaint, answer.message), answer.message


async def test_the_audience_that_the_sdks_send_is_accepted(cloud: Cloud) -> None:
    for audience in ("token-service.iam.new.nebiuscloud.net", ["neocloud", "more"]):
        token = cloud.subject_token(cloud.bank.credentials, aud=audience)
        assert (await cloud.exchange(token)).status == 200


async def test_a_token_signed_with_another_key_is_refused(cloud: Cloud) -> None:
    subject = dict(cloud.bank.credentials["subject-credentials"])
    subject["private-key"] = key_pair("RS256").private_pem
    answer = await cloud.exchange(cloud.subject_token({"subject-credentials": subject}))
    assert answer.code == "unauthenticated"
    assert "not signed by an active key" in answer.message


async def test_a_key_signs_for_no_account_but_its_own(cloud: Cloud) -> None:
    pair = key_pair("EdDSA")
    account_id = await cloud.make_account("robot")
    key_id = await cloud.make_key(account_id, pair.public_pem)
    stolen = pair.credentials(key_id, cloud.bank.service_account_id)
    answer = await cloud.exchange(cloud.subject_token(stolen))
    assert answer.code == "unauthenticated"


async def test_a_token_cannot_choose_a_weaker_algorithm(cloud: Cloud) -> None:
    """The public key as an HMAC secret, and no signature at all: both classic forgeries."""
    pair = key_pair("RS256")
    account_id = await cloud.make_account("robot")
    key_id = await cloud.make_key(account_id, pair.public_pem)
    now = int(cloud.clock.now().timestamp())
    claims = {"iss": account_id, "sub": account_id, "exp": now + 60}
    unsigned = jwt.encode(claims, "", algorithm="none", headers={"kid": key_id})
    head, body, _ = jwt.encode(claims, "x" * 32, algorithm="HS256", headers={"kid": key_id}).split(".")
    mac = jwt.get_algorithm_by_name("HS256").sign(f"{head}.{body}".encode(), pair.public_pem.encode())
    confused = f"{head}.{body}.{base64url_encode(mac).decode()}"
    for token in (unsigned, confused):
        assert (await cloud.exchange(token)).code == "unauthenticated"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"grantType": "password"}, "grant_type"),
        ({"subjectTokenType": "saml"}, "subject_token_type"),
        ({"requestedTokenType": "cookie"}, "requested_token_type"),
        ({"actorToken": "x"}, "actor_token"),
        ({"subjectToken": "three.little.words"}, "subject_token"),
        ({"subjectToken": ""}, "subject_token"),
    ],
)
async def test_a_malformed_exchange_names_the_field(cloud: Cloud, fields, named: str) -> None:
    answer = await cloud.exchange(cloud.subject_token(cloud.bank.credentials), **fields)
    assert answer.code == "invalid_argument"
    assert named in answer.message


async def test_calls_without_a_token_or_with_a_forged_one_are_refused(cloud: Cloud) -> None:
    good = await cloud.operator_token()
    head, body, signature = good.split(".")
    forged = f"{head}.{body}.{signature[:-4]}AAAA"
    for token, words in (("", "no token"), ("garbage", "not issued"), (forged, "not issued")):
        answer = await cloud.call("ProfileService/Get", {}, token=token)
        assert answer.code == "unauthenticated"
        assert words in answer.message


async def test_an_access_token_ends_after_an_hour(cloud: Cloud) -> None:
    token = await cloud.operator_token()
    cloud.clock.offset = timedelta(minutes=59)
    assert (await cloud.call("ProfileService/Get", {}, token=token)).status == 200
    cloud.clock.offset = timedelta(minutes=61)
    answer = await cloud.call("ProfileService/Get", {}, token=token)
    assert answer.code == "unauthenticated"
    assert "expired at" in answer.message


@pytest.mark.parametrize(
    "path",
    ["AuthPublicKeyService/Delete", "AuthPublicKeyService/Deactivate", "ServiceAccountService/Delete"],
)
async def test_a_token_dies_with_its_key_and_its_account(cloud: Cloud, path: str) -> None:
    pair = key_pair("EdDSA")
    account_id = await cloud.make_account("robot")
    credentials = pair.credentials(await cloud.make_key(account_id, pair.public_pem), account_id)
    token = await cloud.sign_in(credentials)
    assert (await cloud.call("ProfileService/Get", {}, token=token)).status == 200
    gone = account_id if path.startswith("ServiceAccount") else credentials["subject-credentials"]["kid"]
    assert (await cloud.call(path, {"id": gone})).status == 200
    cloud.clock.offset = timedelta(seconds=1)
    answer = await cloud.call("ProfileService/Get", {}, token=token)
    assert answer.code == "unauthenticated"
    assert (await cloud.exchange(cloud.subject_token(credentials))).code == "unauthenticated"


async def test_a_deactivated_key_works_again_once_activated(cloud: Cloud) -> None:
    pair = key_pair("EdDSA")
    account_id = await cloud.make_account("robot")
    key_id = await cloud.make_key(account_id, pair.public_pem)
    operation = await cloud.call("AuthPublicKeyService/Deactivate", {"id": key_id})
    assert "status" in operation.body and operation.body["resourceId"] == key_id
    assert (await cloud.exchange(cloud.subject_token(pair.credentials(key_id, account_id)))).status == 401
    await cloud.call("AuthPublicKeyService/Activate", {"id": key_id})
    await cloud.sign_in(pair.credentials(key_id, account_id))


async def test_a_key_ends_on_its_day(cloud: Cloud) -> None:
    pair = key_pair("EdDSA")
    account_id = await cloud.make_account("robot")
    ends = (cloud.clock.now() + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    spec = {
        "account": {"serviceAccount": {"id": account_id}},
        "data": pair.public_pem,
        "expiresAt": ends,
    }
    body = {"metadata": {"parentId": cloud.bank.project_id}, "spec": spec}
    credentials = pair.credentials(await cloud.made("AuthPublicKeyService/Create", body), account_id)
    token = await cloud.sign_in(credentials)
    cloud.clock.offset = timedelta(minutes=11)
    assert (await cloud.call("ProfileService/Get", {}, token=token)).code == "unauthenticated"
    assert (await cloud.exchange(cloud.subject_token(credentials))).code == "unauthenticated"


async def test_bootstrap_gives_the_same_answer_again(cloud: Cloud) -> None:
    again = await bootstrap(cloud.store, cloud.clock, held_credentials=cloud.bank.credentials)
    assert again == cloud.bank
    await cloud.sign_in(again.credentials)


async def test_the_tenant_of_an_earlier_release_is_found_by_its_name(cloud: Cloud) -> None:
    def rename(tx: Transaction) -> None:
        tenant = tx.get(cloud.bank.tenant_id)
        assert tenant is not None and tenant.name == "default"
        tx.update(replace(tenant, name="innovation-bank"))

    await cloud.store.write(rename)
    again = await bootstrap(cloud.store, cloud.clock, held_credentials=cloud.bank.credentials)
    assert again == cloud.bank


async def test_lost_credentials_are_replaced_and_the_old_ones_end(cloud: Cloud) -> None:
    again = await bootstrap(cloud.store, cloud.clock, held_credentials=None)
    assert (again.tenant_id, again.project_id) == (cloud.bank.tenant_id, cloud.bank.project_id)
    assert again.service_account_id == cloud.bank.service_account_id
    await cloud.sign_in(again.credentials)
    assert (await cloud.exchange(cloud.subject_token(cloud.bank.credentials))).code == "unauthenticated"


@pytest.mark.parametrize(
    "held", [{}, {"subject-credentials": {}}, {"subject-credentials": {"kid": "x", "private-key": "y"}}]
)
async def test_credentials_that_open_nothing_are_replaced(cloud: Cloud, held) -> None:
    again = await bootstrap(cloud.store, cloud.clock, held_credentials=held)
    assert again.credentials != held
    await cloud.sign_in(again.credentials)


async def test_credentials_of_another_tenant_are_not_taken_for_ours(cloud: Cloud) -> None:
    again = await bootstrap(cloud.store, cloud.clock, held_credentials=cloud.other.credentials)
    assert again.service_account_id == cloud.bank.service_account_id


def test_credentials_do_not_show_in_logs(cloud: Cloud) -> None:
    assert "PRIVATE" not in repr(cloud.bank)
