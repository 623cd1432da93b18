"""Workers of an elastic set appear when jobs wait for them and go when they are idle, with real Slurm."""

import os
import signal
from collections.abc import Iterator
from socket import gethostname

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import Cluster

SCALE = ("slurm", "cluster", "scale", "bank", "--workers", "2")


@pytest.fixture
def elastic(bank: Cluster) -> Iterator[Cluster]:
    bank.wait_until_idle()
    bank.cloud.neo(*SCALE, "--min-workers", "1", "--idle-seconds", "5")
    yield bank
    bank.cloud.neo(*SCALE, "--fixed")
    bank.wait_until_idle()


def is_powered_down(bank: Cluster) -> bool:
    return bank.try_node_states() == {"worker-0": "idle", "worker-1": "idle~"}


def test_a_worker_appears_for_a_job_and_goes_when_it_is_idle(elastic: Cluster) -> None:
    """Twice; the control plane is killed while the job waits."""
    wait_until(lambda: is_powered_down(elastic), "worker-1 is powered down")
    wait_until(lambda: elastic.containers("worker-1") == [], "its pod is gone")
    job = elastic.sbatch("hostname", "--nodelist=worker-1")
    os.kill(elastic.cloud.server["pid"], signal.SIGKILL)
    elastic.cloud.up()
    assert elastic.wait_for_job(job) == "COMPLETED"
    assert elastic.output_of(job) == "worker-1"
    wait_until(lambda: is_powered_down(elastic), "worker-1 is powered down again")
    wait_until(lambda: elastic.containers("worker-1") == [], "its pod is gone again")
    checked = elastic.cloud.neo("slurm", "cluster", "check", "bank", code=None)
    assert "powered down" in checked.stdout and checked.returncode == 0, checked.stdout
    assert elastic.run_job("srun hostname | sort", "--nodes=2").split() == ["worker-0", "worker-1"]
    states = elastic.ssh("sacct -nXP -o State | sort -u").split()
    assert "NODE_FAIL" not in states


def test_jobs_wait_while_the_host_is_drained(elastic: Cluster) -> None:
    """And neither a job nor a node fails. The control plane watches this host by its name."""
    cloud = elastic.cloud
    wait_until(lambda: is_powered_down(elastic), "worker-1 is powered down")
    cloud.neo("fleet", "drain", gethostname(), "new firmware")
    try:
        wait_until(
            lambda: elastic.try_node_states().get("worker-1") == "drained~", "Slurm knows of the drain"
        )
        assert "waits for a host: The host is drained" in elastic.ssh("sinfo -R -o %E -h -n worker-1")
        job = elastic.sbatch("hostname", "--nodelist=worker-1")
        wait_until(lambda: "ReqNodeNotAvail" in elastic.ssh(f"squeue -h -j {job} -o %R"), "squeue says why")
        assert elastic.containers("worker-1") == []
        assert elastic.try_node_states()["worker-0"] == "idle", "running jobs continue"
    finally:
        cloud.neo("fleet", "release", gethostname())
    assert elastic.wait_for_job(job) == "COMPLETED"
    states = elastic.ssh(f"sacct -nXP --duplicates -j {job} -o State").split()
    assert states == ["COMPLETED"], "it ran once"
