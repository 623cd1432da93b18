"""Invitations: made, handed over as a code, accepted once. IAM-08."""

from datetime import timedelta
from typing import Any

import pytest

from tests.fast.services.iam.conftest import Answer, Cloud
from tests.fast.services.iam.people import ALICE, OWN_API, PASSWORD, profile, sign_in, signed, try_password


async def invite(cloud: Cloud, email: str = ALICE, **more: Any) -> str:
    body = {"metadata": {"parentId": cloud.bank.tenant_id}, "spec": {"email": email}, "noSend": True, **more}
    return await cloud.made("InvitationService/Create", body)


async def invitation(cloud: Cloud, invitation_id: str) -> dict[str, Any]:
    answer = await cloud.call("InvitationService/Get", {"id": invitation_id})
    assert answer.status == 200, answer
    return answer.body["status"]


async def issue_code(cloud: Cloud, invitation_id: str) -> Answer:
    return await cloud.call("UserService/IssueInvitationCode", {"id": invitation_id}, api=OWN_API)


async def code_of(cloud: Cloud, invitation_id: str) -> str:
    answer = await issue_code(cloud, invitation_id)
    assert answer.status == 200, answer
    return answer.body["code"]


async def accept(cloud: Cloud, code: str, password: str = PASSWORD) -> Answer:
    body = {"code": code, "password": password, "name": "Alice"}
    return await cloud.call("SignInService/AcceptInvitation", body, token="", api=OWN_API)


async def test_who_accepts_is_in_the_groups_that_were_chosen_before(cloud: Cloud) -> None:
    invitation_id = await invite(cloud)
    status = await invitation(cloud, invitation_id)
    assert status["state"] == "PENDING"
    events, _ = await cloud.store.read(lambda tx: tx.list_audit())
    assert (invitation_id, "create") in {(event.resource_id, event.action) for event in events}
    await cloud.add_to("viewers", status["tenantUserAccountId"])
    assert (await try_password(cloud)).code == "unauthenticated"
    session = signed(await accept(cloud, await code_of(cloud, invitation_id)))
    assert session.account_id == status["tenantUserAccountId"]
    groups = await cloud.call("GroupService/List", {"parentId": cloud.bank.tenant_id}, token=session.access)
    assert groups.status == 200
    shown = (await profile(cloud, session.access)).body["userProfile"]["attributes"]
    assert (shown["email"], shown["name"]) == (ALICE, "Alice")
    assert (await invitation(cloud, invitation_id))["state"] == "ACCEPTED"
    await sign_in(cloud)


async def test_a_code_works_once_and_the_next_ends_the_last(cloud: Cloud) -> None:
    invitation_id = await invite(cloud)
    first, second = await code_of(cloud, invitation_id), await code_of(cloud, invitation_id)
    assert (await accept(cloud, first)).code == "unauthenticated"
    assert (await accept(cloud, second)).status == 200
    assert (await accept(cloud, second, "mallory's long password")).code == "unauthenticated"
    assert (await issue_code(cloud, invitation_id)).code == "failed_precondition"
    await sign_in(cloud)


async def test_guessed_codes_and_weak_passwords_are_refused(cloud: Cloud) -> None:
    invitation_id = await invite(cloud)
    for code in ("x", f"{invitation_id}.x", f"{invitation_id}.", cloud.bank.tenant_id):
        assert (await accept(cloud, code)).code == "unauthenticated"
    code = await code_of(cloud, invitation_id)
    assert (await accept(cloud, code, "short")).code == "invalid_argument"
    assert (await accept(cloud, code)).status == 200


async def test_an_invitation_expires(cloud: Cloud) -> None:
    invitation_id = await invite(cloud, expiresIn="1800s")
    code = await code_of(cloud, invitation_id)
    cloud.clock.offset += timedelta(minutes=31)
    assert (await invitation(cloud, invitation_id))["state"] == "EXPIRED"
    assert (await accept(cloud, code)).code == "unauthenticated"
    assert (await issue_code(cloud, invitation_id)).code == "failed_precondition"


async def test_a_withdrawn_invitation_takes_its_account_along(cloud: Cloud) -> None:
    invitation_id = await invite(cloud)
    account_id = (await invitation(cloud, invitation_id))["tenantUserAccountId"]
    await cloud.add_to("viewers", account_id)
    code = await code_of(cloud, invitation_id)
    assert (await cloud.call("InvitationService/Delete", {"id": invitation_id})).status == 200
    assert (await accept(cloud, code)).code == "unauthenticated"
    assert (await cloud.call("TenantUserAccountService/Get", {"id": account_id})).code == "not_found"
    await invite(cloud)


async def test_deleting_an_accepted_invitation_leaves_the_account(cloud: Cloud) -> None:
    invitation_id = await invite(cloud)
    await accept(cloud, await code_of(cloud, invitation_id))
    assert (await cloud.call("InvitationService/Delete", {"id": invitation_id})).status == 200
    await sign_in(cloud)


@pytest.mark.parametrize(
    "bad",
    [
        {"spec": {"email": "nobody"}},
        {"expiresIn": "0s"},
        {"expiresIn": "99999999s"},
        {"metadata": {"parentId": "group-e00x"}},
    ],
)
async def test_a_senseless_invitation_is_refused(cloud: Cloud, bad: Any) -> None:
    body = {"metadata": {"parentId": cloud.bank.tenant_id}, "spec": {"email": ALICE}, **bad}
    answer = await cloud.call("InvitationService/Create", body)
    assert answer.code in ("invalid_argument", "not_found")


async def test_who_has_an_account_is_not_invited_again(cloud: Cloud) -> None:
    await invite(cloud)
    body = {"metadata": {"parentId": cloud.bank.tenant_id}, "spec": {"email": ALICE.upper()}}
    assert (await cloud.call("InvitationService/Create", body)).code == "already_exists"
