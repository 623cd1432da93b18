"""Names and numbers of people in groups: derived from what outsiders choose, and never somebody else's."""

import re
from collections.abc import AsyncIterator

import pytest

from neocloud.core import contract
from neocloud.emulator.fakes import respond_as_login_node
from neocloud.engines.base import ExecResult, Reference
from neocloud.services.iam.access.users import put_ssh_keys
from neocloud.services.slurm.reconcile.login_nodes import sessions_in
from neocloud.services.slurm.reconcile.members import free_name, linux_name
from neocloud.services.slurm.rules import RESERVED_USERS
from neocloud.services.slurm.types import ADD_USER
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud
from tests.fast.services.slurm.conftest import public_key

NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
HOSTILE = (
    *("", "@", "@bank.example", "..", "../../etc/passwd", "/", "-rf", "--help", "$(reboot)", "`id`", "a;b"),
    *(
        "a:b:0:0",
        "ann\n",
        "ann\nroot:x:0:0",
        "ann\x00root",
        "%u",
        "*",
        "~",
        "ann:5000:fixed:x",
        "a b",
        "\u202eann",
    ),
    *(
        "0",
        "1000",
        "007bond",
        "ROOT",
        "Root@bank.example",
        "rööt",
        "ｒｏｏｔ",
        "root\u200b",
        "slurm",
        "nobody",
        "munge",
    ),
    *("systemd-network", "systemd--x", "sshd", "x" * 10_000, "\U0001f600", "李雷", "_apt", "+", "daemon@x"),
)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_name_has_letters_digits_and_dashes_and_is_none_of_the_systems(hostile: str) -> None:
    name = free_name(hostile, frozenset({"user", "ann"}))
    assert NAME.fullmatch(name)
    assert name not in RESERVED_USERS and not name.startswith("systemd-")
    assert name not in ("user", "ann")


@pytest.mark.parametrize(
    ("person", "name"),
    [
        ("Ann.Lee@bank.example", "ann-lee"),
        ("jürgen+hpc@bank.example", "jurgen-hpc"),
        ("root@bank.example", "root"),
        ("", "user"),
        ("a" * 40, "a" * 24),
    ],
)
def test_a_name_is_taken_from_the_address(person: str, name: str) -> None:
    assert linux_name(person) == name


def test_the_next_name_is_free() -> None:
    assert free_name("root@x", ()) == "root-2"
    assert free_name("ann@x", {"ann", "ann-2"}) == "ann-3"


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as running:
        running.engine.responder = respond_as_login_node
        yield running


IAM, OWN = "nebius.iam.v1", "neocloud.iam.v1"


async def make_group(cloud: FakeCloud, name: str = "quants") -> str:
    request = {"metadata": {"parent_id": cloud.tenant_id, "name": name}}
    return (await cloud.call(f"{IAM}.GroupService/Create", request)).resource_id


async def make_person(cloud: FakeCloud, email: str) -> str:
    request = {"parent_id": cloud.tenant_id, "email": email}
    return (await cloud.call(f"{OWN}.UserService/Create", request)).tenant_user_account_id


async def join(cloud: FakeCloud, group: str, person: str) -> str:
    request = {"metadata": {"parent_id": group}, "spec": {"member_id": person}}
    return (await cloud.call(f"{IAM}.GroupMembershipService/Create", request)).resource_id


async def leave(cloud: FakeCloud, membership: str) -> None:
    await cloud.call(f"{IAM}.GroupMembershipService/Delete", {"id": membership})


async def with_groups(cloud: FakeCloud, *groups: str):
    cluster = await cloud.create_cluster(count=1)
    await name_groups(cloud, cluster, *groups)
    return cluster


async def name_groups(cloud: FakeCloud, cluster, *groups: str) -> None:
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(spec=cluster.spec)
    request.metadata.id = cluster.metadata.id
    request.spec.group_ids.extend(groups)
    await cloud.call("ClusterService/Update", request)


async def until_users(cloud: FakeCloud, cluster, *names: str):
    def has_them(seen) -> bool:
        return sorted(user.name for user in seen.status.users if user.uid) == sorted(names)

    return await cloud.when(cluster.metadata.id, has_them)


def numbers(cluster) -> dict[str, int]:
    return {user.name: user.uid for user in cluster.status.users}


async def test_a_person_keeps_name_and_number_and_nobody_else_ever_gets_them(cloud):
    """SJOB-08: not by the same name, not by an address that was given away, not as a user of the spec."""
    group = await make_group(cloud)
    ann = await make_person(cloud, "ann@bank.example")
    first = await join(cloud, group, ann)
    cluster = await with_groups(cloud, group)
    cluster = await until_users(cloud, cluster, "ann")
    assert numbers(cluster) == {"ann": 5000} and cluster.status.users[0].account_id == ann
    await leave(cloud, first)
    cluster = await until_users(cloud, cluster)
    assert [(user.name, user.uid) for user in cluster.status.former_users] == [("ann", 5000)]

    second = await make_person(cloud, "Ann@other.example")
    await join(cloud, group, second)
    cluster = await until_users(cloud, cluster, "ann-2")
    assert numbers(cluster) == {"ann-2": 5001}
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(spec=cluster.spec)
    request.metadata.id = cluster.metadata.id
    request.spec.users.add(name="ann")
    refused = await cloud.refusal("ClusterService/Update", request)
    assert "was, the user of a person in a group" in refused.message
    await join(cloud, group, ann)
    cluster = await until_users(cloud, cluster, "ann", "ann-2")
    assert numbers(cluster) == {"ann": 5000, "ann-2": 5001} and not cluster.status.former_users


async def test_who_is_blocked_or_deleted_is_no_user_any_more(cloud):
    group = await make_group(cloud)
    people = [await make_person(cloud, f"{name}@bank.example") for name in ("ann", "bob")]
    for person in people:
        await join(cloud, group, person)
    cluster = await with_groups(cloud, group)
    await until_users(cloud, cluster, "ann", "bob")
    await cloud.call(f"{IAM}.TenantUserAccountService/Block", {"id": people[0]})
    await until_users(cloud, cluster, "bob")
    await cloud.call(f"{OWN}.UserService/Delete", {"id": people[1]})
    await until_users(cloud, cluster)


async def test_a_deleted_group_has_no_people_and_holds_up_no_change(cloud):
    group = await make_group(cloud)
    membership = await join(cloud, group, await make_person(cloud, "ann@bank.example"))
    cluster = await with_groups(cloud, group)
    await until_users(cloud, cluster, "ann")
    await leave(cloud, membership)
    await cloud.call(f"{IAM}.GroupService/Delete", {"id": group})
    cluster = await until_users(cloud, cluster)
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(spec=cluster.spec)
    request.metadata.id = cluster.metadata.id
    request.spec.node_sets[0].count = 2
    await cloud.call("ClusterService/Update", request)
    await cloud.when(cluster.metadata.id, lambda seen: len(seen.status.nodes) == 2)


@pytest.mark.parametrize("group_id", ["group-e00nobody", "tenant", "project", "serviceaccount"])
async def test_what_is_no_group_of_the_tenant_is_refused(cloud, group_id):
    ids = {"tenant": cloud.tenant_id, "project": cloud.project_id}
    cluster = await cloud.create_cluster(count=1)
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(spec=cluster.spec)
    request.metadata.id = cluster.metadata.id
    request.spec.group_ids.append(ids.get(group_id, group_id))
    refused = await cloud.refusal("ClusterService/Update", request)
    assert refused.code in (
        contract.Code.INVALID_ARGUMENT,
        contract.Code.PERMISSION_DENIED,
        contract.Code.NOT_FOUND,
    )


async def test_an_account_that_root_made_stays_roots_and_no_key_opens_it(cloud):
    """The script finds an account of the name: the person gets the next name, and keys under that alone."""
    asked: list[str] = []
    published: list[set[str]] = []

    def login_node(pod, container, command, stdin):
        if ADD_USER not in command:
            return respond_as_login_node(pod, container, command, stdin)
        published.append(opened_by_keys(cloud, cluster))
        asked.extend(command[command.index(ADD_USER) + 2 :])
        if asked[-1].startswith("ann:"):
            return ExecResult(0, b"taken ann\n", b"")
        return respond_as_login_node(pod, container, command, stdin)

    group = await make_group(cloud)
    ann = await make_person(cloud, "ann@bank.example")
    await cloud.running.store.write(lambda tx: put_ssh_keys(tx, ann, [public_key()]))
    await join(cloud, group, ann)
    cluster = await cloud.create_cluster(count=1)
    cloud.engine.responder = login_node
    await name_groups(cloud, cluster, group)
    cluster = await until_users(cloud, cluster, "ann-2")
    assert asked == [f"ann:5000:free:{ann}", f"ann-2:5000:free:{ann}"]
    assert published == [{"root"}, {"root"}]
    await until(lambda: opened_by_keys(cloud, cluster) == {"root", "ann-2"})


def opened_by_keys(cloud: FakeCloud, cluster) -> set[str]:
    """The users that keys of the cluster open."""
    keys = cloud.world.objects[Reference("ConfigMap", cluster.metadata.id, "login-keys")].to_dict()["data"]
    return {name for name, lines in keys.items() if lines or name == "root"}


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 020A000A:0016 030A000A:D431 01 00000000:00000000 00:00000000 00000000     0        0 2
   2: 020A000A:D9F2 040A000A:0016 01 00000000:00000000 00:00000000 00000000     0        0 3
   3: 020A000A:0016 030A000A:D432 06 00000000:00000000 00:00000000 00000000     0        0 4
"""


def test_sessions_are_the_open_connections_to_sshd() -> None:
    assert sessions_in(TABLE) == 1
    assert sessions_in("") == sessions_in("cat: not found") == -1
