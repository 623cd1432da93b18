"""Workers come and go while jobs run."""

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster


@pytest.fixture
def two_workers(bank: Cluster):
    bank.wait_until_idle()
    yield
    bank.cloud.neo("slurm", "cluster", "scale", "bank", "--workers", "2")
    bank.wait_until_idle()


def test_workers_are_added_and_taken_away_and_a_running_job_ends_first(
    bank: Cluster, two_workers: None
) -> None:
    """SLURM-11: 2, 3, 1; no stale node in `sinfo`; the job on a node that goes is not cut off."""
    scale = ("slurm", "cluster", "scale", "bank", "--workers")
    bank.cloud.neo(*scale, "3")
    bank.wait_until_idle(3)
    job = bank.sbatch(
        f"until [ -e {SHARED}/end ]; do sleep 0.2; done; echo undisturbed", "--nodelist=worker-2"
    )
    wait_until(lambda: bank.job_state(job) == "RUNNING", "the job runs")
    updating = bank.cloud.start_neo(*scale, "1")
    try:
        wait_until(lambda: bank.node_states().get("worker-2") == "draining", "worker-2 drains")
        wait_until(lambda: "worker-1" not in bank.node_states(), "the idle worker-1 is gone")
        assert bank.job_state(job) == "RUNNING"
        assert updating.poll() is None
        bank.ssh(f"touch {SHARED}/end")
        assert updating.wait(240) == 0
    finally:
        bank.ssh(f"touch {SHARED}/end")
        updating.wait(240)
    assert bank.wait_for_job(job) == "COMPLETED"
    assert bank.output_of(job) == "undisturbed"
    assert bank.node_states() == {"worker-0": "idle"}
    assert [node["name"] for node in bank.record["status"]["nodes"]] == ["worker-0"]
    assert bank.containers("worker-1") == bank.containers("worker-2") == []
    bank.ssh(f"rm {SHARED}/end")


@pytest.mark.parametrize("workers", ["-1", "100000", "500"])
def test_an_absurd_count_is_refused_and_changes_nothing(bank: Cluster, workers: str) -> None:
    """SLURM-11."""
    said = bank.cloud.neo("slurm", "cluster", "scale", "bank", f"--workers={workers}", code=None)
    assert said.returncode not in (0, 1) and "Traceback" not in said.stderr
    assert bank.record["spec"]["node_sets"][0]["count"] == "2"
