"""Nobody acts as an account that holds more than they hold: not by a key, by impersonation, by what signs the
account in, nor by what runs as the account.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.nebius.iam.v1 import AccessPermitSpec, InvitationStatus
from neocloud.messages.neocloud.iam.v1 import OidcFederationSpec

from neocloud.core import contract, wire
from neocloud.core.store import Resource, Transaction
from neocloud.server.access import acting_prefixes, acts_as
from neocloud.services.iam import bootstrap
from neocloud.services.iam import types as iam
from neocloud.services.iam.access.tokens import issue
from neocloud.services.iam.defaults import OPERATOR_NAME, add_membership
from neocloud.services.iam.rules.grants import grants_of, holds_at_least, is_read
from neocloud.services.iam.rules.roles import ROLES, allows, covers, permissions_of
from tests.fast.server.walk.asking import request
from tests.fast.server.walk.cloud import TABLE, WalkedCloud, walked_cloud
from tests.fast.services.iam.conftest import Answer, Cloud, running_cloud
from tests.fast.services.iam.keys import key_pair
from tests.fast.services.iam.people import OWN_API, make_user, refresh, sign_in
from tests.fast.services.iam.test_access import robot
from tests.fast.services.iam.test_exchange_by_actor import impersonate

MIGHTY_IN_ONE_PROJECT = ("iam.keys.admin", "iam.serviceAccounts.user", "iam.admin", "admin")


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with running_cloud() as started:
        yield started


@pytest.fixture
async def walked(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path) as started:
        yield started


async def permit(cloud: Cloud, account_id: str, role: str, resource_id: str) -> None:
    """Grant a role to the account, by a group of its own."""
    name = f"group-{len((await cloud.store.read(lambda tx: tx.list(iam.GROUP)))[0])}"
    metadata = {"parentId": cloud.bank.tenant_id, "name": name}
    group_id = await cloud.made("GroupService/Create", {"metadata": metadata, "spec": {}})
    metadata = {"parentId": group_id}
    body = {"metadata": metadata, "spec": {"resourceId": resource_id, "role": role}}
    await cloud.made("AccessPermitService/Create", body)
    await cloud.made(
        "GroupMembershipService/Create", {"metadata": metadata, "spec": {"memberId": account_id}}
    )


async def attempts(cloud: Cloud, token: str, account_id: str, parent_id: str) -> list[Answer]:
    """Every way to get a credential of the account."""
    account, metadata = {"account": {"serviceAccount": {"id": account_id}}}, {"parentId": parent_id}
    public_key = {"metadata": metadata, "spec": {**account, "data": key_pair("EdDSA").public_pem}}
    oidc = {"issuerUrl": "https://issuer.example", "jwkSetJson": '{"keys": [{"kty": "OKP"}]}'}
    trust = {"oidcProvider": oidc, "federatedSubjectId": "me", "subjectId": account_id}
    return [
        await cloud.call("AuthPublicKeyService/Create", public_key, token=token),
        await cloud.call(
            "AccessKeyService/Create",
            {"metadata": metadata, "spec": account},
            token=token,
            api="nebius.iam.v2",
        ),
        await cloud.call(
            "StaticKeyService/Issue",
            {"metadata": metadata, "spec": {**account, "service": "AI_STUDIO"}},
            token=token,
        ),
        await cloud.call(
            "FederatedCredentialsService/Create",
            {"metadata": {**metadata, "name": "trust"}, "spec": trust},
            token=token,
        ),
        await impersonate(cloud, account_id, token),
    ]


@pytest.mark.parametrize("role", MIGHTY_IN_ONE_PROJECT)
async def test_a_right_in_the_first_project_does_not_reach_the_operator(cloud: Cloud, role: str) -> None:
    account_id, token = await robot(cloud)
    await permit(cloud, account_id, role, cloud.bank.project_id)
    for parent_id in (cloud.bank.project_id, cloud.bank.tenant_id):
        answers = await attempts(cloud, token, cloud.bank.service_account_id, parent_id)
        assert {each.code for each in answers} <= {"permission_denied", "not_found", "invalid_argument"}
    listed = await cloud.call("ServiceAccountService/List", {"parentId": cloud.bank.project_id}, token=token)
    assert cloud.bank.service_account_id not in json.dumps(listed.body)


@pytest.mark.parametrize("role", MIGHTY_IN_ONE_PROJECT)
async def test_nobody_gets_a_credential_of_an_account_that_holds_more(cloud: Cloud, role: str) -> None:
    account_id, token = await robot(cloud)
    await permit(cloud, account_id, role, cloud.bank.project_id)
    mighty_id = await cloud.make_account("mighty")
    await cloud.add_to("editors", mighty_id)
    answers = await attempts(cloud, token, mighty_id, cloud.bank.project_id)
    assert {each.code for each in answers} <= {"permission_denied", "not_found"}, answers


@pytest.mark.parametrize("role", ["iam.admin", "admin"])
async def test_who_holds_as_much_manages_the_account(cloud: Cloud, role: str) -> None:
    account_id, token = await robot(cloud)
    await permit(cloud, account_id, role, cloud.bank.project_id)
    plain_id = await cloud.make_account("plain")
    await permit(cloud, plain_id, "iam.viewer", cloud.bank.project_id)
    answers = await attempts(cloud, token, plain_id, cloud.bank.project_id)
    assert {each.status for each in answers} == {200}, answers


async def test_an_impersonation_ends_when_the_account_gets_more(cloud: Cloud) -> None:
    account_id, token = await robot(cloud)
    await permit(cloud, account_id, "iam.admin", cloud.bank.project_id)
    plain_id = await cloud.make_account("plain")
    acting = (await impersonate(cloud, plain_id, token)).body["accessToken"]
    assert (await cloud.call("ProfileService/Get", {}, token=acting)).status == 200
    await cloud.add_to("editors", plain_id)
    cloud.clock.offset += timedelta(seconds=1)
    assert (await cloud.call("ProfileService/Get", {}, token=acting)).code == "unauthenticated"


def test_roles_cover_one_another_exactly() -> None:
    """Checked permission by permission, with words that no role names too."""
    assert covers(["admin"], "editor") and not covers(["editor"], "admin")
    assert covers(["editor", "iam.admin", "quotas.admin", "audit.viewer"], "editor")
    assert not covers(["editor", "iam.admin", "quotas.admin", "audit.viewer"], "admin")
    assert not covers(["viewer"], "auditor") and covers(["auditor"], "viewer")
    assert not covers([], "viewer") and covers([], "no such role")
    for role in ROLES:
        patterns = [pattern.removeprefix("!") for pattern in ROLES[role].permissions]
        assert all(word == "*" or "*" not in word for each in patterns for word in each.split("."))
        assert all(allows(role, each) for each in permissions_of(role))


SESSION = contract.new_id("session")

# What a keeper of accounts (iam.admin on the whole tenant, and nothing else) may do to those that hold more.

HARMLESS = {
    "nebius.iam.v1.GroupService/Create",
    "nebius.iam.v1.InvitationService/Create",
    "nebius.iam.v1.ProjectService/Create",
    "nebius.iam.v1.ProjectService/Update",
    "nebius.iam.v1.ServiceAccountService/Create",
    "nebius.iam.v2.ProjectService/Create",
    "nebius.iam.v2.ProjectService/Delete",
    "nebius.iam.v2.ProjectService/Update",
    "nebius.iam.v2.TenantService/Update",
    "neocloud.iam.v1.UserService/Create",
}
"""Makes something that holds nothing yet, or is about no account."""
BY_THE_SPEC = {
    "nebius.iam.v1.AccessKeyService/Create",
    "nebius.iam.v1.AuthPublicKeyService/Create",
    "nebius.iam.v1.FederatedCredentialsService/Create",
    "nebius.iam.v1.StaticKeyService/Issue",
    "nebius.iam.v2.AccessKeyService/Create",
    "neocloud.iam.v1.OidcFederationService/Create",
}
"""Names its account in the spec; `attempts` and the test of federations show that these are refused."""
BY_THE_HANDLER = {
    "nebius.iam.v1.SessionManagementService/Revoke": "iam.sessions.revoke",
    "neocloud.iam.v1.SessionService/Revoke": "iam.sessions.revoke",
}
"""Ask for their permission in their handler."""


def make_mighty(tx: Transaction, cloud: WalkedCloud) -> Resource:
    """Everything of the victim's belongs to administrators. Returns a keeper of accounts."""
    now, held = datetime.now(UTC), cloud.victim.ids
    rows = {prefix: tx.get(identifier) for prefix, identifier in held.items()}
    admins = tx.find(iam.GROUP, held["tenant"], "admins")
    account, user, invitation = (rows[each] for each in ("serviceaccount", "tenantuseraccount", "invitation"))
    assert admins and account and user and invitation
    for member in (account, user):
        add_membership(tx, admins, member, now)
    status = InvitationStatus(tenant_user_account_id=user.id).SerializeToString()
    tx.update(replace(invitation, status=status, state="PENDING"))
    federation = next(row for row in rows.values() if row and row.kind == iam.OIDC_FEDERATION)
    spec = OidcFederationSpec(group_ids=[admins.id]).SerializeToString()
    tx.update(replace(federation, spec=spec))
    for prefix in ("accesskey", "statickey", "publickey", "federatedcredentials"):
        key = rows[prefix]
        assert key is not None
        tx.update(replace(key, owner_id=account.id))
    tx.insert(Resource(SESSION, iam.SESSION, user.id, "", now, now, owner_id=user.id))
    membership, group = rows["groupmembership"], rows["group"]
    assert membership and group
    tx.update(replace(membership, owner_id=user.id))
    add_permit(tx, group, "admin", held["tenant"])
    keepers = replace(group, id=contract.new_id("group"), name="keepers")
    tx.insert(keepers)
    add_permit(tx, keepers, "iam.admin", held["tenant"])
    keeper = replace(account, id=contract.new_id("serviceaccount"), name="keeper")
    tx.insert(keeper)
    add_membership(tx, keepers, keeper, now)
    return keeper


def add_permit(tx: Transaction, group: Resource, role: str, resource_id: str) -> None:
    spec = AccessPermitSpec(resource_id=resource_id, role=role).SerializeToString()
    tx.insert(
        replace(
            group,
            id=contract.new_id("accesspermit"),
            kind=iam.ACCESS_PERMIT,
            parent_id=group.id,
            owner_id=group.id,
            name="",
            spec=spec,
            status=b"",
        )
    )


async def token_for(cloud: WalkedCloud, account_id: str) -> str:
    return (await issue(cloud.store, datetime.now(UTC), account_id, account_id)).value


def about_the_mighty(path: str, permission: str, walked: WalkedCloud) -> Any:
    """The walk's request; where the service has no kind of its own, about what the permission names."""
    message, noun = request(path, TABLE, walked.victim), permission.rpartition(".")[0]
    prefixes = {
        "iam.users": "tenantuseraccount",
        "iam.sessions": "session",
        **{kind.permission: kind.id_prefix for kind in TABLE.kinds},
    }
    if noun in prefixes and getattr(message, "id", "") == walked.victim.ids["project"]:
        message.id = SESSION if noun == "iam.sessions" else walked.victim.ids[prefixes[noun]]
    return message


async def test_a_keeper_of_accounts_changes_nothing_of_those_that_hold_more(walked: WalkedCloud) -> None:
    """A method that is new, and changes anything of accounts, is walked without a change here."""
    keeper = await walked.store.write(lambda tx: make_mighty(tx, walked))
    token = await token_for(walked, keeper.id)
    let_through = []
    for path in walked.paths:
        permission = TABLE.permission_of(path) or BY_THE_HANDLER.get(path, "")
        is_change = permission.startswith("iam.") and not is_read(permission)
        if not is_change or path in HARMLESS | BY_THE_SPEC:
            continue
        assert allows("iam.admin", permission), path
        answer = await walked.send(path, about_the_mighty(path, permission, walked), token)
        if answer.code != "PERMISSION_DENIED":
            let_through.append((path, answer.code, answer.message))
    assert not let_through


async def test_the_walk_reaches_every_kind_of_principal(walked: WalkedCloud) -> None:
    keeper = await walked.store.write(lambda tx: make_mighty(tx, walked))
    ids = walked.victim.ids
    for prefix in ("serviceaccount", "tenantuseraccount", "group", "oidcfederation"):
        target = ids[prefix]
        assert await walked.store.read(lambda tx, target=target: bool(grants_of(tx, target))), prefix
        assert not await walked.store.read(lambda tx, target=target: holds_at_least(tx, keeper.id, target))


async def test_a_federation_cannot_be_made_to_put_people_into_a_mightier_group(cloud: Cloud) -> None:
    account_id, token = await robot(cloud)
    await permit(cloud, account_id, "iam.admin", cloud.bank.tenant_id)
    spec = {
        "issuerUrl": "https://issuer.example", "clientId": "x", "userAccountAutoCreation": True,
        "groupIds": [await cloud.group_id("admins")],
    }  # fmt: skip
    body = {"metadata": {"parentId": cloud.bank.tenant_id, "name": "mine"}, "spec": spec}
    answer = await cloud.call("OidcFederationService/Create", body, token=token, api="neocloud.iam.v1")
    assert answer.code == "permission_denied"
    group = {"metadata": {"parentId": spec["groupIds"][0]}, "spec": {"memberId": account_id}}
    assert (await cloud.call("GroupMembershipService/Create", group, token=token)).code == "permission_denied"


# The operator's account of a home that an earlier release made.


def put_back(tx: Transaction, cloud: Cloud) -> None:
    """Move account and keys to the first project, as earlier releases had it."""
    account = tx.get(cloud.bank.service_account_id)
    assert account is not None
    for row in (account, *tx.owned(account.id)):
        if row.parent_id == cloud.bank.tenant_id:
            tx.update(replace(row, parent_id=cloud.bank.project_id))


async def test_the_operators_account_is_moved_once_and_its_credentials_stay(cloud: Cloud) -> None:
    await cloud.store.write(lambda tx: put_back(tx, cloud))
    for _ in range(2):
        again = await bootstrap(cloud.store, cloud.clock, held_credentials=cloud.bank.credentials)
        assert again == cloud.bank
        row = await cloud.store.read(lambda tx: tx.get(cloud.bank.service_account_id))
        assert row is not None and row.parent_id == cloud.bank.tenant_id
    token = await cloud.sign_in(cloud.bank.credentials)
    assert (
        await cloud.call("GroupService/List", {"parentId": cloud.bank.tenant_id}, token=token)
    ).status == 200


async def test_an_account_that_only_has_the_operators_name_is_not_moved(cloud: Cloud) -> None:
    impostor_id = await cloud.make_account(OPERATOR_NAME)
    gone = {"id": cloud.bank.service_account_id}
    await cloud.operator_token()
    assert (await cloud.call("ServiceAccountService/Delete", gone)).status == 200
    again = await bootstrap(cloud.store, cloud.clock)
    assert again.service_account_id not in (impostor_id, cloud.bank.service_account_id)
    row = await cloud.store.read(lambda tx: tx.get(impostor_id))
    assert row is not None and row.parent_id == cloud.bank.project_id


# What runs as an account.


def acting_kinds() -> list[Any]:
    """Every kind whose spec can name an account that the resource acts as."""
    prefixes = acting_prefixes(TABLE.kinds)
    return [kind for kind in TABLE.kinds if _can_name(contract.message(kind.message).DESCRIPTOR, prefixes)]


def _can_name(descriptor: Any, prefixes: frozenset[str], seen: frozenset[str] = frozenset()) -> bool:
    spec = descriptor.fields_by_name.get("spec") if not seen else None
    if not seen:
        return spec is not None and _can_name(spec.message_type, prefixes, frozenset({descriptor.full_name}))
    if descriptor.full_name in seen:
        return False
    for field in descriptor.fields:
        nid = contract.annotations(field).nid
        if nid is not None and prefixes & {*nid.resources}:
            return True
        if field.message_type and _can_name(field.message_type, prefixes, seen | {descriptor.full_name}):
            return True
    return False


def test_instances_act_as_accounts() -> None:
    assert acting_prefixes(TABLE.kinds) == {"serviceaccount"}
    assert "nebius.compute.v1.Instance" in {kind.message for kind in acting_kinds()}


async def editor_without_impersonate(walked: WalkedCloud) -> str:
    def make(tx: Transaction) -> str:
        editors = tx.find(iam.GROUP, walked.victim.ids["tenant"], "editors")
        account = tx.get(walked.victim.ids["serviceaccount"])
        assert editors and account
        editor = replace(account, id=contract.new_id("serviceaccount"), name="editor")
        tx.insert(editor)
        add_membership(tx, editors, editor, datetime.now(UTC))
        return editor.id

    return await token_for(walked, await walked.store.write(make))


async def test_what_runs_as_an_account_is_changed_and_started_by_who_may_act_as_it(
    walked: WalkedCloud,
) -> None:
    """Every change of every kind that can act as an account, except for those that only end it."""
    token = await editor_without_impersonate(walked)
    ending = {each.path for service in TABLE.services for each in service.methods if each.is_ending}
    changes = {each.path for service in TABLE.services for each in service.methods if each.is_change}
    for kind in acting_kinds():
        row = await walked.store.read(lambda tx, kind=kind: tx.get(walked.victim.of_kind(kind)))
        assert row is not None
        assert acts_as(wire.resource_message(row).spec, frozenset({"serviceaccount"}))
        for path in walked.paths:
            if path.startswith(f"{kind.rpc}/") and path in changes:
                answer = await walked.ask(path, walked.victim, token)
                assert (answer.code == "PERMISSION_DENIED") == (path not in ending), (path, answer)
        labels = contract.method(f"{kind.rpc}/Update").input()
        labels.metadata.id, labels.metadata.labels["team"] = row.id, "a"
        answer = await walked.send(f"{kind.rpc}/Update", labels, token)
        assert "impersonate" not in answer.message, answer


@pytest.mark.parametrize(
    "path",
    ["neocloud.tuning.v1.FineTuningJobService/Create", "neocloud.inference.v1.DeploymentService/Create"],
)
async def test_what_runs_on_a_cluster_that_acts_as_an_account_asks_for_the_account(
    walked: WalkedCloud, path: str
) -> None:
    """It runs beside the keys of the account."""
    token = await editor_without_impersonate(walked)
    cluster = await walked.store.read(lambda tx: tx.get(walked.victim.ids["slurmcluster"]))
    assert cluster is not None
    create = contract.method(path).input()
    create.metadata.parent_id, create.spec.slurm_cluster_id = cluster.parent_id, cluster.id
    answer = await walked.send(path, create, token)
    assert (answer.code, "impersonate" in answer.message) == ("PERMISSION_DENIED", True), answer
    spec = wire.resource_message(cluster).spec
    spec.ClearField("service_account_id")
    await walked.store.write(lambda tx: tx.update(replace(cluster, spec=spec.SerializeToString())))
    answer = await walked.send(path, create, token)
    assert answer.code != "PERMISSION_DENIED", answer


async def test_user_data_of_a_machine_that_acts_as_an_account_asks_for_the_account(
    walked: WalkedCloud,
) -> None:
    token = await editor_without_impersonate(walked)
    path = "nebius.compute.v1.InstanceService/Update"
    update = contract.method(path).input()
    update.metadata.id = walked.victim.ids["computeinstance"]
    update.spec.cloud_init_user_data = "#cloud-config\nbootcmd: [true]\n"
    answer = await walked.send(path, update, token)
    assert (answer.code, "impersonate" in answer.message) == ("PERMISSION_DENIED", True), answer
    row = await walked.store.read(lambda tx: tx.get(update.metadata.id))
    assert row is not None
    spec = wire.resource_message(row).spec
    spec.stopped = True
    stopped = replace(row, spec=spec.SerializeToString())
    await walked.store.write(lambda tx: tx.update(stopped))
    again = contract.method(path).input()
    again.metadata.id = update.metadata.id
    again.spec.SetInParent()
    answer = await walked.send(path, again, token, **{"x-resetmask": "spec.stopped"})
    assert (answer.code, "impersonate" in answer.message) == ("PERMISSION_DENIED", True), answer


# Access ends when its right ends.


async def end_membership(cloud: Cloud, account_id: str, membership_id: str) -> Answer:
    return await cloud.call("GroupMembershipService/Delete", {"id": membership_id})


async def end_by_block(cloud: Cloud, account_id: str, membership_id: str) -> Answer:
    return await cloud.call("TenantUserAccountService/Block", {"id": account_id})


async def end_account(cloud: Cloud, account_id: str, membership_id: str) -> Answer:
    return await cloud.call("UserService/Delete", {"id": account_id}, api=OWN_API)


async def end_sessions(cloud: Cloud, account_id: str, membership_id: str) -> Answer:
    return await cloud.call("SessionManagementService/Revoke", {"tenantUserAccountId": account_id})


@pytest.mark.parametrize("end", [end_membership, end_by_block, end_account, end_sessions])
async def test_a_session_ends_within_a_minute_of_its_right(cloud: Cloud, end: Any) -> None:
    account_id = await make_user(cloud)
    membership_id = await cloud.add_to("viewers", account_id)
    session = await sign_in(cloud)
    groups = {"parentId": cloud.bank.tenant_id}
    assert (await cloud.call("GroupService/List", groups, token=session.access)).status == 200
    assert (await end(cloud, account_id, membership_id)).status == 200
    cloud.clock.offset += timedelta(seconds=60)
    answer = await cloud.call("GroupService/List", groups, token=session.access)
    assert answer.code in ("permission_denied", "unauthenticated")
    refreshed = await refresh(cloud, session.refresh)
    assert (refreshed.status == 200) == (end is end_membership)
    if refreshed.status == 200:
        again = await cloud.call("GroupService/List", groups, token=refreshed.body["accessToken"])
        assert again.code == "permission_denied"
