"""Signing in at an OpenID provider, and when its word must not be taken. IAM-01, IAM-03."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.fast.services.iam.conftest import Answer, Cloud, direct_http
from tests.fast.services.iam.people import OWN_API, Signed, profile, refresh, signed
from tests.fast.services.iam.provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    Provider,
    provider_key,
    query_of,
    running_provider,
    with_query,
)

REDIRECT = "http://127.0.0.1:4711/callback"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as started:
        yield started


async def federate(cloud: Cloud, provider: Provider, name: str = "corp", **spec: Any) -> str:
    body = {
        "metadata": {"parentId": cloud.bank.tenant_id, "name": name},
        "spec": {
            "issuerUrl": provider.issuer,
            "clientId": CLIENT_ID,
            "userAccountAutoCreation": True,
            **spec,
        },
    }
    answer = await cloud.call("OidcFederationService/Create", body, api=OWN_API)
    assert answer.status == 200, answer
    return answer.body["resourceId"]


async def call(cloud: Cloud, verb: str, body: dict[str, Any]) -> Answer:
    return await cloud.call(f"SignInService/{verb}", body, token="", api=OWN_API)


async def begin(cloud: Cloud, federation_id: str, redirect_uri: str = REDIRECT) -> dict[str, Any]:
    body = {"federationId": federation_id, "redirectUri": redirect_uri}
    answer = await call(cloud, "StartOidc", body)
    assert answer.status == 200, answer
    return answer.body


async def browse(url: str) -> dict[str, str]:
    """Return the query that a browser brings to the loopback address after the provider is done with it."""
    async with direct_http() as http:
        answer = await http.get(url)
    assert answer.status_code == httpx.codes.FOUND, answer.text
    assert answer.headers["location"].startswith(REDIRECT)
    return query_of(answer.headers["location"])


async def try_oidc(cloud: Cloud, federation_id: str) -> Answer:
    begun = await begin(cloud, federation_id)
    brought = await browse(begun["authorizationUrl"])
    assert brought["state"] == begun["state"]
    return await call(cloud, "FinishOidc", {"loginToken": begun["loginToken"], **brought})


async def sign_in(cloud: Cloud, federation_id: str) -> Signed:
    return signed(await try_oidc(cloud, federation_id))


async def test_a_person_of_the_provider_gets_an_account_and_comes_back_to_it(
    cloud: Cloud, provider: Provider
) -> None:
    viewers = await cloud.group_id("viewers")
    federation_id = await federate(cloud, provider, groupIds=[viewers])
    first = await sign_in(cloud, federation_id)
    found = (await profile(cloud, first.access)).body["userProfile"]
    assert found["attributes"]["email"] == "carol@corp.example"
    assert found["federationInfo"] == {
        "federationId": federation_id, "federationUserAccountId": "person-1",
    }  # fmt: skip
    groups = await cloud.call("GroupService/List", {"parentId": cloud.bank.tenant_id}, token=first.access)
    assert groups.status == 200
    provider.person["email"] = "carol.new@corp.example"
    second = await sign_in(cloud, federation_id)
    assert second.account_id == first.account_id
    listed = await cloud.call("TenantUserAccountWithAttributesService/Get", {"id": second.account_id})
    assert listed.body["attributes"]["email"] == "carol.new@corp.example"
    assert signed(await refresh(cloud, second.refresh)).session_id == second.session_id


async def test_a_provider_that_wants_a_client_secret_gets_it(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider)
    provider.wants_secret = True
    assert (await try_oidc(cloud, federation_id)).code == "unauthenticated"
    body = {"id": federation_id, "clientSecret": CLIENT_SECRET}
    assert (await cloud.call("OidcFederationService/SetClientSecret", body, api=OWN_API)).status == 200
    await sign_in(cloud, federation_id)
    shown = await cloud.call("OidcFederationService/Get", {"id": federation_id}, api=OWN_API)
    assert CLIENT_SECRET not in str(shown.body)


@pytest.mark.parametrize(
    ("bent", "why"),
    [
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"aud": "another-client"}, "another audience"),
        ({"aud": [CLIENT_ID, "x"], "azp": "x"}, "another client"),
        ({"nonce": "another"}, "another sign-in"),
        ({"exp": 1}, "expired"),
        ({"iat": 2**40}, "in the future"),
        ({"exp": "soon"}, "not numbers|not valid"),
    ],
)
async def test_a_bent_token_is_refused(cloud: Cloud, provider: Provider, bent: Any, why: str) -> None:
    federation_id = await federate(cloud, provider)
    provider.bent = bent
    answer = await try_oidc(cloud, federation_id)
    assert answer.code == "unauthenticated"
    assert any(part in answer.message for part in why.split("|")), answer.message


async def test_a_token_signed_with_an_unpublished_key_is_refused(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider)
    for published_as in ("hidden", "first"):  # under its own name, and under that of a published key
        provider.signing_key = provider_key("hidden", published_as)
        answer = await try_oidc(cloud, federation_id)
        assert answer.code == "unauthenticated", published_as
        assert "no key of its issuer" in answer.message


async def test_a_provider_may_change_its_keys(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider)
    await sign_in(cloud, federation_id)
    await sign_in(cloud, federation_id)
    assert provider.key_requests == 1
    provider.keys = [provider_key("second")]
    cloud.clock.offset += timedelta(seconds=20)
    await sign_in(cloud, federation_id)
    assert provider.key_requests == 2
    # A key that is published no longer is forgotten soon.
    provider.signing_key = provider_key("first")
    cloud.clock.offset += timedelta(minutes=11)
    assert (await try_oidc(cloud, federation_id)).code == "unauthenticated"


async def test_unknown_key_ids_do_not_make_us_ask_the_provider_each_time(
    cloud: Cloud, provider: Provider
) -> None:
    federation_id = await federate(cloud, provider)
    await sign_in(cloud, federation_id)
    provider.signing_key = provider_key("secret")
    for _ in range(3):
        await try_oidc(cloud, federation_id)
    assert provider.key_requests == 1


async def test_a_code_works_once_and_only_for_the_client_that_began(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider)
    begun = await begin(cloud, federation_id)
    brought = await browse(begun["authorizationUrl"])
    outsider = await begin(cloud, federation_id)
    stolen = {"loginToken": outsider["loginToken"], "state": outsider["state"], "code": brought["code"]}
    assert (await call(cloud, "FinishOidc", stolen)).code == "unauthenticated"
    mixed = {"loginToken": outsider["loginToken"], **brought}
    assert (await call(cloud, "FinishOidc", mixed)).code == "unauthenticated"
    right = {"loginToken": begun["loginToken"], **brought}
    assert (await call(cloud, "FinishOidc", right)).status == 200
    assert (await call(cloud, "FinishOidc", right)).code == "unauthenticated"


async def test_a_changed_challenge_is_noticed_by_the_provider(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider)
    begun = await begin(cloud, federation_id)
    brought = await browse(with_query(begun["authorizationUrl"], code_challenge="A" * 43))
    answer = await call(cloud, "FinishOidc", {"loginToken": begun["loginToken"], **brought})
    assert answer.code == "unauthenticated"


async def test_a_sign_in_that_takes_too_long_must_begin_again(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider)
    begun = await begin(cloud, federation_id)
    brought = await browse(begun["authorizationUrl"])
    cloud.clock.offset += timedelta(minutes=11)
    answer = await call(cloud, "FinishOidc", {"loginToken": begun["loginToken"], **brought})
    assert (answer.code, "Start again" in answer.message) == ("unauthenticated", True)
    forged = await call(cloud, "FinishOidc", {"loginToken": "forged", **brought})
    assert forged.code == "unauthenticated"


async def test_without_automatic_accounts_outsiders_stay_out(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider, userAccountAutoCreation=False)
    answer = await try_oidc(cloud, federation_id)
    assert (answer.code, "no account for you" in answer.message) == ("permission_denied", True)


@pytest.mark.parametrize("person", [{"email": "carol@corp.example.evil"}, {"email_verified": False}])
async def test_only_verified_addresses_of_the_named_domains_are_let_in(
    cloud: Cloud, provider: Provider, person: Any
) -> None:
    federation_id = await federate(cloud, provider, emailDomains=["Corp.example"])
    await sign_in(cloud, federation_id)
    provider.person |= person
    assert (await try_oidc(cloud, federation_id)).code == "unauthenticated"


async def test_a_provider_cannot_take_over_a_local_account(cloud: Cloud, provider: Provider) -> None:
    local = {"parentId": cloud.bank.tenant_id, "email": "carol@corp.example"}
    made = await cloud.call("UserService/Create", local, api=OWN_API)
    session = await sign_in(cloud, await federate(cloud, provider))
    assert session.account_id != made.body["tenantUserAccountId"]


@pytest.mark.parametrize("verb", ["Deactivate", "Delete"])
async def test_sessions_end_with_their_federation(cloud: Cloud, provider: Provider, verb: str) -> None:
    federation_id = await federate(cloud, provider)
    session = await sign_in(cloud, federation_id)
    answer = await cloud.call(f"OidcFederationService/{verb}", {"id": federation_id}, api=OWN_API)
    assert answer.status == 200, answer
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, session.access)).code == "unauthenticated"
    assert (await refresh(cloud, session.refresh)).code == "unauthenticated"
    body = {"federationId": federation_id, "redirectUri": REDIRECT}
    assert (await call(cloud, "StartOidc", body)).code == "not_found"


@pytest.mark.parametrize(
    "redirect_uri",
    ["https://evil.example/", "http://localhost:1/", "http://127.0.0.1/", "http://a@127.0.0.1:1/", "x"],
)
async def test_codes_go_to_loopback_only(cloud: Cloud, provider: Provider, redirect_uri: str) -> None:
    body = {"federationId": await federate(cloud, provider), "redirectUri": redirect_uri}
    assert (await call(cloud, "StartOidc", body)).code == "invalid_argument"


@pytest.mark.parametrize(
    "spec",
    [
        {"issuerUrl": "http://issuer.example"},
        {"issuerUrl": "file:///etc/passwd"},
        {"issuerUrl": "http://127.0.0.1.evil.example/"},
        {"groupIds": ["group-e00nowhere"]},
    ],
)
async def test_a_federation_with_an_unusable_setting_is_refused(cloud: Cloud, spec: Any) -> None:
    settings = {"issuerUrl": "https://issuer.example", "clientId": "c", **spec}
    metadata = {"parentId": cloud.bank.tenant_id, "name": "corp"}
    body = {"metadata": metadata, "spec": settings}
    answer = await cloud.call("OidcFederationService/Create", body, api=OWN_API)
    assert answer.code == "invalid_argument"


async def test_an_issuer_under_another_name_is_not_believed(cloud: Cloud, provider: Provider) -> None:
    federation_id = await federate(cloud, provider, issuerUrl=provider.issuer + "/")
    body = {"federationId": federation_id, "redirectUri": REDIRECT}
    answer = await call(cloud, "StartOidc", body)
    assert (answer.code, "cannot be used now" in answer.message) == ("unavailable", True)


async def test_a_provider_that_is_away_is_said_so(cloud: Cloud) -> None:
    with running_provider() as provider:
        federation_id = await federate(cloud, provider)
    body = {"federationId": federation_id, "redirectUri": REDIRECT}
    assert (await call(cloud, "StartOidc", body)).code == "unavailable"
