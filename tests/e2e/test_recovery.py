"""Recovery of killed parts: pods of every role, a worker under a running job, the login node's host key."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster

STATE = "/var/lib/slurm/slurmctld"


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
    if pod == "controller-0":  # a job whose end is not saved yet may run again, as Slurm has it
        wait_until(lambda: is_saved(bank, job), "its end is in the saved state")
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


def in_controller(bank: Cluster, command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command beside slurmctld."""
    name = next(name for name in bank.containers("controller-0") if name.endswith(".controller"))
    return subprocess.run(
        ["podman", "exec", name, "sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=bank.cloud.podman_environment,
    )


def is_saved(bank: Cluster, job: int) -> bool:
    """Return whether slurmctld saved its state later than a job ended."""
    ended = bank.ssh(f"date -d $(sacct -nXP -j {job} -o End) +%s")
    return int(in_controller(bank, f"stat -c %Y {STATE}/job_state").stdout) > int(ended)


@contextmanager
def killed_before_it_saved(bank: Cluster) -> Iterator[list[int]]:
    """slurmctld saves its state every five seconds. Here it cannot, and is killed in the end.

    The next one does not know the jobs that were added to the list.
    """
    settled = bank.sbatch("true")
    assert bank.wait_for_job(settled) == "COMPLETED"
    wait_until(lambda: is_saved(bank, settled), "a state is saved")
    in_the_way = f"{STATE}/job_state.new"
    assert in_controller(bank, f"mkdir {in_the_way}").returncode == 0
    forgotten: list[int] = []
    try:
        yield forgotten
    finally:
        # Stopped first, or it might save just then. Its name changes with a change of the configuration.
        daemon = "-f 'slurmctld [-]D'"
        in_controller(bank, f"pkill -STOP {daemon}; rmdir {in_the_way}; pkill -KILL {daemon}")
    for job in forgotten:
        asked = f"scontrol show job {job}"
        wait_until(lambda asked=asked: "Invalid job id" in bank.try_ssh(asked).stderr, "it is not known")


def test_a_job_that_a_killed_controller_forgot_keeps_its_number(bank: Cluster) -> None:
    """SLURM-20: another one with its number took its place in accounting, and in the file of its output."""
    with killed_before_it_saved(bank) as forgotten:
        job = bank.sbatch("echo forgotten", "--job-name=forgotten")
        assert bank.wait_for_job(job) == "COMPLETED"
        running = bank.sbatch("sleep 600")
        wait_until(lambda: bank.job_state(running) == "RUNNING", "another job runs")
        last = bank.ssh("srun bash -c 'echo $SLURM_JOB_ID'")  # which leaves no files beside the state
        recorded = f"sacct --duplicates -nXP -j {job},{last} -o JobID,JobName,State"
        rows = f"{job}|forgotten|COMPLETED\n{last}|bash|COMPLETED"
        wait_until(lambda: bank.ssh(recorded) == rows, "both that ended are in accounting")
        forgotten += [job, running, int(last)]
    later = bank.sbatch("hostname")
    assert later > max(forgotten)
    assert bank.wait_for_job(later) == "COMPLETED"
    assert bank.ssh(recorded) == rows and bank.output_of(job) == "forgotten"
    conf = "/etc/slurm/slurm.conf"
    linked = "the configuration is that of the cluster again"
    wait_until(lambda: in_controller(bank, f"test -L {conf}").returncode == 0, linked)
    end_forgotten_job(bank, running)


def end_forgotten_job(bank: Cluster, job: int) -> None:
    """Its node has ended it; accounting shows it as running until an administrator says otherwise."""
    node = bank.ssh(f"sacct -nXP -j {job} -o NodeList")
    processes = ("sh", "-c", "ps -eo args= | grep -c '^sleep 600' || true")
    wait_until(lambda: bank.in_pod(node, *processes).strip() == "0", "no node runs it", seconds=120)
    shown = f"sacct -nXP -j {job} -o State,ElapsedRaw"
    assert bank.ssh(shown).startswith("RUNNING|")
    assert str(job) in bank.ssh("sacctmgr -i show runawayjobs")
    assert bank.ssh(shown) == "COMPLETED|0"


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
