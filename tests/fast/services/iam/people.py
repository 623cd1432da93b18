"""Actions of tests as people: make a user, sign in, call with the session's token."""

from dataclasses import dataclass
from typing import Any

from tests.fast.services.iam.conftest import Answer, Cloud

OWN_API = "neocloud.iam.v1"
PASSWORD = "correct horse battery staple"
ALICE = "alice@bank.example"


@dataclass
class Signed:
    """Tokens of one session."""

    access: str
    refresh: str
    session_id: str
    account_id: str

    def __repr__(self) -> str:
        return f"Signed({self.session_id})"


async def make_user(cloud: Cloud, email: str = ALICE, *groups: str, tenant_id: str = "") -> str:
    body = {"parentId": tenant_id or cloud.bank.tenant_id, "email": email, "password": PASSWORD}
    answer = await cloud.call("UserService/Create", body, api=OWN_API)
    assert answer.status == 200, answer
    for group in groups:
        await cloud.add_to(group, answer.body["tenantUserAccountId"])
    return answer.body["tenantUserAccountId"]


async def try_password(cloud: Cloud, email: str = ALICE, password: str = PASSWORD, **more: Any) -> Answer:
    body = {"email": email, "password": password, "client": "tests", **more}
    return await cloud.call("SignInService/WithPassword", body, token="", api=OWN_API)


async def sign_in(cloud: Cloud, email: str = ALICE, password: str = PASSWORD, **more: Any) -> Signed:
    return signed(await try_password(cloud, email, password, **more))


async def refresh(cloud: Cloud, token: str) -> Answer:
    return await cloud.call("SignInService/Refresh", {"refreshToken": token}, token="", api=OWN_API)


def signed(answer: Answer) -> Signed:
    assert answer.status == 200, answer
    body = answer.body
    return Signed(body["accessToken"], body["refreshToken"], body["sessionId"], body["tenantUserAccountId"])


async def profile(cloud: Cloud, token: str) -> Answer:
    return await cloud.call("ProfileService/Get", {}, token=token)
