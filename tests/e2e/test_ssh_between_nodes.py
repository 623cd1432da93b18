"""ssh to the workers of a cluster: where the user has a job, without a password, until the job ends."""

from collections.abc import Iterator

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
    """A Linux user who may submit jobs, and is in no group but her own."""
    bank.ssh(
        "useradd --create-home --shell /bin/bash ann && sacctmgr --immediate add user ann account=root"
        " >/dev/null"
    )
    yield "ann"
    bank.ssh("sacctmgr --immediate remove user ann >/dev/null; pkill -u ann; userdel --force --remove ann")


def as_ann(bank: Cluster, command: str):
    return bank.try_ssh("su --login ann --command bash", stdin=command)


def test_in_a_job_ssh_reaches_each_node_of_it_without_a_password(bank: Cluster) -> None:
    """SLURM-03: as root; all nodes at once, as a launcher of MPI does."""
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
    """Of a user, every process; of root, the session and its processes."""
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
    """What opens workers inside the cluster is of no use outside, and to nobody else."""
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
