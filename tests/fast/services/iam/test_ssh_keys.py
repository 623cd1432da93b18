"""SSH keys of people: the account's own to add and remove, and nothing but keys."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from neocloud.core.ssh_keys import is_public_key
from neocloud.services.iam.types import GroupMembers
from tests.fast.services.iam.conftest import Cloud
from tests.fast.services.iam.people import OWN_API, make_user, sign_in


def public_key() -> str:
    key = Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


KEY = public_key()


async def keys(cloud: Cloud, token: str) -> list[str]:
    answer = await cloud.call("SshKeyService/List", {}, token=token, api=OWN_API)
    return answer.body.get("publicKeys", [])


async def test_a_person_adds_and_removes_keys_and_a_group_has_them(cloud: Cloud) -> None:
    await make_user(cloud, "bob@bank.example")
    account_id = await make_user(cloud)
    alice, bob = await sign_in(cloud), await sign_in(cloud, "bob@bank.example")
    for comment in ("alice@laptop", "again"):
        body = {"publicKey": f" {KEY} {comment}\n"}
        assert (await cloud.call("SshKeyService/Add", body, token=alice.access, api=OWN_API)).status == 200
    assert await keys(cloud, alice.access) == [f"{KEY} alice@laptop"]
    assert await keys(cloud, bob.access) == []
    removed = await cloud.call("SshKeyService/Remove", {"publicKey": KEY}, token=bob.access, api=OWN_API)
    assert removed.code == "invalid_argument"
    group_id = await cloud.group_id("viewers")
    await cloud.add_to("viewers", account_id)
    members = cloud.provided.get(GroupMembers)
    (member,) = await members(cloud.bank.project_id, [group_id])
    assert (member.account_id, member.ssh_public_keys) == (account_id, (f"{KEY} alice@laptop",))
    assert not await members(cloud.other.project_id, [group_id]), "another tenant's group has no members"
    assert not await members("project-e00nothing", [group_id])
    removed = await cloud.call("SshKeyService/Remove", {"publicKey": KEY}, token=alice.access, api=OWN_API)
    assert removed.status == 200 and await keys(cloud, alice.access) == []


# Names of tests must be the same in every worker of a run: these have numbers, since the key is random.
HOSTILE = (
    *("", "no key", "ssh-ed25519", "ssh-ed25519 !!!!", KEY.replace("ssh-ed25519", "ssh-rsa")),
    *(f'command="reboot" {KEY}', f'from="*" {KEY}', f"cert-authority {KEY}", f"no-pty {KEY}", f"# {KEY}"),
    *(
        f"{KEY}\n{KEY}",
        f"{KEY} me\rcommand",
        f"{KEY} a\x0bb",
        f"{KEY} a\x00b",
        f"{KEY} a\x1b[2J",
        f"{KEY} \u2028x",
    ),
    "-----BEGIN OPENSSH PRIVATE KEY-----",
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_not_one_key_alone_is_refused(text: str) -> None:
    """Options before a key would run commands; a second line would be a key of its own."""
    assert is_public_key(KEY) and is_public_key(f"{KEY} me@laptop")
    assert not is_public_key(text)


async def test_no_more_than_twenty_keys(cloud: Cloud) -> None:
    await make_user(cloud)
    token = (await sign_in(cloud)).access
    answers = [
        await cloud.call("SshKeyService/Add", {"publicKey": public_key()}, token=token, api=OWN_API)
        for _ in range(21)
    ]
    assert [answer.status for answer in answers[:20]] == [200] * 20
    assert answers[20].code == "failed_precondition" and "20 SSH keys" in answers[20].message


async def test_a_service_account_has_no_keys(cloud: Cloud) -> None:
    answer = await cloud.call("SshKeyService/Add", {"publicKey": KEY}, api=OWN_API)
    assert answer.code == "failed_precondition"
