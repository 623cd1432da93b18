"""Rights of callers: only through groups, nothing across tenants. IAM-01, IAM-02, IAM-08. IAM-01, IAM-02,
IAM-08.
"""

from datetime import timedelta
from unittest.mock import Mock

import pytest
from neocloud.messages.nebius.iam.v2 import GetProjectByNameRequest

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.service import Call
from neocloud.services.iam.api.containers import get_project_by_name
from tests.fast.services.iam.conftest import Answer, Cloud
from tests.fast.services.iam.keys import key_pair


async def robot(cloud: Cloud, name: str = "robot") -> tuple[str, str]:
    """A service account without rights, and its access token."""
    pair = key_pair("EdDSA")
    account_id = await cloud.make_account(name)
    key_id = await cloud.make_key(account_id, pair.public_pem)
    return account_id, await cloud.sign_in(pair.credentials(key_id, account_id))


async def create_filesystem(cloud: Cloud, token: str, parent_id: str = "") -> Answer:
    metadata = {"parentId": parent_id or cloud.bank.project_id, "name": ""}
    spec = {"sizeGibibytes": "1", "type": "NETWORK_SSD"}
    body = {"metadata": metadata, "spec": spec}
    return await cloud.call("FilesystemService/Create", body, token=token, api="nebius.compute.v1")


async def list_filesystems(cloud: Cloud, token: str) -> Answer:
    body = {"parentId": cloud.bank.project_id}
    return await cloud.call("FilesystemService/List", body, token=token, api="nebius.compute.v1")


async def test_an_account_in_no_group_may_do_nothing(cloud: Cloud) -> None:
    _, token = await robot(cloud)
    for answer in (await create_filesystem(cloud, token), await list_filesystems(cloud, token)):
        assert answer.code == "permission_denied"
        assert "Ask an admin" in answer.message


async def test_viewers_look_editors_change_and_admins_decide(cloud: Cloud) -> None:
    account_id, token = await robot(cloud)
    await cloud.add_to("viewers", account_id)
    assert (await list_filesystems(cloud, token)).status == 200
    assert (await create_filesystem(cloud, token)).code == "permission_denied"
    await cloud.add_to("editors", account_id)
    assert (await create_filesystem(cloud, token)).status == 200
    group = {"metadata": {"parentId": cloud.bank.tenant_id, "name": "quants"}, "spec": {}}
    assert (await cloud.call("GroupService/Create", group, token=token)).code == "permission_denied"
    await cloud.add_to("admins", account_id)
    assert (await cloud.call("GroupService/Create", group, token=token)).status == 200


async def test_a_right_ends_a_second_after_the_membership(cloud: Cloud) -> None:
    account_id, token = await robot(cloud)
    membership_id = await cloud.add_to("editors", account_id)
    assert (await create_filesystem(cloud, token)).status == 200
    assert (await cloud.call("GroupMembershipService/Delete", {"id": membership_id})).status == 200
    cloud.clock.offset = timedelta(seconds=1)
    assert (await create_filesystem(cloud, token)).code == "permission_denied"


async def test_a_permit_on_one_project_reaches_no_other(cloud: Cloud) -> None:
    account_id, token = await robot(cloud)
    metadata = {"parentId": cloud.bank.tenant_id, "name": "research"}
    research = await cloud.made("ProjectService/Create", {"metadata": metadata, "spec": {}})
    group_metadata = {"parentId": cloud.bank.tenant_id, "name": "quants"}
    group_id = await cloud.made("GroupService/Create", {"metadata": group_metadata, "spec": {}})
    permit = {"metadata": {"parentId": group_id}, "spec": {"resourceId": research, "role": "compute.editor"}}
    await cloud.made("AccessPermitService/Create", permit)
    member = {"metadata": {"parentId": group_id}, "spec": {"memberId": account_id}}
    await cloud.made("GroupMembershipService/Create", member)
    assert (await create_filesystem(cloud, token, research)).status == 200
    assert (await create_filesystem(cloud, token)).code == "permission_denied"


async def test_another_tenants_resource_looks_as_if_it_were_not_there(cloud: Cloud) -> None:
    foreign, missing = cloud.other.project_id, "project-e00nowhere"
    answers = [await cloud.call("ProjectService/Get", {"id": each}) for each in (foreign, missing)]
    first, second = (
        answer.message.replace(each, "ID") for answer, each in zip(answers, (foreign, missing), strict=True)
    )
    assert [answer.code for answer in answers] == ["not_found", "not_found"]
    assert first == second
    assert (await create_filesystem(cloud, await cloud.operator_token(), foreign)).code == "not_found"
    listed = await cloud.call("ProjectService/List", {"parentId": cloud.other.tenant_id})
    assert listed.code == "not_found"
    assert (await cloud.call("TenantService/Get", {"id": cloud.other.tenant_id})).code == "not_found"


async def test_accounts_of_another_tenant_cannot_be_let_in(cloud: Cloud) -> None:
    metadata = {"parentId": await cloud.group_id("editors")}
    spec = {"memberId": cloud.other.service_account_id}
    answer = await cloud.call("GroupMembershipService/Create", {"metadata": metadata, "spec": spec})
    assert answer.code == "invalid_argument"
    assert "is not a user or service account of the group's tenant" in answer.message


async def test_a_permit_cannot_reach_into_another_tenant(cloud: Cloud) -> None:
    metadata = {"parentId": await cloud.group_id("editors")}
    spec = {"resourceId": cloud.other.project_id, "role": "viewer"}
    answer = await cloud.call("AccessPermitService/Create", {"metadata": metadata, "spec": spec})
    assert answer.code == "invalid_argument"
    assert "is not a resource of the group's tenant" in answer.message


async def test_nobody_gives_a_right_they_do_not_have(cloud: Cloud) -> None:
    """An admin of one group may add members to it, and may not make it mightier."""
    account_id, token = await robot(cloud)
    group_metadata = {"parentId": cloud.bank.tenant_id, "name": "quants"}
    group_id = await cloud.made("GroupService/Create", {"metadata": group_metadata, "spec": {}})
    metadata = {"parentId": group_id}
    own = {"metadata": metadata, "spec": {"resourceId": group_id, "role": "admin"}}
    await cloud.made("AccessPermitService/Create", own)
    member = {"metadata": metadata, "spec": {"memberId": account_id}}
    await cloud.made("GroupMembershipService/Create", member)
    mightier = {"metadata": metadata, "spec": {"resourceId": cloud.bank.tenant_id, "role": "admin"}}
    answer = await cloud.call("AccessPermitService/Create", mightier, token=token)
    assert answer.code == "permission_denied"
    assert "requires the right to create permits on it" in answer.message
    friend_id, _ = await robot(cloud, "friend")
    friend = {"metadata": metadata, "spec": {"memberId": friend_id}}
    assert (await cloud.call("GroupMembershipService/Create", friend, token=token)).status == 200


async def test_an_editor_cannot_make_a_key_for_a_mightier_account(cloud: Cloud) -> None:
    account_id, token = await robot(cloud)
    await cloud.add_to("editors", account_id)
    spec = {
        "account": {"serviceAccount": {"id": cloud.bank.service_account_id}},
        "data": key_pair("EdDSA").public_pem,
    }
    body = {"metadata": {"parentId": cloud.bank.project_id}, "spec": spec}
    answer = await cloud.call("AuthPublicKeyService/Create", body, token=token)
    assert answer.code == "permission_denied"


async def test_a_key_lies_in_the_project_of_its_account(cloud: Cloud) -> None:
    """Else an admin of one project could make keys for the accounts of another."""
    metadata = {"parentId": cloud.bank.tenant_id, "name": "research"}
    research = await cloud.made("ProjectService/Create", {"metadata": metadata, "spec": {}})
    spec = {
        "account": {"serviceAccount": {"id": cloud.bank.service_account_id}},
        "data": key_pair("EdDSA").public_pem,
    }
    answer = await cloud.call(
        "AuthPublicKeyService/Create", {"metadata": {"parentId": research}, "spec": spec}
    )
    assert answer.code == "invalid_argument"
    assert "is not a service account of this project" in answer.message


@pytest.mark.parametrize(
    ("pem", "complaint"),
    [
        (key_pair("RS256").private_pem, "is a private key"),
        ("ssh-ed25519 AAAA me@here", "is not a public key in PEM form"),
        ("", "is not a public key in PEM form"),
        (key_pair("RS256", 1024).public_pem, "RSA key of 1024 bits"),
    ],
)
async def test_a_key_that_is_none_is_refused_with_the_reason(cloud: Cloud, pem: str, complaint: str) -> None:
    spec = {"account": {"serviceAccount": {"id": cloud.bank.service_account_id}}, "data": pem}
    body = {"metadata": {"parentId": cloud.bank.project_id}, "spec": spec}
    answer = await cloud.call("AuthPublicKeyService/Create", body)
    assert answer.code == "invalid_argument"
    assert complaint in answer.message


async def test_an_unknown_role_is_refused_with_those_there_are(cloud: Cloud) -> None:
    spec = {"resourceId": cloud.bank.project_id, "role": "emperor"}
    body = {"metadata": {"parentId": await cloud.group_id("editors")}, "spec": spec}
    answer = await cloud.call("AccessPermitService/Create", body)
    assert "admin, billing.viewer, compute.editor" in answer.message


async def test_a_membership_that_should_end_by_itself_is_refused_not_shortened(cloud: Cloud) -> None:
    """Access must never last longer than was asked for."""
    account_id, _ = await robot(cloud)
    metadata = {"parentId": await cloud.group_id("editors")}
    body = {"metadata": metadata, "spec": {"memberId": account_id}, "revokeAfterHours": "8"}
    answer = await cloud.call("GroupMembershipService/Create", body)
    assert answer.code == "invalid_argument"
    assert "revoke_after_hours" in answer.message


async def test_members_and_memberships_are_listed_from_both_sides(cloud: Cloud) -> None:
    account_id, _ = await robot(cloud)
    await cloud.add_to("editors", account_id)
    await cloud.add_to("viewers", account_id)
    member_of = await cloud.call("GroupMembershipService/ListMemberOf", {"subjectId": account_id})
    assert {group["metadata"]["name"] for group in member_of.body["items"]} == {"editors", "viewers"}
    page = {"subjectId": account_id, "pageSize": "1"}
    first = await cloud.call("GroupMembershipService/ListMemberOf", page)
    page["pageToken"] = first.body["nextPageToken"]
    second = await cloud.call("GroupMembershipService/ListMemberOf", page)
    assert "nextPageToken" not in second.body
    names = [answer.body["items"][0]["metadata"]["name"] for answer in (first, second)]
    assert sorted(names) == ["editors", "viewers"]
    group_id = await cloud.group_id("editors")
    members = await cloud.call("GroupMembershipService/ListMembers", {"parentId": group_id})
    assert [each["spec"]["memberId"] for each in members.body["memberships"]] == [account_id]


async def test_nobody_is_in_a_group_twice(cloud: Cloud) -> None:
    account_id, _ = await robot(cloud)
    await cloud.add_to("editors", account_id)
    body = {"metadata": {"parentId": await cloud.group_id("editors")}, "spec": {"memberId": account_id}}
    assert (await cloud.call("GroupMembershipService/Create", body)).code == "already_exists"


async def test_an_account_takes_its_keys_and_memberships_along(cloud: Cloud) -> None:
    account_id, _ = await robot(cloud)
    membership_id = await cloud.add_to("editors", account_id)
    request = {"account": {"serviceAccount": {"id": account_id}}}
    keys = await cloud.call("AuthPublicKeyService/ListByAccount", request)
    (key,) = keys.body["items"]
    assert (await cloud.call("ServiceAccountService/Delete", {"id": account_id})).status == 200
    for path, gone in (
        ("AuthPublicKeyService/Get", key["metadata"]["id"]),
        ("GroupMembershipService/Get", membership_id),
    ):
        assert (await cloud.call(path, {"id": gone})).code == "not_found"


async def test_a_group_with_members_is_not_deleted(cloud: Cloud) -> None:
    account_id, _ = await robot(cloud)
    membership_id = await cloud.add_to("editors", account_id)
    group_id = await cloud.group_id("editors")
    assert (await cloud.call("GroupService/Delete", {"id": group_id})).code == "failed_precondition"
    await cloud.call("GroupMembershipService/Delete", {"id": membership_id})
    assert (await cloud.call("GroupService/Delete", {"id": group_id})).status == 200


async def test_a_project_keeps_its_region_and_may_change_its_name(cloud: Cloud) -> None:
    metadata = {"parentId": cloud.bank.tenant_id, "name": "research"}
    spec = {"region": "eu-west1"}
    project_id = await cloud.made("ProjectService/Create", {"metadata": metadata, "spec": spec})
    renamed = {"metadata": {"id": project_id, "name": "risk"}}
    assert (await cloud.call("ProjectService/Update", renamed)).status == 200
    found = await cloud.call("ProjectService/GetByName", {"parentId": cloud.bank.tenant_id, "name": "risk"})
    assert found.body["status"]["region"] == "eu-west1"
    assert found.body["status"]["containerState"] == "ACTIVE"
    moved = {"metadata": {"id": project_id}, "spec": {"region": "us-central1"}}
    assert (await cloud.call("ProjectService/Update", moved)).code == "invalid_argument"


async def test_a_project_lies_in_a_tenant_and_has_a_name_of_its_own(cloud: Cloud) -> None:
    nested = {"metadata": {"parentId": cloud.bank.project_id, "name": "x"}, "spec": {}}
    assert (await cloud.call("ProjectService/Create", nested)).code == "invalid_argument"
    nameless = {"metadata": {"parentId": cloud.bank.tenant_id}, "spec": {}}
    assert (await cloud.call("ProjectService/Create", nameless)).code == "invalid_argument"
    taken = {"metadata": {"parentId": cloud.bank.tenant_id, "name": "default-eu-north1"}, "spec": {}}
    assert (await cloud.call("ProjectService/Create", taken)).code == "already_exists"


async def colleague(cloud: Cloud) -> tuple[str, str]:
    """A project, and the token of an account of another project with one role in this one."""
    account_id, token = await robot(cloud, "colleague")
    metadata = {"parentId": cloud.bank.tenant_id, "name": "research"}
    research = await cloud.made("ProjectService/Create", {"metadata": metadata, "spec": {}})
    group_metadata = {"parentId": cloud.bank.tenant_id, "name": "quants"}
    group_id = await cloud.made("GroupService/Create", {"metadata": group_metadata, "spec": {}})
    permit = {"metadata": {"parentId": group_id}, "spec": {"resourceId": research, "role": "slurm.editor"}}
    await cloud.made("AccessPermitService/Create", permit)
    member = {"metadata": {"parentId": group_id}, "spec": {"memberId": account_id}}
    await cloud.made("GroupMembershipService/Create", member)
    return research, token


async def test_a_colleague_lists_the_projects_with_a_role_of_hers_and_no_other(cloud: Cloud) -> None:
    research, token = await colleague(cloud)
    for api in ("nebius.iam.v1", "nebius.iam.v2"):
        listed = await cloud.call(
            "ProjectService/List", {"parentId": cloud.bank.tenant_id}, token=token, api=api
        )
        assert [each["metadata"]["id"] for each in listed.body["items"]] == [research]
    everything = await cloud.call("ProjectService/List", {"parentId": cloud.bank.tenant_id})
    assert len(everything.body["items"]) == 2


async def test_a_colleague_finds_her_project_by_name_and_id_and_no_other(cloud: Cloud) -> None:
    research, token = await colleague(cloud)
    hidden = (await cloud.call("ProjectService/Get", {"id": cloud.bank.project_id})).body["metadata"]["name"]
    tenant = {"parentId": cloud.bank.tenant_id}
    found = await cloud.call("ProjectService/GetByName", {**tenant, "name": "research"}, token=token)
    assert found.body["metadata"]["id"] == research
    assert (await cloud.call("ProjectService/Get", {"id": research}, token=token)).status == 200
    answers = [
        await cloud.call("ProjectService/GetByName", {**tenant, "name": name}, token=token)
        for name in (hidden, "no-such-project")
    ]
    first, second = (each.message for each in answers)
    assert answers[0].code == answers[1].code == "not_found"
    assert first.replace(hidden, "NAME") == second.replace("no-such-project", "NAME")
    label = {"metadata": {"id": research, "labels": {"a": "b"}}}
    assert (await cloud.call("ProjectService/Update", label, token=token)).code == "permission_denied"


async def test_a_limited_sign_in_learns_no_project_by_its_name(cloud: Cloud) -> None:
    """The words are the same whether the name is taken or not, in one's own tenant and in another."""
    account_id, _ = await robot(cloud)
    limited = Subject(account_id, "service_account", "robot", cloud.bank.tenant_id, scopes=("storage.*",))
    call = Call(limited, "", {}, Mock(store=cloud.store))
    for tenant in (cloud.bank, cloud.other):
        row = await cloud.store.read(lambda tx, tenant=tenant: tx.get(tenant.project_id))
        assert row is not None
        said: list[str] = []
        for name in (row.name, "no-such-project"):
            with pytest.raises(contract.ApiError) as refused:
                request = GetProjectByNameRequest(parent_id=tenant.tenant_id, name=name)
                await get_project_by_name(call, request)
            said.append(refused.value.message.replace(name, "NAME"))
        assert said[0] == said[1] and tenant.project_id not in said[0]


async def test_a_role_on_one_resource_shows_its_project(cloud: Cloud) -> None:
    account_id, token = await robot(cloud)
    metadata = {"parentId": cloud.bank.tenant_id, "name": "research"}
    research = await cloud.made("ProjectService/Create", {"metadata": metadata, "spec": {}})
    shelf = {
        "metadata": {"parentId": research, "name": "shelf"},
        "spec": {"sizeGibibytes": "1", "type": "NETWORK_SSD"},
    }
    made = await cloud.call("FilesystemService/Create", shelf, api="nebius.compute.v1")
    group = {"metadata": {"parentId": cloud.bank.tenant_id, "name": "shelf-readers"}, "spec": {}}
    group_id = await cloud.made("GroupService/Create", group)
    spec = {"resourceId": made.body["resourceId"], "role": "compute.viewer"}
    await cloud.made("AccessPermitService/Create", {"metadata": {"parentId": group_id}, "spec": spec})
    member = {"metadata": {"parentId": group_id}, "spec": {"memberId": account_id}}
    await cloud.made("GroupMembershipService/Create", member)
    listed = await cloud.call("ProjectService/List", {"parentId": cloud.bank.tenant_id}, token=token)
    assert [each["metadata"]["id"] for each in listed.body["items"]] == [research]
    found = {"id": made.body["resourceId"]}
    assert (
        await cloud.call("FilesystemService/Get", found, token=token, api="nebius.compute.v1")
    ).status == 200
    others = await cloud.call(
        "FilesystemService/List", {"parentId": research}, token=token, api="nebius.compute.v1"
    )
    assert others.code == "permission_denied" and "compute.viewer" in others.message
