"""Users, passwords and sessions through the real server. IAM-01, IAM-02, IAM-04, IAM-08."""

import asyncio
from datetime import timedelta

import pyotp
import pytest
from nebius.api.nebius.iam.v1 import GetProfileRequest, ProfileServiceClient
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK
from pyotp.totp import TOTP

from tests.fast.services.iam.conftest import Cloud
from tests.fast.services.iam.people import (
    ALICE,
    OWN_API,
    PASSWORD,
    make_user,
    profile,
    refresh,
    sign_in,
    signed,
    try_password,
)


async def test_a_user_signs_in_and_the_official_sdk_takes_the_token(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    account_id = await make_user(cloud, ALICE, "viewers")
    session = await sign_in(cloud)
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", session.access)
    sdk = SDK(resolver=Constant(cloud.address), options=[(INSECURE, True)], user_agent_prefix="tests/1.0")
    try:
        found = (await ProfileServiceClient(sdk).get(GetProfileRequest())).user_profile
        assert found and found.attributes
        assert (found.id, found.attributes.email) == (account_id, ALICE)
        assert [tenant.tenant_id for tenant in found.tenants] == [cloud.bank.tenant_id]
    finally:
        await sdk.close()
    groups = await cloud.call("GroupService/List", {"parentId": cloud.bank.tenant_id}, token=session.access)
    assert groups.status == 200
    group = {"metadata": {"parentId": cloud.bank.tenant_id, "name": "quants"}, "spec": {}}
    denied = await cloud.call("GroupService/Create", group, token=session.access)
    assert denied.code == "permission_denied"
    assert ALICE in denied.message


async def test_a_generated_password_is_shown_once_and_works(cloud: Cloud) -> None:
    body = {"parentId": cloud.bank.tenant_id, "email": "Bob@Bank.example"}
    answer = await cloud.call("UserService/Create", body, api=OWN_API)
    password = answer.body["generatedPassword"]
    assert len(password) >= 25
    await sign_in(cloud, "bob@bank.EXAMPLE", password)
    again = await cloud.call("UserService/Create", body, api=OWN_API)
    assert again.code == "already_exists"
    assert password not in str(again.body)


@pytest.mark.parametrize("password", ["short", "aaaaaaaaaaaaaaaa", ALICE])
async def test_a_weak_password_is_refused(cloud: Cloud, password: str) -> None:
    body = {"parentId": cloud.bank.tenant_id, "email": ALICE, "password": password}
    answer = await cloud.call("UserService/Create", body, api=OWN_API)
    assert (answer.code, "password" in answer.message) == ("invalid_argument", True)


async def test_refusals_do_not_tell_whether_there_is_an_account(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    await make_user(cloud, "blocked@bank.example")
    blocked = await sign_in(cloud, "blocked@bank.example")
    await cloud.call("TenantUserAccountService/Block", {"id": blocked.account_id})
    refusals = [
        await try_password(cloud, ALICE, "wrong"),
        await try_password(cloud, "nobody@bank.example", PASSWORD),
        await try_password(cloud, "blocked@bank.example", PASSWORD),
        await try_password(cloud, ALICE, PASSWORD, tenantId=cloud.other.tenant_id),
    ]
    assert {answer.code for answer in refusals} == {"unauthenticated"}
    assert len({answer.message for answer in refusals}) == 1
    assert account_id not in refusals[0].message


async def test_too_many_wrong_passwords_lock_an_address_with_or_without_account(cloud: Cloud) -> None:
    await make_user(cloud)
    answers = {}
    for email in (ALICE, "nobody@bank.example"):
        answers[email] = [await try_password(cloud, email, f"wrong {number}") for number in range(7)]
    codes = [[answer.code for answer in each] for each in answers.values()]
    assert codes[0] == codes[1] == ["unauthenticated"] * 5 + ["resource_exhausted"] * 2
    assert answers[ALICE][-1].message == answers["nobody@bank.example"][-1].message
    assert (await try_password(cloud)).code == "resource_exhausted"
    cloud.clock.offset += timedelta(minutes=16)
    await sign_in(cloud)


async def test_guessing_at_once_does_not_get_more_guesses(cloud: Cloud) -> None:
    await make_user(cloud)
    answers = await asyncio.gather(*(try_password(cloud, ALICE, f"wrong {n}") for n in range(12)))
    assert sum(answer.code == "unauthenticated" for answer in answers) == 5


async def test_an_admin_lifts_a_lock_by_a_new_password_which_ends_the_sessions(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    session = await sign_in(cloud)
    for number in range(6):
        await try_password(cloud, ALICE, f"wrong {number}")
    answer = await cloud.call("UserService/SetPassword", {"id": account_id}, api=OWN_API)
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, session.access)).code == "unauthenticated"
    await sign_in(cloud, ALICE, answer.body["generatedPassword"])


async def test_a_refresh_gives_new_tokens_and_uses_up_the_old(cloud: Cloud) -> None:
    await make_user(cloud)
    first = await sign_in(cloud)
    cloud.clock.offset += timedelta(hours=2)
    assert (await profile(cloud, first.access)).code == "unauthenticated"
    second = signed(await refresh(cloud, first.refresh))
    assert second.session_id == first.session_id
    assert second.refresh != first.refresh
    assert (await profile(cloud, second.access)).status == 200


async def test_a_refresh_token_that_comes_back_ends_the_session(cloud: Cloud) -> None:
    await make_user(cloud)
    first = await sign_in(cloud)
    second = signed(await refresh(cloud, first.refresh))
    cloud.clock.offset += timedelta(minutes=1)
    assert (await refresh(cloud, first.refresh)).code == "unauthenticated"
    assert (await refresh(cloud, second.refresh)).code == "unauthenticated"
    assert (await profile(cloud, second.access)).code == "unauthenticated"


async def test_a_lost_answer_may_be_asked_for_again_at_once(cloud: Cloud) -> None:
    await make_user(cloud)
    first = await sign_in(cloud)
    lost = signed(await refresh(cloud, first.refresh))
    again = signed(await refresh(cloud, first.refresh))
    assert (await profile(cloud, again.access)).status == 200
    # The receiver of the lost answer is the other side of a theft: its use ends the session.
    cloud.clock.offset += timedelta(minutes=1)
    assert (await refresh(cloud, lost.refresh)).code == "unauthenticated"
    assert (await refresh(cloud, again.refresh)).code == "unauthenticated"


async def test_an_invented_refresh_token_ends_nothing(cloud: Cloud) -> None:
    await make_user(cloud)
    session = await sign_in(cloud)
    for token in (f"{session.session_id}.invented", "nonsense", session.access, session.account_id):
        assert (await refresh(cloud, token)).code == "unauthenticated"
    await cloud.call(
        "SignInService/SignOut", {"refreshToken": f"{session.session_id}.x"}, token="", api=OWN_API
    )
    assert signed(await refresh(cloud, session.refresh)).session_id == session.session_id


async def test_a_session_ends_when_it_is_not_used(cloud: Cloud) -> None:
    await make_user(cloud)
    session = await sign_in(cloud)
    cloud.clock.offset += timedelta(days=15)
    assert (await refresh(cloud, session.refresh)).code == "unauthenticated"


async def test_a_session_ends_after_its_longest_time_even_in_use(cloud: Cloud) -> None:
    await make_user(cloud)
    session = await sign_in(cloud)
    answers = []
    for _ in range(9):
        cloud.clock.offset += timedelta(days=10)
        answers.append(await refresh(cloud, session.refresh))
        session = signed(answers[-1]) if answers[-1].status == 200 else session
    assert answers[-1].code == "unauthenticated"


async def test_signing_out_ends_the_access_token_within_a_second(cloud: Cloud) -> None:
    await make_user(cloud)
    session = await sign_in(cloud)
    assert (await profile(cloud, session.access)).status == 200
    body = {"refreshToken": session.refresh}
    assert (await cloud.call("SignInService/SignOut", body, token="", api=OWN_API)).status == 200
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, session.access)).code == "unauthenticated"
    assert (await refresh(cloud, session.refresh)).code == "unauthenticated"


async def test_sessions_are_listed_and_revoked_one_by_one(cloud: Cloud) -> None:
    await make_user(cloud)
    await make_user(cloud, "mallory@bank.example")
    first, second = await sign_in(cloud), await sign_in(cloud)
    mallory = await sign_in(cloud, "mallory@bank.example")
    listed = await cloud.call("SessionService/List", {}, token=second.access, api=OWN_API)
    assert {item["metadata"]["id"] for item in listed.body["items"]} == {first.session_id, second.session_id}
    assert listed.body["items"][0]["spec"] == {"method": "PASSWORD", "client": "tests"}
    body = {"id": first.session_id}
    outsider = await cloud.call("SessionService/Revoke", body, token=mallory.access, api=OWN_API)
    assert outsider.code == "not_found"
    other = {"parentId": first.account_id}
    peek = await cloud.call("SessionService/List", other, token=mallory.access, api=OWN_API)
    assert peek.code == "not_found"
    assert (await cloud.call("SessionService/Revoke", body, token=second.access, api=OWN_API)).status == 200
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, first.access)).code == "unauthenticated"
    assert (await profile(cloud, second.access)).status == 200


async def test_the_audit_log_has_each_sign_in_and_each_refusal_once(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    await try_password(cloud, ALICE, "wrong")
    session = await sign_in(cloud)
    body = {"parentId": cloud.bank.service_account_id}
    await cloud.call("SessionService/List", body, token=session.access, api=OWN_API)
    body = {"serviceAccountId": cloud.bank.service_account_id}
    await cloud.call("SessionManagementService/Revoke", body, token=session.access)
    await try_password(cloud, "nobody@bank.example")
    events, _ = await cloud.store.read(lambda tx: tx.list_audit())
    seen = [(event.action, event.status) for event in reversed(events) if event.subject == account_id]
    assert seen == [
        ("with_password", "ERROR"), ("with_password", "DONE"), ("list", "ERROR"), ("revoke", "ERROR"),
    ]  # fmt: skip
    mine = [event for event in events if event.subject == account_id]
    assert {(event.tenant_id, event.subject_kind, event.subject_name) for event in mine} == {
        (cloud.bank.tenant_id, "user", ALICE)
    }
    assert all(event.source_address for event in mine)
    assert not any("nobody@" in event.message + event.subject_name for event in events)


async def test_the_published_revoke_ends_all_of_one_account(cloud: Cloud) -> None:
    await make_user(cloud)
    mine, admins = await sign_in(cloud), await sign_in(cloud)
    path = "SessionManagementService/Revoke"
    assert (await cloud.call(path, {"allMyActive": True}, token=mine.access)).status == 200
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, admins.access)).code == "unauthenticated"
    fresh = await sign_in(cloud)
    body = {"tenantUserAccountId": fresh.account_id}
    assert (await cloud.call(path, body, token=fresh.access)).code == "permission_denied"
    assert (await cloud.call(path, body)).status == 200
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, fresh.access)).code == "unauthenticated"


async def test_the_published_revoke_ends_the_tokens_of_a_service_account(cloud: Cloud) -> None:
    token = await cloud.operator_token()
    body = {"serviceAccountId": cloud.bank.service_account_id}
    assert (await cloud.call("SessionManagementService/Revoke", body)).status == 200
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, token)).code == "unauthenticated"
    assert (await profile(cloud, await cloud.sign_in(cloud.bank.credentials))).status == 200


async def test_a_blocked_user_is_out_and_back_in_when_unblocked(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    session = await sign_in(cloud)
    assert (await cloud.call("TenantUserAccountService/Block", {"id": account_id})).status == 200
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, session.access)).code == "unauthenticated"
    assert (await refresh(cloud, session.refresh)).code == "unauthenticated"
    found = await cloud.call("TenantUserAccountService/Get", {"id": account_id})
    assert found.body["status"]["state"] == "BLOCKED"
    await cloud.call("TenantUserAccountService/Unblock", {"id": account_id})
    await sign_in(cloud)


async def test_a_deleted_user_leaves_no_session_membership_or_personal_data(cloud: Cloud) -> None:
    account_id = await make_user(cloud, ALICE, "viewers")
    session = await sign_in(cloud)
    assert (await cloud.call("UserService/Delete", {"id": account_id}, api=OWN_API)).status == 200
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, session.access)).code == "unauthenticated"
    assert await cloud.store.read(lambda tx: (tx.get(session.session_id), tx.owned(account_id))) == (None, [])
    assert await cloud.store.read(lambda tx: tx.secret(account_id, "attributes")) is None
    await make_user(cloud)


async def test_changing_the_password_needs_the_present_one_and_ends_other_sessions(cloud: Cloud) -> None:
    await make_user(cloud)
    here, elsewhere = await sign_in(cloud), await sign_in(cloud)
    new = "another fine long password"
    wrong = {"currentPassword": "guess", "newPassword": new}
    path = "UserService/ChangePassword"
    assert (await cloud.call(path, wrong, token=here.access, api=OWN_API)).code == "invalid_argument"
    right = {"currentPassword": PASSWORD, "newPassword": new}
    assert (await cloud.call(path, right, token=here.access, api=OWN_API)).status == 200
    cloud.clock.offset += timedelta(seconds=1)
    assert (await profile(cloud, here.access)).status == 200
    assert (await profile(cloud, elsewhere.access)).code == "unauthenticated"
    assert (await try_password(cloud)).code == "unauthenticated"
    await sign_in(cloud, ALICE, new)
    robot = await cloud.call(path, right, api=OWN_API)
    assert robot.code == "failed_precondition"


async def test_a_second_factor_is_asked_for_and_each_code_works_once(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    token = (await sign_in(cloud)).access
    body = {"currentPassword": PASSWORD}
    started = await cloud.call("UserService/StartTotp", body, token=token, api=OWN_API)
    totp = pyotp.parse_uri(started.body["uri"])
    assert isinstance(totp, TOTP) and totp.secret == started.body["secret"]
    await sign_in(cloud)  # not on yet
    code = totp.at(cloud.clock.now())
    await cloud.call("UserService/ConfirmTotp", {"totpCode": code}, token=token, api=OWN_API)
    assert (await try_password(cloud)).code == "failed_precondition"
    assert (await try_password(cloud, ALICE, "wrong")).code == "unauthenticated"
    assert (await try_password(cloud, totpCode=code)).code == "unauthenticated"  # used already
    cloud.clock.offset += timedelta(seconds=30)
    await sign_in(cloud, totpCode=totp.at(cloud.clock.now()))
    await cloud.call("UserService/RemoveTotp", {"id": account_id}, api=OWN_API)
    await sign_in(cloud)


async def test_users_of_another_tenant_are_not_there(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    outsider = await cloud.sign_in(cloud.other.credentials)
    for path, api in (
        ("TenantUserAccountService/Get", "nebius.iam.v1"),
        ("TenantUserAccountService/Block", "nebius.iam.v1"),
        ("TenantUserAccountWithAttributesService/Get", "nebius.iam.v1"),
        ("UserService/Delete", OWN_API),
        ("UserService/SetPassword", OWN_API),
    ):
        answer = await cloud.call(path, {"id": account_id}, token=outsider, api=api)
        assert answer.code == "not_found", path


async def test_names_and_clients_cannot_move_a_terminals_cursor(cloud: Cloud) -> None:
    body = {"parentId": cloud.bank.tenant_id, "email": ALICE, "name": "A\u001b[2Jlice", "password": PASSWORD}
    await cloud.call("UserService/Create", body, api=OWN_API)
    session = signed(await try_password(cloud, client="neo\u001b]0;x\u0007"))
    shown = (await profile(cloud, session.access)).body["userProfile"]["attributes"]["name"]
    listed = await cloud.call("SessionService/List", {}, token=session.access, api=OWN_API)
    assert (shown, listed.body["items"][0]["spec"]["client"]) == ("A[2Jlice", "neo]0;x")


async def test_one_address_may_have_an_account_in_two_tenants(cloud: Cloud) -> None:
    await make_user(cloud)
    outsider = await cloud.sign_in(cloud.other.credentials)
    body = {"parentId": cloud.other.tenant_id, "email": ALICE, "password": "a different password"}
    made = await cloud.call("UserService/Create", body, token=outsider, api=OWN_API)
    assert made.status == 200
    assert (await try_password(cloud)).code == "unauthenticated"
    session = await sign_in(cloud, tenantId=cloud.bank.tenant_id)
    assert session.account_id != made.body["tenantUserAccountId"]


async def test_an_address_with_two_accounts_signs_in_with_the_tenants_name(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    outsider = await cloud.sign_in(cloud.other.credentials)
    body = {"parentId": cloud.other.tenant_id, "email": ALICE, "password": PASSWORD}
    assert (await cloud.call("UserService/Create", body, token=outsider, api=OWN_API)).status == 200

    assert (await sign_in(cloud, tenantId="default")).account_id == account_id
    assert (await sign_in(cloud, tenantId="other-bank")).account_id != account_id
    refused = [await try_password(cloud, tenantId=each) for each in ("third", "", cloud.bank.project_id)]
    assert {(each.code, each.body["message"]) for each in refused} == {
        ("unauthenticated", refused[0].body["message"])
    }, "nothing tells which tenants there are"


async def test_lists_show_users_with_their_attributes(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    body = {"parentId": cloud.bank.tenant_id}
    plain = await cloud.call("TenantUserAccountService/List", body)
    assert [item["metadata"]["id"] for item in plain.body["items"]] == [account_id]
    assert plain.body["items"][0]["status"]["state"] == "ACTIVE"
    full = await cloud.call("TenantUserAccountWithAttributesService/List", body)
    assert [item["attributes"]["email"] for item in full.body["items"]] == [ALICE]
    await make_user(cloud, "bob@bank.example")
    path, seen = "TenantUserAccountWithAttributesService/List", []
    token = ""
    for _ in range(2):
        paged = await cloud.call(path, {**body, "pageSize": "1", "pageToken": token})
        seen += [item["attributes"]["email"] for item in paged.body["items"]]
        token = paged.body.get("nextPageToken", "")
    assert (seen, token) == ([ALICE, "bob@bank.example"], "")
