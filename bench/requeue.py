"""Measure how long a job stops when its worker is killed, many times.

    python bench/requeue.py [--kills 20] [--record FILE]    # a real cloud: root and Podman

A cluster of two workers has a job that writes a line when it begins and then sleeps. At a random moment the
first process of the worker that has the job is killed (SIGKILL, behind the back of the control plane); the
time until the job's next line counts. When the line is not there after a minute, what Slurm and the control
plane say is printed, and the bench waits on. `--record` adds the seconds to a file and reports all that are
in it, so that a long measurement can be done in parts.

`--controller` kills slurmctld instead, within the five seconds after a job's start in which it may not have
saved that the job runs; the time until the job runs as far as slurmctld knows counts. Nothing may be held.
The job begins seconds after it was submitted, once slurmctld has saved it: one that it has not saved is lost.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the clouds of the tests are those of this bench

from neocloud.testing.waiting import wait_until  # noqa: E402
from tests.e2e.cloud import Cloud  # noqa: E402
from tests.e2e.cluster import SHARED, Cluster  # noqa: E402

IMAGES = ROOT / ".cache" / "images"
AIM_SECONDS = 60.0
GIVE_UP_SECONDS = 400.0
LONGEST_PAUSE_SECONDS = 5.0
RUNS = f"{SHARED}/runs"
"""Each line is the moment when the job began, and the worker."""
UNTIL = "until [ $(wc -l < {file}) -ge {lines} ]; do sleep 0.05; done; tail -n 1 {file}"
MARK = "/tmp/not-submitted-yet"
UNTIL_SAVED = f"until [ /var/lib/slurm/slurmctld/job_state -nt {MARK} ]; do sleep 0.1; done"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--controller", action="store_true")
    parser.add_argument("--images", type=Path, default=IMAGES)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    found: list[float] = []
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with running_cluster(given.images.absolute()) as cluster:
        measure = controller_kills if given.controller else worker_kills
        for seconds in measure(cluster, given.kills):
            print(f"{seconds:.1f}", end=" ", flush=True)
            if given.record:
                with given.record.open("a") as file:
                    file.write(json.dumps(seconds) + "\n")
            else:
                found.append(seconds)
        print()
    report([json.loads(line) for line in given.record.read_text().split()] if given.record else found)


@contextmanager
def running_cluster(images: Path) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-") as folder:
        cloud = Cloud.prepare(Path(folder) / "cloud", images)
        try:
            cloud.up()
            cluster = Cluster.create(cloud, "bench", "--workers", "2", "--preset", "1vcpu-2gb")
            cluster.wait_until_idle()
            yield cluster
        finally:
            cloud.neo("destroy", "--yes")


def worker_kills(cluster: Cluster, kills: int) -> Iterator[float]:
    """Yield the seconds until the job runs again."""
    cluster.ssh(f"rm -f {RUNS}; touch {RUNS}")
    body = f'trap exit TERM; echo "$(date +%s.%N) $(hostname)" >> {RUNS}; sleep 3600 & wait'
    job = cluster.sbatch(body, "--requeue", "--open-mode=append")
    for number in range(1, kills + 1):
        _, worker = next_run(cluster, job, number)
        time.sleep(random.uniform(0, LONGEST_PAUSE_SECONDS))
        began = time.time()
        kill_first_process(cluster, cluster.container(worker))
        again, _ = next_run(cluster, job, number + 1)
        yield again - began
    cluster.ssh(f"scancel {job}")


def next_run(cluster: Cluster, job: int, number: int) -> tuple[float, str]:
    """Return when and where the job's run of this number began."""
    command = UNTIL.format(file=RUNS, lines=number)
    said = cluster.try_ssh(f"timeout {AIM_SECONDS:.0f} bash -c '{command}'", seconds=AIM_SECONDS + 60)
    if said.returncode:
        print(f"\nrun {number} has not begun:\n{evidence(cluster, job)}", flush=True)
        said = cluster.try_ssh(f"timeout {GIVE_UP_SECONDS:.0f} bash -c '{command}'", seconds=GIVE_UP_SECONDS)
    if said.returncode:
        raise SystemExit(f"run {number} has not begun after {AIM_SECONDS + GIVE_UP_SECONDS:.0f} s")
    moment, worker = said.stdout.split()
    return float(moment), worker


def evidence(cluster: Cluster, job: int) -> str:
    controller = next(name for name in cluster.containers("controller-0") if name.endswith(".controller"))
    parts = [
        cluster.try_ssh(f"scontrol show job {job}; sinfo -N -o '%N %T %E'; squeue").stdout,
        json.dumps(cluster.record["status"], indent=1),
        "\n".join(cluster.logs(controller).splitlines()[-80:]),
        (cluster.cloud.home / "log" / "server.log").read_text()[-8000:],
    ]
    return "\n---\n".join(parts)


def controller_kills(cluster: Cluster, kills: int) -> Iterator[float]:
    """Yield the seconds until the job that had just begun runs as far as slurmctld knows, still or again."""
    go = f"{SHARED}/go"
    for _ in range(kills):
        cluster.ssh(f"rm -f {go}")
        controller = next(name for name in cluster.containers("controller-0") if name.endswith(".controller"))
        cluster.cloud.podman("exec", controller, "touch", MARK)
        job = cluster.sbatch(f"until [ -e {go} ]; do sleep 0.1; done", "--begin=now+7")
        cluster.cloud.podman("exec", controller, "timeout", "60", "sh", "-c", UNTIL_SAVED)
        wait_until(lambda job=job: state_of(cluster, job) == "RUNNING", "the job runs")
        time.sleep(random.uniform(0, LONGEST_PAUSE_SECONDS))
        began = time.time()
        kill_first_process(cluster, controller)
        reach(cluster, job, "RUNNING")
        yield time.time() - began
        cluster.ssh(f"touch {go}")
        reach(cluster, job, "COMPLETED")
        cluster.wait_until_idle()


def reach(cluster: Cluster, job: int, state: str) -> None:
    try:
        wait_until(lambda: state_of(cluster, job) == state, f"job {job} is {state}", seconds=120)
    except AssertionError:
        print(evidence(cluster, job), flush=True)
        raise


def state_of(cluster: Cluster, job: int) -> str:
    said = cluster.try_ssh(f"scontrol --oneliner show job {job}").stdout
    return said.partition("JobState=")[2].split()[0] if "JobState=" in said else ""


def kill_first_process(cluster: Cluster, container: str) -> None:
    os.kill(int(cluster.cloud.podman("inspect", "--format={{.State.Pid}}", container)), signal.SIGKILL)


def report(seconds: list[float]) -> None:
    ordered = sorted(seconds)
    above = [round(each, 1) for each in ordered if each > AIM_SECONDS]
    print(f"{len(ordered)} kills, killed -> the job runs again: median {statistics.median(ordered):.1f} s")
    p90, p99 = (percentile(ordered, percent) for percent in (90, 99))
    print(f"  p90 {p90:.1f} s, p99 {p99:.1f} s, worst {ordered[-1]:.1f} s")
    print(f"  within {AIM_SECONDS:.0f} s: {len(ordered) - len(above)} of {len(ordered)}; the others: {above}")


def percentile(ordered: list[float], percent: int) -> float:
    """Return the smallest value that so many percent of all do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


if __name__ == "__main__":
    main()
