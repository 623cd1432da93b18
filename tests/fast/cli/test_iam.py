"""Keys on the command line: a token is shown the one time that there is one."""

import json
from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer

ISSUE = "nebius.iam.v1.StaticKeyService/Issue"
ROLES = "neocloud.iam.v1.RoleService/List"
FLAGS = (
    "--name",
    "pulls",
    "--account-service-account-id",
    "serviceaccount-e00abc",
    "--service",
    "OBSERVABILITY",
)


def issued(request: Any) -> Any:
    operation = {"id": "operation-e00one", "resource_id": "statickey-e00one"}
    return contract.method(ISSUE).output(token="ncsk_statickey-e00one_secret", operation=operation)


def test_an_issued_token_goes_to_stdout_and_the_warning_does_not(signed_in: Neo, cloud: FakeServer) -> None:
    cloud.serve(ISSUE, issued)
    ran = signed_in("iam", "static-key", "issue", *FLAGS, "--output", "json")
    assert json.loads(ran.out) == {"id": "statickey-e00one", "token": "ncsk_statickey-e00one_secret"}
    assert ran.err == "Store the token now: it is not shown again.\n"
    (asked,) = cloud.asked(ISSUE)
    assert (asked.metadata.name, asked.metadata.parent_id) == ("pulls", PROJECT)
    assert asked.spec.account.service_account.id == "serviceaccount-e00abc"


def test_roles_are_listed_with_what_they_are_for(signed_in: Neo, cloud: FakeServer) -> None:
    role = {"metadata": {"id": "viewer", "name": "viewer"}, "spec": {"description": "Looking."}}
    cloud.serve(ROLES, contract.method(ROLES).output(items=[role]))
    ran = signed_in("iam", "role", "list")
    assert ran.code == 0
    assert "viewer" in ran.out and "Looking." in ran.out


@pytest.mark.parametrize("command", ["get-access-token", "token"])
def test_an_access_token_alone_goes_to_stdout(signed_in: Neo, cloud: FakeServer, command: str) -> None:
    cloud.serve(
        "nebius.iam.v1.ProfileService/Get", contract.method("nebius.iam.v1.ProfileService/Get").output()
    )
    ran = signed_in("iam", command)
    assert (ran.code, ran.out, ran.err) == (0, "token-1\n", "")


def test_a_token_that_was_revoked_is_not_printed(signed_in: Neo, cloud: FakeServer) -> None:
    cloud.serve(
        "nebius.iam.v1.ProfileService/Get", contract.method("nebius.iam.v1.ProfileService/Get").output()
    )
    assert signed_in("iam", "get-access-token").out == "token-1\n"
    cloud.refused_tokens = {"token-1"}
    assert signed_in("iam", "get-access-token").out == "token-2\n"


def test_without_a_sign_in_nothing_goes_to_stdout(neo: Neo) -> None:
    ran = neo("iam", "get-access-token")
    assert ran.code != 0 and ran.out == "" and "neo login" in ran.err


def test_help_of_iam_names_the_token(neo: Neo) -> None:
    ran = neo("iam", "--help")
    assert "get-access-token" in ran.out
    assert "neo iam token" in " ".join(neo("iam", "get-access-token", "--help").out.split())


@pytest.mark.parametrize("verb", ["list", "ls", "list-members"])
def test_members_of_a_group_are_listed_by_the_usual_word(
    signed_in: Neo, cloud: FakeServer, verb: str
) -> None:
    path = "nebius.iam.v1.GroupMembershipService/ListMembers"
    cloud.serve(path, contract.method(path).output())
    assert signed_in("iam", "group-membership", verb, "--group", "group-e00abc").code == 0
    assert cloud.asked(path)[0].parent_id == "group-e00abc"
