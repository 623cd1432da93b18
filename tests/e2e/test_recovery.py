"""What dies comes back: pods of every role, a worker under a running job, the login node's host key."""

import os
import signal
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster


@pytest.fixture(autouse=True)
def idle(bank: Cluster) -> None:
    bank.wait_until_idle()


@pytest.mark.parametrize("pod", ["controller-0", "accounting-0", "login-0", "worker-1"])
def test_a_removed_pod_of_each_role_is_made_again_and_nothing_of_accounting_is_lost(
    bank: Cluster, pod: str
) -> None:
    """SLURM-20."""
    job = bank.sbatch("hostname", f"--job-name=before-{pod}")
    assert bank.wait_for_job(job) == "COMPLETED"
    removed = bank.remove_pods(pod)
    wait_until(lambda: (ids := bank.containers(pod, "ID")) and removed.isdisjoint(ids), "it is made again")
    bank.wait_until_idle(seconds=240)
    assert bank.run_job("hostname", "--nodelist=worker-1") == "worker-1"
    wait_until(
        lambda: (
            bank.try_ssh(f"sacct -nXP -j {job} -o JobName,State").stdout.strip() == f"before-{pod}|COMPLETED"
        ),
        "the job from before is in accounting",
    )


def test_the_login_nodes_host_key_stays_the_same_when_its_pod_is_made_again(bank: Cluster) -> None:
    """SLURM-20: ssh with the keys pinned before, and strict checking, still signs in."""
    bank.write_ssh_config()
    config = bank.ssh_config.read_text()
    pinned = Path(config.partition("UserKnownHostsFile")[2].split()[0])
    before = pinned.read_text()
    bank.remove_pods("login-0")
    wait_until(lambda: bank.try_ssh("hostname").stdout.strip() == "login-0", "ssh signs in again")
    assert "StrictHostKeyChecking yes" in config
    bank.write_ssh_config()
    assert bank.ssh_config.read_text() == config and pinned.read_text() == before


def test_a_lost_workers_running_job_is_requeued_and_finishes(bank: Cluster) -> None:
    """SLURM-20: the machine loses worker-1; its job runs again, and to its end."""
    runs = f"echo run $SLURM_RESTART_COUNT on $(hostname) >> {SHARED}/runs.txt"
    body = f'{runs}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600; echo done'
    bank.ssh(f"rm -f {SHARED}/runs.txt")
    job = bank.sbatch(body, "--nodelist=worker-1", "--requeue", "--open-mode=append")
    wait_until(lambda: bank.try_ssh(f"cat {SHARED}/runs.txt").stdout, "the job runs")
    os.kill(worker_process(bank, "worker-1"), signal.SIGKILL)
    wait_until(
        lambda: bank.ssh(f"cat {SHARED}/runs.txt").splitlines()[1:] == ["run 1 on worker-1"],
        "the job runs again",
        seconds=180,
    )
    assert bank.wait_for_job(job) == "COMPLETED", bank.evidence(job)
    assert bank.output_of(job).split() == ["done"]
    states = bank.ssh(f"sacct --duplicates -nXP -j {job} -o State").split()
    assert states[-1] == "COMPLETED" and len(states) == 2


def worker_process(bank: Cluster, pod: str) -> int:
    """The first process of a worker's pod, as this machine counts."""
    container = bank.container(pod)
    return int(bank.cloud.podman("inspect", "--format={{.State.Pid}}", container))


def test_all_pods_lost_at_once_are_made_again(bank: Cluster) -> None:
    """SLURM-20."""
    bank.remove_pods("controller-0", "accounting-0", "login-0", "worker-0", "worker-1")
    bank.wait_until_idle(seconds=240)
    assert bank.run_job("srun hostname | sort", "--nodes=2").split() == ["worker-0", "worker-1"]
