"""A test of a worker that a job ends, watched from the host: for the test and for the bench."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
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
PORT = 5201
STRETCHED = f"from neocloud.fleet.active import cpu, pair; cpu.SDC_SECONDS = pair.SECONDS = {BUSY_SECONDS}; "
"""The known work and the traffic would continue for minutes, and their deadlines with them."""
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
    root = _root(cluster, worker)
    wait_until(lambda: not tests_of(root, "memfd_create"), "no other test runs")
    with _start(cluster, worker, "run", "--check", "cpu_sdc", "--stop-for-jobs") as started:
        wait_until(lambda: len(tests_of(root)) >= 2, "the test and its child run")
        submitted = time.monotonic()
        job = cluster.sbatch(BUSY_JOB, f"--nodelist={worker}", "--time=1")
        try:
            gone_after_s, queued_s = _watch(root, submitted, [root])
        except AssertionError:
            for pid in tests_of(root):
                os.kill(pid, signal.SIGKILL)
            raise
        assert started.stdout is not None
        report = decode(started.stdout.read(), host=worker)
        assert started.wait(30) == 0
    state = cluster.wait_for_job(job)
    return Preemption(gone_after_s, queued_s, state, report)


def preempt_pair(cluster: Cluster, measuring: str, serving: str) -> Preemption:
    """Start a measurement of two workers that would last for minutes, and submit a job to the one that
    serves: both ends have to be gone."""
    roots = [_root(cluster, name) for name in (measuring, serving)]
    wait_until(lambda: not any(tests_of(root, "memfd_create") for root in roots), "no other test runs")
    common = ("--stop-for-jobs", "--most-seconds", str(BUSY_SECONDS))
    partner = ("--check", "pair_bandwidth", "--partner", f"{serving}:{PORT}")
    with (
        _start(
            cluster, serving, "serve", *common, "--address", "0.0.0.0", "--port", str(PORT), token="t"
        ) as served,
        _start(cluster, measuring, "run", *common, *partner, token="t") as measured,
    ):
        wait_until(
            lambda: all(len(tests_of(root)) >= 2 for root in roots), "both ends and their children run"
        )
        before = _received(roots[1])
        wait_until(lambda: _received(roots[1]) > before + (64 << 20), "one sends to the other")
        submitted = time.monotonic()
        job = cluster.sbatch(BUSY_JOB, f"--nodelist={serving}", "--time=1")
        try:
            gone_after_s, queued_s = _watch(roots[1], submitted, roots)
        except AssertionError:
            for pid in [pid for root in roots for pid in tests_of(root)]:
                os.kill(pid, signal.SIGKILL)
            raise
        assert served.stdout is not None and measured.stdout is not None
        report = decode(served.stdout.read(), host=serving)
        assert decode(measured.stdout.read(), host=measuring).preempted == ""
    return Preemption(gone_after_s, queued_s, cluster.wait_for_job(job), report)


def _root(cluster: Cluster, worker: str) -> int:
    return int(cluster.cloud.podman("inspect", "--format={{.State.Pid}}", cluster.container(worker)))


def _start(cluster: Cluster, worker: str, *arguments: str, token: str = "") -> "subprocess.Popen[bytes]":
    program = LOADER.replace("from neocloud", STRETCHED + DEADLINE + "from neocloud", 1)
    command = ["podman", "exec", "-i", cluster.container(worker), ENTER_ROOT, "python3", "-I", "-c", program]
    command += [arguments[0], "--host", worker, *arguments[1:]]
    environment = cluster.cloud.podman_environment
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert started.stdin is not None
    started.stdin.write(archive(token))
    started.stdin.close()
    return started


def _received(root: int) -> int:
    """Return how many bytes the network of a container has received."""
    rows = (line.split() for line in Path(f"/proc/{root}/net/dev").read_text().splitlines()[2:])
    return sum(int(row[1]) for row in rows if row[0] != "lo:")


def start_job(cluster: Cluster, worker: str) -> float:
    """Return the time from the submission of a job to its first process on an idle worker."""
    root = _root(cluster, worker)
    submitted = time.monotonic()
    job = cluster.sbatch("true", f"--nodelist={worker}", "--time=1")
    deadline = submitted + 60
    while "slurmstepd" not in {name for name, _ in processes(root).values()}:
        assert time.monotonic() < deadline, "the job did not start"
        time.sleep(0.005)
    took = time.monotonic() - submitted
    assert cluster.wait_for_job(job) == "COMPLETED"
    return took


def _watch(root: int, submitted: float, roots: Sequence[int]) -> tuple[float, float]:
    """Return when the last process of the test ended, on any of the workers, after the first of the job on
    one, and when that came."""
    came = None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if came is None and "slurmstepd" in {name for name, _ in processes(root).values()}:
            came = time.monotonic()
        if not any(tests_of(each) for each in roots):
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
