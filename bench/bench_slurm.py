"""Measure how long a cluster takes to be READY, and how long a job stops when its node is lost.

Everything is real and measured as a user sees it: `neo` as a command, jobs in a cluster of two workers. A
worker is lost when its pod is removed without the control plane; once while the control plane runs, which
reports it to Slurm, and once while it is stopped, so that Slurm notices by its own timeouts. Compare the
ratios.

    python bench/bench_slurm.py [--rounds 3]
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the clouds of the tests are those of this bench

from neocloud.testing.waiting import wait_until  # noqa: E402
from tests.e2e.cloud import Cloud, run  # noqa: E402
from tests.e2e.cluster import SHARED, Cluster  # noqa: E402

IMAGES = ROOT / ".cache" / "images"
PUBLISHED_SECONDS = (20 * 60, 30 * 60)
"""The published guide's figure for a managed Slurm cluster (SLURM-12)."""
CONTAINERS = 7
"""The number of pods of a cluster with two workers."""
AIM_SECONDS = 5.0
RUNS = f"{SHARED}/runs"
"""The file in which the job writes when it begins."""

WATCH = """
while true; do
    now=$(date +%s.%N)
    echo "$now $(sinfo --noheader --nodes=worker-1 --partition=main --format=%T)"
    sleep 0.05
done
"""


@dataclass(frozen=True)
class Creation:
    ready: float
    first_output: float


@dataclass(frozen=True)
class Loss:
    """Seconds since the removal was requested."""

    removed: float
    down: float
    runs_again: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default 3)")
    rounds = parser.parse_args().rounds
    for name in ("jail", "slurm"):
        run([sys.executable, ROOT / "images" / name / "build", "--output", IMAGES])
    with running_cloud() as cloud:
        by_hand = [time_empty_containers(cloud) for _ in range(rounds)]
        creations = [time_creation(cloud, number) for number in range(rounds)]
        cluster = Cluster.create(cloud, "bench", "--workers", "2", "--preset", "1vcpu-2gb")
        cluster.write_ssh_config()
        reported = [time_loss_reported(cluster) for _ in range(rounds)]
        alone = time_loss_alone(cluster)
    report(by_hand, creations, reported, alone)


@contextmanager
def running_cloud() -> Iterator[Cloud]:
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-") as folder:
        cloud = Cloud.prepare(Path(folder) / "cloud", IMAGES)
        try:
            cloud.up()
            yield cloud
        finally:
            cloud.neo("destroy", "--yes")


def time_empty_containers(cloud: Cloud) -> float:
    """Return the seconds for the same number of idle containers of the same image, one after another."""
    image = cloud.podman("images", "--format={{.Repository}}:{{.Tag}}").split()[0]
    names = [f"bench-{number}" for number in range(CONTAINERS)]
    begin = time.monotonic()
    for name in names:
        cloud.podman(
            "run", "--detach", "--network=none", f"--name={name}", "--entrypoint=sleep", image, "600"
        )
    seconds = time.monotonic() - begin
    cloud.podman("rm", "--force", "--time=0", *names)
    return seconds


def time_creation(cloud: Cloud, number: int) -> Creation:
    begin = time.monotonic()
    cluster = Cluster.create(cloud, f"new-{number}", "--workers", "2", "--preset", "1vcpu-2gb")
    ready = time.monotonic() - begin
    script = "#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname\n"
    said = cloud.neo("slurm", "job", "submit", cluster.name, "-", stdin=script)
    output = cloud.neo("slurm", "job", "logs", cluster.name, said.stdout.split()[-1], "--follow").stdout
    first_output = time.monotonic() - begin
    assert sorted(output.split()) == ["worker-0", "worker-1"], output
    cloud.neo("slurm", "cluster", "delete", cluster.name, "--yes")
    return Creation(ready, first_output)


def start_job_on_worker_1(cluster: Cluster) -> None:
    """A job that ends when it has run twice, on the worker that is about to be lost."""
    cluster.wait_until_idle()
    cluster.ssh(f"rm -f {RUNS}")
    # The other worker is drained at first; later it may take the job over.
    cluster.ssh("scontrol update nodename=worker-0 state=drain reason=bench")
    body = f"date +%s.%N >> {RUNS}; until [ $(wc -l < {RUNS}) -ge 2 ]; do sleep 0.1; done"
    cluster.sbatch(body, "--requeue")
    wait_until(lambda: cluster.try_ssh(f"cat {RUNS}").stdout, "the job runs")
    cluster.ssh("scontrol update nodename=worker-0 state=resume")
    wait_until(lambda: cluster.node_states()["worker-0"] == "idle", "the other worker is free")


def time_loss(cluster: Cluster, container: str) -> Loss:
    """Remove the worker's only container without the control plane."""
    with watched(cluster) as states:
        begin = time.time()
        cluster.cloud.podman("rm", "--force", "--time=0", container)
        removed = time.time()
        wait_until(lambda: len(cluster.ssh(f"cat {RUNS}").split()) == 2, "the job runs again", seconds=120)
    again = float(cluster.ssh(f"cat {RUNS}").split()[1])
    down = next(float(moment) for moment, state in states if state.startswith("down"))
    return Loss(removed - begin, down - begin, again - begin)


def time_loss_reported(cluster: Cluster) -> Loss:
    start_job_on_worker_1(cluster)
    container = cluster.container("worker-1")
    return time_loss(cluster, container)


def time_loss_alone(cluster: Cluster) -> Loss:
    """Measure Slurm alone: SlurmdTimeout, then cred_expire. The server is stopped; workloads continue."""
    start_job_on_worker_1(cluster)
    container = cluster.container("worker-1")
    os.kill(cluster.cloud.server["pid"], signal.SIGTERM)
    wait_until(lambda: not (cluster.cloud.home / "server.json").exists(), "the server has stopped")
    loss = time_loss(cluster, container)
    cluster.cloud.up()
    return loss


@contextmanager
def watched(cluster: Cluster) -> Iterator[list[tuple[str, str]]]:
    """Record the state of worker-1 in Slurm twenty times a second; the list is filled when the block ends."""
    with tempfile.TemporaryFile("w+") as lines:
        watcher = subprocess.Popen(
            ["ssh", "-F", str(cluster.ssh_config), cluster.name, "bash -s"],
            stdin=subprocess.PIPE,
            stdout=lines,
            text=True,
        )
        assert watcher.stdin is not None
        watcher.stdin.write(WATCH)
        watcher.stdin.close()
        wait_until(lambda: lines.seek(0, 2), "the watcher began")
        seen: list[tuple[str, str]] = []
        try:
            yield seen
        finally:
            watcher.terminate()
            watcher.wait()
            lines.seek(0)
            rows = (line.split() for line in lines)
            seen.extend((row[0], row[1]) for row in rows if len(row) == 2)


def report(by_hand: list[float], creations: list[Creation], reported: list[Loss], alone: Loss) -> None:
    ready = statistics.median(each.ready for each in creations)
    first = statistics.median(each.first_output for each in creations)
    hand = statistics.median(by_hand)
    down = statistics.median(each.down for each in reported)
    again = statistics.median(each.runs_again for each in reported)
    low, high = (seconds / ready for seconds in PUBLISHED_SECONDS)
    print(f"create -> READY                     {ready:6.1f} s  ({[round(c.ready, 1) for c in creations]})")
    print(f"create -> first job's output        {first:6.1f} s")
    print(f"{CONTAINERS} empty containers by hand          {hand:6.1f} s")
    print(f"  READY / by hand                   {ready / hand:6.2f}")
    print(f"  published 20-30 minutes / READY   {low:4.0f} to {high:.0f}")
    print("  (Seconds are possible because the machine, its drivers and the images exist already.)")
    gone = statistics.median(each.removed for each in reported)
    print(f"worker removed (podman rm)          {gone:6.1f} s")
    print(f"lost worker -> DOWN in Slurm        {down:6.1f} s")
    print(f"lost worker -> job runs again       {again:6.1f} s  (aim {AIM_SECONDS:g} s)")
    print(f"the same by Slurm's own timeouts    {alone.down:6.1f} s and {alone.runs_again:.1f} s")
    print(f"  Slurm alone / reported            {alone.runs_again / again:6.1f}")


if __name__ == "__main__":
    main()
