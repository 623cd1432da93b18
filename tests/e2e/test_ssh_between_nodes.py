"""Users of a cluster, and ssh to its workers: where a user has a job, without a password, while it runs."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import run
from tests.e2e.cluster import SHARED, Cluster, user_key

WORKERS = ("worker-0", "worker-1")


@pytest.fixture(autouse=True)
def idle(bank: Cluster) -> None:
    bank.wait_until_idle()


@pytest.fixture(scope="module")
def ann(bank: Cluster) -> Iterator[str]:
    """A user who may submit jobs, and signs in with her own key."""
    key = new_key(bank, "ann")
    said = bank.cloud.neo("slurm", "user", "add", bank.name, "ann", "--ssh-key", f"{key}.pub").stdout
    assert "neo slurm cluster ssh bank --user ann" in said
    yield "ann"
    bank.cloud.neo("slurm", "user", "remove", bank.name, "ann", "--yes")
    bank.ssh("rm -r /home/ann")


def new_key(bank: Cluster, name: str) -> Path:
    key = bank.cloud.folder / "user" / name
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
    return key


def sign_in(bank: Cluster, user: str, command: str, key: str = ""):
    """Run a command in a session of this user, with the key of this name or the user's own."""
    identity = bank.cloud.folder / "user" / (key or user)
    config = identity.with_suffix(f".{user}.config")
    if not config.exists():
        options = ("--user", user, "--identity", str(identity))
        config.write_text(bank.cloud.neo("slurm", "cluster", "ssh-config", bank.name, *options).stdout)
    words = ["ssh", "-F", config, bank.name, command]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, input="")


def as_ann(bank: Cluster, command: str):
    return sign_in(bank, "ann", command)


def test_in_a_job_ssh_reaches_each_node_of_it_without_a_password(bank: Cluster) -> None:
    """It runs as root; all nodes at once, as a launcher of MPI does."""
    bank.ssh("rm -rf ~/.ssh/neocloud")
    output = bank.run_job(
        "for node in worker-0 worker-1; do ssh -o BatchMode=yes $node 'hostname; pwd; id -un' & done; wait",
        "--nodes=2",
        "--ntasks-per-node=1",
    )
    assert sorted(output.split()) == ["/root", "/root", "root", "root", *WORKERS]


def test_a_user_without_a_job_on_the_node_is_refused_and_told_why(bank: Cluster, ann: str) -> None:
    """Neither root nor another user; a job on one node opens only that node."""
    for node in WORKERS:
        refused = bank.try_ssh(f"ssh -o BatchMode=yes {node} hostname")
        assert refused.returncode == 255
        assert f"root has no job that runs on {node}" in refused.stderr
    job = bank.sbatch("sleep 600", "--nodelist=worker-1", "--mem=50M")
    try:
        wait_until(lambda: bank.job_state(job) == "RUNNING", "the job runs", seconds=120)
        assert bank.ssh("ssh -o BatchMode=yes worker-1 hostname") == "worker-1"
        assert bank.try_ssh("ssh -o BatchMode=yes worker-0 hostname").returncode == 255
        assert through_the_login_node(bank, "worker-1", "hostname") == "worker-1\n"
        others = as_ann(bank, "ssh -o BatchMode=yes worker-1 hostname")
        assert others.returncode == 255
        assert "ann has no job that runs on worker-1" in others.stderr
    finally:
        bank.ssh(f"scancel {job}")


def through_the_login_node(bank: Cluster, node: str, command: str) -> str:
    """From the user's machine, with the user's own key."""
    options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")
    key = str(user_key(bank.cloud))
    return run(["ssh", "-F", bank.ssh_config, "-J", bank.name, "-i", key, *options, f"root@{node}", command])


def test_a_session_ends_with_the_job_and_so_does_what_it_left_behind(bank: Cluster, ann: str) -> None:
    """A user loses every process; root the session and its processes."""
    submit = "sbatch --parsable --nodelist=worker-1 --mem=50M --output=/dev/null --wrap 'sleep 600'"
    of_ann = int(as_ann(bank, submit).stdout)
    of_root = int(bank.ssh(submit))
    for job in (of_ann, of_root):
        wait_until(lambda job=job: bank.job_state(job) == "RUNNING", "the job runs", seconds=120)
    left = "ssh -o BatchMode=yes worker-1 'nohup setsid sleep 7001 >/dev/null 2>&1 & echo left'"
    assert as_ann(bank, left).stdout == "left\n"
    session = f"ssh -o BatchMode=yes worker-1 'sleep 7002' >{SHARED}/session 2>&1 </dev/null &"
    bank.ssh(session)
    wait_until(lambda: len(sleeping(bank)) == 2, "both sleep on the worker", seconds=60)
    bank.ssh(f"scancel {of_ann}")
    wait_until(lambda: sleeping(bank) == {"7002"}, "ann's process is gone, and root's is not", seconds=60)
    bank.ssh(f"scancel {of_root}")
    wait_until(lambda: sleeping(bank) == set(), "root's session is gone", seconds=60)


def sleeping(bank: Cluster) -> set[str]:
    """The numbers of seconds that processes on worker-1 sleep, of those that these tests leave there."""
    said = bank.in_pod("worker-1", "ps", "-eo", "args=")
    return {line.split()[1] for line in said.splitlines() if line.startswith("sleep 700")}


def test_the_key_of_the_nodes_does_not_open_the_login_node_and_belongs_to_its_user(
    bank: Cluster, ann: str
) -> None:
    """A key that opens workers inside the cluster is useless outside, and to every other user."""
    assert (
        bank.run_job("ssh -o BatchMode=yes $(hostname) true && stat -c %a ~/.ssh/neocloud/id_ed25519")
        == "600"
    )
    options = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    said = bank.try_ssh(f"ssh {options} -i ~/.ssh/neocloud/id_ed25519 127.0.0.1 true")
    assert said.returncode == 255 and "Permission denied" in said.stderr
    assert as_ann(bank, "cat /root/.ssh/neocloud/id_ed25519").returncode == 1


def test_the_sshd_of_a_worker_comes_back_when_root_in_a_job_kills_it(bank: Cluster) -> None:
    bank.run_job("pkill -x sshd; sleep 0.1; until ssh -o BatchMode=yes $(hostname) true; do sleep 0.2; done")


def test_a_user_signs_in_and_is_the_same_everywhere(bank: Cluster, ann: str) -> None:
    """SJOB-08: one number on every node; a home of her own; jobs and their files are hers."""
    uid = as_ann(bank, "id -u").stdout.strip()
    assert int(uid) >= 5000
    script = "srun id -u 2>/dev/null; srun id -un 2>/dev/null"
    job = f"sbatch --parsable --wait --nodes=2 --output=mine --wrap '{script}'"
    submitted = as_ann(bank, f"{job} && cat mine && stat -c '%U %a' . mine")
    assert submitted.returncode == 0, submitted.stderr
    number, *lines = submitted.stdout.splitlines()
    assert lines == [uid, uid, "ann", "ann", "ann 700", "ann 664"]
    wait_until(
        lambda: bank.ssh(f"sacct -nXP -j {number} -o User,State") == "ann|COMPLETED", "it is in accounting"
    )
    assert as_ann(bank, "cat /root/.ssh/authorized_keys; scontrol shutdown; touch /etc/mine").returncode != 0
    assert bank.ssh("sinfo --noheader --format=%D") and bank.try_ssh("ls /etc/mine").returncode != 0
    listed = {user["name"]: user for user in bank.cloud.neo_json("slurm", "user", "list", bank.name)}
    assert listed["ann"]["uid"] == int(uid) and listed["root"]["uid"] == 0


def test_a_key_that_is_added_later_is_accepted_in_seconds_and_a_removed_one_no_more(
    bank: Cluster, ann: str, record_property
) -> None:
    key = new_key(bank, "laptop")
    for user in ("root", ann):
        assert "Permission denied" in sign_in(bank, user, "true", "laptop").stderr
        begin = time.monotonic()
        bank.cloud.neo("slurm", "user", "add", bank.name, user, "--ssh-key", f"{key}.pub")
        wait_until(
            lambda user=user: sign_in(bank, user, "true", "laptop").returncode == 0,
            "it is accepted",
            seconds=60,
        )
        seconds = time.monotonic() - begin
        record_property(f"seconds until a new key of {user} is accepted", seconds)
        bank.cloud.neo("slurm", "user", "remove", bank.name, user, "--ssh-key", f"{key}.pub")
        wait_until(
            lambda user=user: sign_in(bank, user, "true", "laptop").returncode == 255,
            "it is refused",
            seconds=60,
        )
        assert sign_in(bank, user, "true", "id_ed25519" if user == "root" else user).returncode == 0


def test_a_removed_user_is_out_with_jobs_and_sessions_and_gets_the_home_back_when_added_again(
    bank: Cluster,
) -> None:
    key = new_key(bank, "bob")
    add = ("slurm", "user", "add", bank.name, "bob", "--ssh-key", f"{key}.pub")
    bank.cloud.neo(*add)
    job = sign_in(bank, "bob", "id -u > number; sbatch --parsable --output=/dev/null --wrap 'sleep 600'")
    number = int(job.stdout)
    wait_until(lambda: bank.job_state(number) == "RUNNING", "the job runs", seconds=120)
    bank.cloud.neo("slurm", "user", "remove", bank.name, "bob", "--yes")
    assert sign_in(bank, "bob", "true").returncode == 255
    assert bank.try_ssh("id bob").returncode != 0
    assert bank.wait_for_job(number) == "CANCELLED"
    bank.wait_until_idle()
    bank.cloud.neo(*add)
    assert sign_in(bank, "bob", "cat number; id -u").stdout.split() == [bank.ssh("cat /home/bob/number")] * 2
    bank.cloud.neo("slurm", "user", "remove", bank.name, "bob", "--yes")
    bank.ssh("rm -r /home/bob")


def test_an_account_of_the_system_is_no_user(bank: Cluster) -> None:
    """Also one that root made in the shared root: the reason is shown, and the cluster stays READY."""
    refused = bank.cloud.neo("slurm", "user", "add", bank.name, "slurm", code=None)
    assert refused.returncode and "an account of the system" in refused.stderr
    bank.ssh("useradd --system inner")
    refused = bank.cloud.neo("slurm", "user", "add", bank.name, "inner", code=None)
    assert refused.returncode and "inner is an account of the system" in refused.stderr
    assert bank.state == "READY"
    bank.cloud.neo("slurm", "user", "remove", bank.name, "inner", "--yes")
    assert bank.ssh("id -un inner; userdel inner") == "inner"


def test_sessions_go_to_a_login_node_that_answers(bank: Cluster) -> None:
    """SLURM-03: one address and host key before two login nodes; one of them fails; back to one."""
    bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--login-nodes", "2")
    try:
        seen: set[str] = set()

        def both() -> bool:
            done = bank.try_ssh("hostname")
            seen.update(done.stdout.split())
            return seen == {"login-0", "login-1"}

        wait_until(both, "sessions go to both", seconds=120)
        shown = bank.cloud.neo("slurm", "cluster", "get", bank.name).stdout
        assert "login-1" in shown and "balancer-0" in shown
        bank.remove_pods("login-1")
        said = [bank.try_ssh("hostname") for _ in range(6)]
        assert all(done.returncode == 0 for done in said), [done.stderr for done in said]
        wait_until(lambda: bank.try_ssh("hostname").stdout == "login-1\n", "it is back", seconds=240)
    finally:
        bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--login-nodes", "1")
    assert bank.ssh("hostname") == "login-0"
    bank.wait_until_idle()
