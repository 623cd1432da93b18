"""A job under which its node dies again and again is held, and takes no other job with it each time."""

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import Cluster

ONE = ("--nodelist=worker-1", "--cpus-per-task=1", "--mem=200")
CONTAINER = "worker"


def restarts(bank: Cluster, job: int) -> int:
    said = bank.ssh(f"scontrol --oneliner show job {job}")
    return int(said.partition("Restarts=")[2].split()[0])


def test_a_job_that_three_nodes_died_under_is_held_and_others_were_requeued_once(bank: Cluster) -> None:
    bank.wait_until_idle()
    other = bank.sbatch("sleep 600", *ONE)
    wait_until(lambda: bank.job_state(other) == "RUNNING", "the other job runs")
    bank.ssh("sleep 1.1")  # Slurm knows starts to the second
    killer = bank.sbatch("sleep 600", *ONE)
    try:
        for death in (1, 2, 3):
            wait_until(lambda: bank.job_state(killer) == "RUNNING", "the job runs", seconds=120)
            bank.kill("worker-1", CONTAINER)
            wait_until(lambda death=death: restarts(bank, killer) == death, f"death {death}", seconds=120)
        wait_until(lambda: "JobHeldAdmin" in bank.ssh(f"squeue -h -j {killer} -o %r"), "held", seconds=60)
        said = bank.ssh(f"squeue -h -j {killer} -O admin_comment:120")
        evidence = (
            bank.ssh(f"scontrol show job {killer}")
            + bank.cloud.neo("slurm", "job", "get", "bank", str(killer)).stdout
        )
        assert said.startswith("neocloud: held: its node died 3 times under it (last: worker-1"), evidence
        shown = bank.cloud.neo("slurm", "job", "get", "bank", str(killer)).stdout
        assert "JobHeldAdmin: its node died 3 times under it" in " ".join(shown.split())
        assert shown.count("its node died (worker-1)") == 3
        wait_until(lambda: bank.job_state(other) == "RUNNING", "the other job runs again", seconds=120)
        # Again where the accounting database learns of the first death after the job's next start.
        assert 1 <= restarts(bank, other) <= 2, bank.evidence(other)
        bank.ssh(f"scontrol release {killer}")
        wait_until(lambda: bank.job_state(killer) == "RUNNING", "a released job runs again", seconds=120)
    finally:
        bank.ssh(f"scancel {killer} {other}")
        bank.wait_until_idle()
