"""A test of a worker that a job ends, watched from the host: for the test and for the bench."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from neocloud.fleet.active.bundle import LOADER, archive
from neocloud.fleet.active.report import Report, decode
from neocloud.services.slurm.render import ENTER_ROOT
from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import Cluster

PREEMPTED_WITHIN_SECONDS = 2.0
BUSY_JOB = "timeout 4 sh -c 'while :; do :; done'; true"
"""It takes the processor that the test has."""
BUSY_SECONDS = 600
STRETCHED = f"from neocloud.fleet.active import cpu; cpu.SDC_SECONDS = {BUSY_SECONDS}; "
"""The known work would go on for minutes, and its deadline with it."""
DEADLINE = (
    "from dataclasses import replace; import neocloud.fleet.active.__main__ as m; "
    f"m.catalogue = lambda c=m.catalogue: [replace(e, seconds={BUSY_SECONDS}) for e in c()]; "
)


@dataclass(frozen=True)
class Preemption:
    """Times after the first process of the job was there."""

    gone_after_s: float
    """When no process of the test was left."""
    queued_s: float
    """From the submission of the job to its first process."""
    job_state: str
    report: Report


def preempt(cluster: Cluster, worker: str) -> Preemption:
    """Start a test that keeps the worker busy, submit a job that does so too, and watch the processes."""
    container = cluster.container(worker)
    program = LOADER.replace("from neocloud", STRETCHED + DEADLINE + "from neocloud", 1)
    command = ["podman", "exec", "-i", container, ENTER_ROOT, "python3", "-I", "-c", program]
    command += ["run", "--check", "cpu_sdc", "--stop-for-jobs", "--host", worker]
    root = int(cluster.cloud.podman("inspect", "--format={{.State.Pid}}", container))
    wait_until(lambda: not tests_of(root, "memfd_create"), "no other test runs")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=cluster.cloud.podman_environment
    ) as started:
        assert started.stdin is not None and started.stdout is not None
        started.stdin.write(archive())
        started.stdin.close()
        wait_until(lambda: len(tests_of(root)) >= 2, "the test and its child run")
        submitted = time.monotonic()
        job = cluster.sbatch(BUSY_JOB, f"--nodelist={worker}", "--time=1")
        try:
            gone_after_s, queued_s = _watch(root, submitted)
        except AssertionError:
            for pid in tests_of(root):
                os.kill(pid, signal.SIGKILL)
            raise
        report = decode(started.stdout.read(), host=worker)
        assert started.wait(30) == 0
    state = cluster.wait_for_job(job)
    return Preemption(gone_after_s, queued_s, state, report)


def start_job(cluster: Cluster, worker: str) -> float:
    """Return the time from the submission of a job to its first process on an idle worker."""
    root = int(cluster.cloud.podman("inspect", "--format={{.State.Pid}}", cluster.container(worker)))
    submitted = time.monotonic()
    job = cluster.sbatch("true", f"--nodelist={worker}", "--time=1")
    deadline = submitted + 60
    while "slurmstepd" not in {name for name, _ in processes(root).values()}:
        assert time.monotonic() < deadline, "the job did not start"
        time.sleep(0.005)
    took = time.monotonic() - submitted
    assert cluster.wait_for_job(job) == "COMPLETED"
    return took


def _watch(root: int, submitted: float) -> tuple[float, float]:
    """Return when the last process of the test ended after the first of the job, and when that came."""
    came = None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if came is None and "slurmstepd" in {name for name, _ in processes(root).values()}:
            came = time.monotonic()
        if not tests_of(root):
            assert came is not None, "the test ended before the job came"
            return time.monotonic() - came, came - submitted
        time.sleep(0.005)
    raise AssertionError("the test did not end")


def tests_of(root: int, marker: str = "SDC_SECONDS") -> list[int]:
    """Return the processes of the long test; with "memfd_create", those of every test."""
    return [pid for pid, (_, line) in processes(root).items() if marker in line]


def processes(root: int) -> dict[int, tuple[str, str]]:
    """Return name and command line of the processes in the PID namespace of a container, by host pid."""
    namespace = os.stat(f"/proc/{root}/ns/pid").st_ino
    found: dict[int, tuple[str, str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "ns" / "pid").stat().st_ino == namespace:
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = ((folder / "comm").read_text().strip(), line)
            except OSError:
                continue  # it has ended
    return found
