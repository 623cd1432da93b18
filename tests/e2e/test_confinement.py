"""A job keeps to what it was given of its node, and one that does not harms no other job beside it."""

from collections.abc import Iterator

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import ENDED, SHARED, Cluster

HERE = "--nodelist=worker-0"
SHARE = "--mem=500M"
"""Of the 4 GB of a node, so that several jobs run beside each other."""


@pytest.fixture(autouse=True, scope="module")
def idle(bank: Cluster) -> None:
    bank.wait_until_idle()


@pytest.fixture
def neighbour(bank: Cluster) -> Iterator[None]:
    """A job that works on worker-0 while another misbehaves there, and must complete."""
    work = "until [ -e ended ]; do echo kept > /tmp/file; cat /tmp/file; sleep 0.2; done | sort -u; echo done"
    bank.ssh(f"rm -f {SHARED}/ended")
    job = bank.sbatch(work, HERE, SHARE)
    wait_until(lambda: bank.job_state(job) == "RUNNING", "the job beside it runs")
    yield
    bank.ssh(f"touch {SHARED}/ended")
    assert bank.wait_for_job(job) == "COMPLETED"
    assert bank.output_of(job).split() == ["kept", "done"]
    bank.ssh(f"rm {SHARED}/ended")
    bank.wait_until_idle()


def test_a_job_that_fills_tmp_and_shared_memory_leaves_those_of_others_alone(
    bank: Cluster, neighbour: None
) -> None:
    fill = "for file in /tmp/all /dev/shm/all; do cat /dev/zero > $file; stat --format=%s $file; done 2>&1"
    said = bank.run_job(fill, HERE, SHARE).splitlines()
    assert [line.rpartition(": ")[2] for line in said[::2]] == ["No space left on device"] * 2
    tmp, memory = (int(line) >> 20 for line in said[1::2])
    assert (tmp, memory) == (125, 250)  # its share of the memory, of the node's 1024 and 2048 MiB


def test_a_job_that_takes_more_memory_than_its_share_is_ended_alone(bank: Cluster, neighbour: None) -> None:
    take = "python3 -c 'import time; held = bytearray(1500 << 20); time.sleep(60); print(len(held))'"
    job = bank.sbatch(take, HERE, SHARE, "--no-requeue")
    assert bank.wait_for_job(job) in ("OUT_OF_MEMORY", "FAILED", "CANCELLED")
    assert str(1500 << 20) not in bank.output_of(job)


FORK = """
import os, signal, time
while True:
    try:
        if not os.fork():
            signal.pause()
    except OSError:
        time.sleep(0.1)
"""


def test_a_job_that_forks_without_end_leaves_the_node_to_others_and_ends_wholly(
    bank: Cluster, neighbour: None
) -> None:
    """As a user of its own: the limit of processes is of a user on a node."""
    manage = "sacctmgr --immediate --quiet add user ben account=root"
    bank.ssh(f"id ben || useradd --create-home ben; {manage} || true")
    bank.ssh("cat > /home/ben/fork.py", stdin=FORK)
    submit = f'sbatch --parsable --no-requeue {HERE} {SHARE} --time=5 --wrap="python3 fork.py"'
    job = bank.ssh(f"cd /home/ben && su ben -c '{submit}'")

    def processes() -> int:
        return bank.in_pod("worker-0", "ps", "ax").count("fork.py")

    wait_until(lambda: processes() > 1000 or bank.job_state(job) in ENDED, "it has forked", seconds=240)
    bank.ssh(f"scancel {job}")
    assert bank.wait_for_job(job) in ("OUT_OF_MEMORY", "FAILED", "CANCELLED")
    wait_until(lambda: not processes(), "its processes have ended", seconds=240)


def test_what_a_job_leaves_behind_goes_with_it(bank: Cluster) -> None:
    """Files in /tmp and /dev/shm, and a process that Slurm has lost: its parent ended before it."""
    leave = "touch /tmp/left /dev/shm/left; (setsid sleep 7777 > /dev/null 2>&1 &); ls /tmp /dev/shm"
    assert bank.run_job(leave, HERE).split() == ["/dev/shm:", "left", "/tmp:", "left"]

    def left() -> str:
        return bank.in_pod("worker-0", "sh", "-c", "ls /tmp /dev/shm /run/neocloud/jobs; ps ax")

    wait_until(lambda: "left" not in left() and "7777" not in left(), "nothing is left on the node")
    assert bank.run_job("ls /tmp /dev/shm", HERE).split() == ["/dev/shm:", "/tmp:"]


def test_steps_of_a_job_share_its_tmp_and_other_jobs_do_not(bank: Cluster) -> None:
    output = bank.run_job("srun touch /tmp/ours; srun ls /tmp; ls /tmp", HERE)
    assert output.split() == ["ours", "ours"]
    assert "ours" not in bank.run_job("ls /tmp", HERE)


def test_limits_of_the_login_shell_do_not_become_those_of_jobs(bank: Cluster) -> None:
    bank.ssh(
        f"cd {SHARED} && cat > limits.sbatch",
        stdin="#!/bin/bash\nulimit -n; ulimit -Hn; srun bash -c 'ulimit -n'\n",
    )
    job = bank.ssh(f"cd {SHARED} && ulimit -Sn 256 && sbatch --parsable limits.sbatch")
    assert bank.wait_for_job(job) == "COMPLETED"
    batch, hard, step = bank.output_of(job).split()
    assert batch == hard and step == hard
