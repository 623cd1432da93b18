"""The reference page of roles, and the roles as the cloud tells them: IAM-09."""

from neocloud.services.iam.roles_page import page
from neocloud.services.iam.rules.roles import ROLES
from tests import ROOT
from tests.fast.services.iam.conftest import Cloud
from tests.fast.services.iam.test_access import robot

PAGE = ROOT / "docs" / "reference" / "roles.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


async def test_every_signed_in_user_sees_the_roles(cloud: Cloud) -> None:
    _, token = await robot(cloud)
    listed = await cloud.call("RoleService/List", {}, token=token, api="neocloud.iam.v1")
    assert {item["metadata"]["name"] for item in listed.body["items"]} == set(ROLES)
    one = await cloud.call("RoleService/Get", {"id": "compute.editor"}, token=token, api="neocloud.iam.v1")
    assert one.body["spec"]["permissions"][0] == "compute.*"
    none = await cloud.call("RoleService/Get", {"id": "emperor"}, token=token, api="neocloud.iam.v1")
    assert none.code == "not_found"
