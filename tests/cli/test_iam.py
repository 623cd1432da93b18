"""Keys on the command line: a token is shown the one time that there is one."""

import json
from typing import Any

from neocloud.core import contract
from tests.cli.conftest import Neo
from tests.cli.fake_control_plane import PROJECT, FakeServer

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
