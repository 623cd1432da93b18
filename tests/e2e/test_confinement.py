"""A job keeps to what it was given of its node, and one that does not harms no other job beside it."""

import json
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


SUBMOUNTS = ("--submount", "/scratch=1", "--submount", "/fast/ram=1:memory")


@pytest.fixture(scope="module")
def small(bank: Cluster) -> Iterator[Cluster]:
    """A cluster whose two workers have one CPU each, and folders for themselves. `lou` is a user of it."""
    cluster = Cluster.create(bank.cloud, "small", "--workers", "2", "--preset", "1vcpu-2gb", *SUBMOUNTS)
    cluster.wait_until_idle()
    cluster.ssh("useradd --create-home --shell /bin/bash lou; sacctmgr -i add user lou account=root")
    yield cluster
    bank.cloud.neo("slurm", "cluster", "delete", "small", "--yes")


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
    assert (tmp, memory) == (125, 250)  # its share of the memory, of the node's 768 and 1536 MiB


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
    """It runs as a user of its own: the limit of processes is of a user on a node."""
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


CPUS = "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status"


def test_jobs_beside_each_other_run_on_cpus_of_their_own(bank: Cluster) -> None:
    """One CPU of two each, in the batch script and in a step."""
    bank.ssh(f"rm -f {SHARED}/ended")
    work = f"{CPUS}; srun {CPUS}; nproc; until [ -e ended ]; do sleep 0.2; done"
    jobs = [bank.sbatch(work, HERE, SHARE) for _ in range(2)]

    def said(job: int) -> list[str]:
        return bank.try_ssh(f"cat {SHARED}/slurm-{job}.out").stdout.split()  # not there before the job starts

    try:
        wait_until(lambda: all(len(said(job)) == 3 for job in jobs), "both have said it")
    finally:  # or they hold the node for ever
        bank.ssh(f"touch {SHARED}/ended")
    assert [bank.wait_for_job(job) for job in jobs] == ["COMPLETED"] * 2
    bank.ssh(f"rm {SHARED}/ended")
    (first, *of_first), (second, *of_second) = (bank.output_of(job).split() for job in jobs)
    assert {first, second} == {"0", "1"}
    assert (of_first, of_second) == ([first, "1"], [second, "1"])


def test_steps_beside_each_other_run_on_cpus_of_their_own(bank: Cluster) -> None:
    bank.ssh(f"cat > {SHARED}/step", stdin=f"{CPUS}; sleep 3\n")
    step = "srun --exact --ntasks=1 --cpus-per-task=1 --mem=100M sh step &"
    output = bank.run_job(f"{step} {step} wait; nproc", HERE, SHARE, "--cpus-per-task=2").split()
    assert (sorted(output[:2]), output[2]) == (["0", "1"], "2")


def test_workers_of_fewer_cpus_than_the_machine_have_cpus_of_their_own(small: Cluster) -> None:
    """No program can leave its set: the kernel keeps them to these."""
    widen = "import os; os.sched_setaffinity(0, range(1024)); print(*os.sched_getaffinity(0))"
    found = small.ssh(f"srun --nodes=2 --mem=100M python3 -c '{widen}'").splitlines()
    assert len(found) == len(set(found)) == 2 and all(line.isdigit() for line in found), found
    said = small.cloud.neo("slurm", "cluster", "check", "small", "--output", "json", code=None).stdout
    verdicts = {item["check"]: item["verdict"] for item in json.loads(said)}
    assert verdicts["job CPUs"] == "pass"


def test_limits_of_the_login_shell_do_not_become_those_of_jobs(bank: Cluster) -> None:
    bank.ssh(
        f"cd {SHARED} && cat > limits.sbatch",
        stdin="#!/bin/bash\nulimit -n; ulimit -Hn; srun bash -c 'ulimit -n'\n",
    )
    job = bank.ssh(f"cd {SHARED} && ulimit -Sn 256 && sbatch --parsable limits.sbatch")
    assert bank.wait_for_job(job) == "COMPLETED"
    batch, hard, step = bank.output_of(job).split()
    assert batch == hard and step == hard


SUBMOUNT = """
cd {path} && hostname > mine.$(hostname) && ls | wc -l
dd if=/dev/zero of=all bs=1M count=1100 2>&1 | grep -o 'No space left on device'
stat --format=%s all; rm all
df --output=size -m . | tail -n 1
grep -c ' {path} .*nodev' /proc/self/mountinfo
"""


@pytest.mark.parametrize("path", ["/scratch", "/fast/ram"])
def test_each_worker_has_a_submount_of_its_own_that_holds_its_size(small: Cluster, path: str) -> None:
    """SLURM-08, as a user who is not root."""
    for node in ("worker-0", "worker-1"):
        job = f"su - lou -c 'srun --nodelist={node} --mem=500M bash -s'"
        files, said, written, size, mounts = small.ssh(job, stdin=SUBMOUNT.format(path=path)).splitlines()
        assert (files, said, mounts) == ("1", "No space left on device", "1"), "nobody else's files"
        assert 900 << 20 < int(written) <= 1 << 30 and 900 < int(size) <= 1024
    assert small.ssh(f"ls -A {path}") == "", "nothing of it is in the shared root"
    other = f"srun --nodelist=worker-0 --mem=200M sh -c 'cat {path}/mine.worker-0; rm {path}/mine.*'"
    assert small.ssh(other) == "worker-0", "it stays when a job has ended"
    small.ssh(f"srun --nodelist=worker-1 --mem=200M rm {path}/mine.worker-1")


def test_memory_of_a_submount_is_not_promised_to_jobs(small: Cluster) -> None:
    assert small.ssh("sinfo --noheader --partition=main --nodes=worker-0 --format=%m") == "1024"
    refused = small.try_ssh("srun --mem=1500M true")
    assert refused.returncode and "Memory specification can not be satisfied" in refused.stderr
    shown = small.cloud.neo("slurm", "cluster", "get", "small").stdout
    assert "/fast/ram: 1 GiB of each worker, in memory" in shown
