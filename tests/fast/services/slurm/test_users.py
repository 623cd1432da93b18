"""Users of a cluster with a fake engine: who gets which number, and what a script that fails holds up."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from neocloud.core import contract
from neocloud.emulator.fakes import FakeSlurmApi, respond_as_login_node
from neocloud.engines.base import ExecResult, Reference
from neocloud.services.slurm.reconcile import nodes
from neocloud.services.slurm.types import ADD_USER, REMOVE_USER
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud


class LoginNode:
    """Answers the scripts of the login node; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.broken = ""

    def __call__(
        self, pod: Reference, container: str, command: Sequence[str], stdin: bytes
    ) -> ExecResult | None:
        script = next((place for place, word in enumerate(command) if word in (ADD_USER, REMOVE_USER)), 0)
        if not script:
            return None
        self.asked.append(tuple(command[script:]))
        if self.broken:
            return ExecResult(1, b"", self.broken.encode())
        said = respond_as_login_node(pod, container, command, stdin)
        return said and ExecResult(0, b"noise of a profile\n" + said.stdout, b"")


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as running:
        running.engine.responder = LoginNode()
        yield running


async def set_users(cloud: FakeCloud, cluster, *names: str):
    """Return the cluster when its status has exactly these users."""
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(spec=cluster.spec)
    request.metadata.id = cluster.metadata.id
    del request.spec.users[:]
    for name in names:
        request.spec.users.add(name=name)
    await cloud.call("ClusterService/Update", request, headers={"x-resetmask": "spec.users"})
    return await cloud.when(
        cluster.metadata.id,
        lambda seen: [user.name for user in seen.status.users] == list(names) and not seen.status.reconciling,
    )


def numbers(cluster) -> dict[str, int]:
    return {user.name: user.uid for user in cluster.status.users}


async def test_each_user_gets_a_number_that_no_other_user_ever_has(cloud):
    cluster = await cloud.create_cluster(count=1)
    cluster = await set_users(cloud, cluster, "ann", "bob")
    assert numbers(cluster) == {"ann": 5000, "bob": 5001}
    cluster = await set_users(cloud, cluster, "ann")
    cluster = await set_users(cloud, cluster, "ann", "cid")
    assert numbers(cluster) == {"ann": 5000, "cid": 5002}
    assert (REMOVE_USER, "bob") in cloud.engine.responder.asked


async def test_a_user_without_an_account_has_the_reason_and_workers_come_all_the_same(cloud):
    cluster = await cloud.create_cluster(count=1)
    cloud.engine.responder.broken = "useradd: cannot lock /etc/passwd"
    cluster.spec.node_sets[0].count = 2
    cluster = await set_users(cloud, cluster, "ann")
    (user,) = cluster.status.users
    assert (user.uid, user.message) == (0, "useradd: cannot lock /etc/passwd")
    assert [node.name for node in cluster.status.nodes] == ["worker-0", "worker-1"]
    cloud.engine.responder.broken = ""
    cluster = await set_users(cloud, cluster, "ann", "bob")
    assert numbers(cluster) == {"ann": 5000, "bob": 5001}
    assert not cluster.status.users[0].message


@pytest.mark.parametrize(
    "number", ["0", "-1", "999", "60000", "99999999999999999999", "one", "\u0665\u0660\u0660\u0660", ""]
)
async def test_a_number_that_no_user_can_have_is_not_believed(cloud, number):
    """The scripts run programs of the tenant."""
    cluster = await cloud.create_cluster(count=1)
    printed = f"user ann:{number}:made\n".encode()
    cloud.engine.responder = lambda pod, container, command, stdin: ExecResult(0, printed, b"")
    cluster = await set_users(cloud, cluster, "ann")
    assert numbers(cluster) == {"ann": 0}
    assert cluster.status.last_uid == 0


@pytest.mark.parametrize(("days", "are_read"), [(0, False), (20_000, True)])
async def test_jobs_are_read_only_while_a_node_is_new(cloud, monkeypatch, days: int, are_read: bool):
    """A change of users reconciles the cluster and starts no pod. The fake engine has a clock of the past."""
    reads, known = [], FakeSlurmApi.jobs

    async def jobs(self):
        reads.append(self)
        return await known(self)

    cluster = await cloud.create_cluster(count=1)
    monkeypatch.setattr(nodes, "SETTLED_AFTER", timedelta(days=days))
    monkeypatch.setattr(FakeSlurmApi, "jobs", jobs)
    await set_users(cloud, cluster, "ann")
    assert bool(reads) is are_read
