"""Measure how long 10,000 short jobs take in a cluster, against Slurm alone.

The same jobs (`true`, in arrays of 1,000, one CPU each) go through a cluster of one worker with two CPUs, and
through slurmctld and slurmd of the same image in one plain container, with the cluster's intervals of
scheduling: no control plane, no accounting, no plugin, no prolog, and an epilog that does nothing. The time
from the first `sbatch` to the end of the last job counts. Both may use all of the machine.

    python bench/short_jobs.py [--jobs 10000] [--rounds 1]    # a real cloud: root and Podman
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the clouds of the tests are those of this bench

from tests.e2e.cloud import Cloud  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402

IMAGES = ROOT / ".cache" / "images"
PRESET = "2vcpu-4gb"
ARRAY = 1000
"""Jobs of an array: Slurm's default MaxArraySize is 1,001."""
ALONE = "slurm-alone"
ADDRESS = "192.0.2.1"
"""Slurm looks names up with AI_ADDRCONFIG, which finds none where there are loopback addresses alone."""

# Epilog: without one, slurmd says at once that a job has ended, and slurmctld starts the next one not then
# but at its next periodic round: 4 jobs a second on an idle machine.
PLAIN_CONFIGURATION = f"""\
ClusterName=alone
SlurmctldHost={ALONE}
SlurmUser=slurm
AuthType=auth/slurm
CredType=cred/slurm
StateSaveLocation=/var/lib/slurm
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=5,bf_interval=1,bf_max_time=30
DefMemPerCPU=100
Epilog=/bin/true
NodeName={ALONE} CPUs=2 RealMemory=4096
PartitionName=main Nodes=ALL Default=YES
"""
START_ALONE = f"""\
ip address add {ADDRESS}/32 dev lo
echo '{ADDRESS} {ALONE}' >> /etc/hosts
head -c 32 /dev/urandom > /etc/slurm/slurm.key
printf '%s' '{PLAIN_CONFIGURATION}' > /etc/slurm/slurm.conf
mkdir -p /run/slurm /var/lib/slurm /var/spool/slurmd
chown slurm:slurm /etc/slurm/slurm.key /run/slurm /var/lib/slurm
chmod 600 /etc/slurm/slurm.key
slurmctld && slurmd && {{ sleep infinity & wait; }} # not exec: bash reaps what slurmd leaves
"""

SUBMIT_AND_WAIT = """\
set -eu
cd /tmp
began=$(date +%s.%N)
left={jobs}
while [ $left -gt 0 ]; do
    now=$((left < {array} ? left : {array}))
    until sbatch --array=1-$now --ntasks=1 --output=/dev/null --wrap=true >/dev/null 2>submit.log; do
        grep -q 'Resource temporarily unavailable\\|job limit' submit.log || {{ cat submit.log >&2; exit 1; }}
        sleep 0.5
    done
    left=$((left - now))
done
while [ -n "$(squeue --noheader --format=%A | head -n 1)" ]; do sleep 0.5; done
echo "$(date +%s.%N) $began" | awk '{{print $1 - $2}}'
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--images", type=Path, default=IMAGES)
    given = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    script = SUBMIT_AND_WAIT.format(jobs=given.jobs, array=ARRAY)
    ours: list[float] = []
    alone: list[float] = []
    with running_cloud(given.images.absolute()) as cloud:
        cluster = Cluster.create(cloud, "bench", "--workers", "1", "--preset", PRESET)
        cluster.wait_until_idle(1)
        for _ in range(given.rounds):
            with slurm_alone(cloud) as container:
                said = cloud.podman("exec", container, "bash", "-c", script)
                alone.append(float(said))
            ours.append(float(cluster.ssh("bash -s", stdin=script, seconds=3600)))
            print(f"alone {alone[-1]:.1f} s, cluster {ours[-1]:.1f} s", flush=True)
        check_all_completed(cluster, given.jobs * given.rounds)
    report(given.jobs, statistics.median(ours), statistics.median(alone))


@contextmanager
def running_cloud(images: Path) -> Iterator[Cloud]:
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-") as folder:
        cloud = Cloud.prepare(Path(folder) / "cloud", images)
        try:
            cloud.up()
            yield cloud
        finally:
            cloud.neo("destroy", "--yes")


@contextmanager
def slurm_alone(cloud: Cloud) -> Iterator[str]:
    """A container with slurmctld and slurmd, and nothing of ours but the image."""
    image = cloud.podman("images", "--format={{.Repository}}:{{.Tag}}").split()[0]
    options = ("--detach", "--network=none", "--cap-add=NET_ADMIN", f"--hostname={ALONE}")
    container = cloud.podman(
        "run", *options, f"--name={ALONE}", "--entrypoint=bash", image, "-c", START_ALONE
    ).strip()
    try:
        ready = "until sinfo --noheader --format=%T | grep -q idle; do sleep 0.2; done"
        cloud.podman("exec", container, "timeout", "60", "bash", "-c", ready)
        yield container
    finally:
        cloud.podman("rm", "--force", "--time=0", container)


def check_all_completed(cluster: Cluster, jobs: int) -> None:
    """A job that failed is quick, too."""
    counted = cluster.ssh("sacct --allusers --noheader --allocations --format=State | sort | uniq -c")
    if counted.split() != [str(jobs), "COMPLETED"]:
        raise SystemExit(f"not all of {jobs} jobs have completed, says sacct:\n{counted}")


def report(jobs: int, ours: float, alone: float) -> None:
    print(f"{jobs} jobs in a cluster   {ours:7.1f} s, {jobs / ours:6.1f} jobs/s")
    print(f"{jobs} jobs, Slurm alone   {alone:7.1f} s, {jobs / alone:6.1f} jobs/s")
    print(f"  cluster / alone          {jobs / ours / (jobs / alone):.2f} in jobs/s")


if __name__ == "__main__":
    main()
