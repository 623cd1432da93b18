"""People of IAM groups as users of a cluster, and login nodes that are drained while sessions are open."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud, open_client, run
from tests.e2e.cluster import Cluster

PASSWORD = "correct horse battery staple"
IAM = "nebius.iam.v1"
CLUSTERS = "neocloud.slurm.v1.ClusterService"


@pytest.fixture(autouse=True)
def idle(bank: Cluster) -> None:
    bank.wait_until_idle()


class Person:
    """Somebody with an account, a configuration folder and an SSH key of their own."""

    def __init__(self, bank: Cluster, email: str) -> None:
        self.bank, self.email = bank, email
        self.folder = bank.cloud.folder / email.replace("@", "-at-").replace("/", "-")
        self.folder.mkdir()
        # Not the profile of the cloud's own machine, which NEOCLOUD_HOME names.
        own = {"XDG_CONFIG_HOME": str(self.folder), "NEOCLOUD_HOME": ""}
        self.cloud = replace(bank.cloud, variables=own)
        create = ("user", "create", email, "--password-stdin", "--output", "json")
        created = json.loads(bank.cloud.neo(*create, stdin=f"{PASSWORD}\n").stdout)
        self.id = created["tenant_user_account_id"]
        self.cloud.neo(
            *("login", email, "--password-stdin", "--endpoint", bank.cloud.server["grpc"]),
            stdin=f"{PASSWORD}\n",
        )
        self.key = self.new_key("key")

    def new_key(self, name: str) -> Path:
        key = self.folder / name
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
        return key

    def ssh(self, user: str, command: str, key: Path | None = None) -> subprocess.CompletedProcess[str]:
        identity = str(key or self.key)
        options = ("slurm", "cluster", "ssh-config", self.bank.name, "--user", user, "--identity", identity)
        config = self.folder / "ssh.config"
        config.write_text(self.bank.cloud.neo(*options).stdout)
        words = ["ssh", "-F", config, self.bank.name, command]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, input="")

    def gets_in(self, user: str) -> bool:
        return self.ssh(user, "true").returncode == 0

    def is_refused(self, user: str) -> bool:
        return "Permission denied" in self.ssh(user, "true").stderr


class People:
    """A group of the tenant, and who is in it."""

    def __init__(self, cloud: Cloud, tenant_id: str) -> None:
        self.cloud = cloud
        request = {"metadata": {"parent_id": tenant_id, "name": "quants"}}
        self.id = cloud.call(f"{IAM}.GroupService/Create", request).resource_id
        self.memberships: dict[str, str] = {}

    def add(self, person: Person) -> None:
        request = {"metadata": {"parent_id": self.id}, "spec": {"member_id": person.id}}
        answer = self.cloud.call(f"{IAM}.GroupMembershipService/Create", request)
        self.memberships[person.id] = answer.resource_id

    def remove(self, person: Person) -> None:
        self.cloud.call(f"{IAM}.GroupMembershipService/Delete", {"id": self.memberships.pop(person.id)})

    def delete(self) -> None:
        for membership in self.memberships.values():
            self.cloud.call(f"{IAM}.GroupMembershipService/Delete", {"id": membership})
        self.cloud.call(f"{IAM}.GroupService/Delete", {"id": self.id})


@pytest.fixture
def quants(bank: Cluster) -> Iterator[People]:
    """With two login nodes, so that those who are refused again and again are not kept waiting by sshd."""
    bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--login-nodes", "2")
    wait_until(lambda: bank.try_ssh("true").returncode == 0, "the balancer knows them", seconds=60)
    group = People(bank.cloud, bank.cloud.server["tenant_id"])
    bank.cloud.neo("slurm", "user", "add-group", bank.name, "quants")
    yield group
    bank.cloud.neo("slurm", "user", "remove-group", bank.name, "quants")
    group.delete()
    bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--login-nodes", "1")


def users(bank: Cluster) -> dict[str, dict[str, Any]]:
    return {user["name"]: user for user in bank.cloud.neo_json("slurm", "user", "list", bank.name)}


def test_people_of_a_group_are_users_for_as_long_as_they_are_in_it(
    bank: Cluster, quants: People, record_property
) -> None:
    """SJOB-08: the account, home, number and association come within seconds and go within seconds; the home
    stays, and comes back to the same person. Of two people with one name each has a user of their own."""
    # Neither root's own account nor a home without an account becomes somebody's by a group.
    bank.ssh("useradd --create-home kim && install -d -o 5000 /home/left")
    dora, other = Person(bank, "Dora.Lee@bank.example"), Person(bank, "dora-lee@other.example")
    kim, admin = Person(bank, "kim@bank.example"), Person(bank, "root@bank.example")
    for person in (dora, other, kim, admin):
        person.cloud.neo("user", "add-ssh-key", f"{person.key}.pub")
    begin = time.monotonic()
    for person in (dora, other, kim, admin):
        quants.add(person)
    wait_until(lambda: dora.gets_in("dora-lee"), "dora is in", seconds=60)
    record_property("seconds until four new people may sign in", time.monotonic() - begin)
    for person, name in ((other, "dora-lee-2"), (kim, "kim-2"), (admin, "root-2")):
        wait_until(lambda p=person, n=name: p.gets_in(n), f"{name} is in", seconds=60)
    for name in ("kim", "root", "dora-lee"):
        assert other.is_refused(name) and kim.is_refused(name) and admin.is_refused(name)
    uid = dora.ssh("dora-lee", "id -u; echo mine > mine; stat -c '%U %a' .").stdout.split()[0]
    assert int(uid) > 5000
    assert other.ssh("dora-lee-2", "cat /home/dora-lee/mine").returncode == 1
    job = dora.ssh(
        "dora-lee", "sbatch --parsable --wait --nodes=2 --output=out --wrap 'srun id -u' && cat out"
    )
    assert job.stdout.split()[1:] == [uid, uid], job.stderr
    held = dora.ssh("dora-lee", "sbatch --parsable --output=/dev/null --wrap 'sleep 600'").stdout.strip()
    wait_until(lambda: bank.job_state(held) == "RUNNING", "the job runs", seconds=120)

    begin = time.monotonic()
    quants.remove(dora)
    wait_until(lambda: dora.is_refused("dora-lee"), "dora is out", seconds=60)
    record_property("seconds until a person who left is out", time.monotonic() - begin)
    wait_until(lambda: "dora-lee" not in users(bank), "the account is gone", seconds=60)
    assert bank.wait_for_job(held) == "CANCELLED"
    assert (
        bank.ssh("sacctmgr -nP show association user=dora-lee format=user; cat /home/dora-lee/mine") == "mine"
    )
    newcomer = Person(bank, "dora.lee@third.example")
    newcomer.cloud.neo("user", "add-ssh-key", f"{newcomer.key}.pub")
    quants.add(newcomer)
    wait_until(lambda: newcomer.gets_in("dora-lee-3"), "the newcomer is in", seconds=60)
    assert newcomer.ssh("dora-lee-3", "id -u; cat /home/dora-lee/mine").stdout.strip() != uid
    quants.add(dora)
    wait_until(lambda: dora.gets_in("dora-lee"), "dora is back", seconds=60)
    assert dora.ssh("dora-lee", "id -u; cat mine").stdout.split() == [uid, "mine"]

    dora.cloud.neo("user", "remove-ssh-key", f"{dora.key}.pub")
    wait_until(lambda: dora.is_refused("dora-lee"), "the key is out", seconds=60)
    bank.cloud.neo("user", "block", "kim@bank.example")
    wait_until(lambda: "kim-2" not in users(bank), "a blocked person is out", seconds=60)
    assert bank.ssh("getent passwd dora-lee | cut -d: -f3; userdel --remove kim; rmdir /home/left") == uid


def set_users(bank: Cluster, names: list[str]) -> None:
    """Replace the users of the spec, and wait until the cluster has these and no others."""
    with open_client(bank.cloud) as client:
        cluster = client.call(f"{CLUSTERS}/Get", {"id": bank.id})
        del cluster.spec.users[:]
        for name in names:
            cluster.spec.users.add(name=name)
        request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
            metadata={"id": bank.id}, spec=cluster.spec
        )
        client.call(f"{CLUSTERS}/Update", request, reset_mask=["spec.users"])
    wanted = {"root", *names}
    wait_until(
        lambda: (
            {user for user, shown in users(bank).items() if shown["uid"] is not None} == wanted
            and all(shown["uid"] for user, shown in users(bank).items() if user != "root")
        ),
        f"{len(names)} users are there",
        seconds=400,
    )


@pytest.mark.long
def test_users_come_and_go_by_the_hundred(bank: Cluster, record_property) -> None:
    """SJOB-08"""
    names = [f"student{number}" for number in range(100)]
    for wanted in (names, []):
        begin = time.monotonic()
        set_users(bank, wanted)
        record_property(f"seconds until there are {len(wanted)} users", time.monotonic() - begin)
        known = bank.ssh("sacctmgr -nP show association account=root format=user").split()
        assert {name for name in known if name.startswith("student")} == set(wanted)
    bank.ssh("rm -r /home/student*")


@contextmanager
def open_session(bank: Cluster, node: str) -> Iterator[subprocess.Popen[str]]:
    """A session on this login node, which answers each line with the line."""
    words = ["ssh", "-F", str(bank.ssh_config), bank.name, "hostname; exec cat"]
    pipe = subprocess.PIPE
    while True:
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, bufsize=1) as session:
            try:
                assert session.stdout
                if session.stdout.readline().strip() == node:
                    yield session
                    return
            finally:
                session.kill()


def answers(session: subprocess.Popen[str]) -> bool:
    assert session.stdin and session.stdout
    try:
        session.stdin.write("there?\n")
    except BrokenPipeError:
        return False
    return session.stdout.readline() == "there?\n"


def hosts(bank: Cluster, times: int) -> set[str]:
    """The nodes of so many new sessions, each of which must succeed."""
    return {bank.ssh("hostname") for _ in range(times)}


@pytest.mark.long
def test_a_drained_login_node_keeps_its_sessions_and_gets_no_new_ones(bank: Cluster) -> None:
    """SLURM-03: two login nodes; drained, resumed, one that stops answering, and removed after its last
    session while a session on the other stays."""
    bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--login-nodes", "2")
    wait_until(lambda: len(hosts(bank, 4)) == 2, "sessions go to both", seconds=120)
    with open_session(bank, "login-0") as other:
        with open_session(bank, "login-1") as session:
            bank.cloud.neo("slurm", "login", "drain", bank.name, "login-1")
            wait_until(lambda: hosts(bank, 6) == {"login-0"}, "new sessions go elsewhere", seconds=60)
            assert hosts(bank, 8) == {"login-0"}
            assert answers(session) and answers(other)
            waited = bank.cloud.neo("slurm", "login", "drain", bank.name, "login-1", "--wait", "5", code=1)
            assert "1 session open on login-1" in waited.stderr
            refused = bank.cloud.neo("slurm", "login", "drain", bank.name, "login-0", code=None)
            assert refused.returncode and "one login node must take new sessions" in refused.stderr
            bank.cloud.neo("slurm", "login", "resume", bank.name, "login-1")
            wait_until(lambda: len(hosts(bank, 4)) == 2, "it gets sessions again", seconds=60)
            assert answers(session) and answers(other)
            bank.cloud.neo("slurm", "login", "drain", bank.name, "login-1")
        bank.cloud.neo("slurm", "login", "drain", bank.name, "login-1", "--wait", "60")
        bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--login-nodes", "1")
        assert answers(other), "a session on the node that stays"
        assert hosts(bank, 3) == {"login-0"}
        bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--login-nodes", "2")
        wait_until(lambda: len(hosts(bank, 4)) == 2, "sessions go to both", seconds=120)
        assert answers(other)
        bank.in_pod("login-1", "pkill", "-STOP", "-o", "-x", "sshd")  # it accepts, and says nothing
        wait_until(lambda: quick_hosts(bank, 6) == {"login-0"}, "it is left out", seconds=60)
        bank.in_pod("login-1", "pkill", "-CONT", "-o", "-x", "sshd")
        wait_until(lambda: len(hosts(bank, 4)) == 2, "it is back", seconds=60)
    bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--login-nodes", "1")
    bank.wait_until_idle()


def quick_hosts(bank: Cluster, times: int) -> set[str]:
    """The nodes of new sessions; "" stands for one that has not begun within a second or two."""
    words = ["ssh", "-F", str(bank.ssh_config), "-o", "ConnectTimeout=2", bank.name, "hostname"]
    said = [
        subprocess.run(words, capture_output=True, text=True, check=False, timeout=60) for _ in range(times)
    ]
    return {done.stdout.strip() for done in said}
