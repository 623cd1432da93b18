"""Measure what the node agent costs on a worker: Slurm's prolog, the cloud's questions, and the agent itself.

    python bench/fleet_prolog.py [--times 50] [--images DIR]    # a real cloud: root and Podman

The prolog (`bind-jail`) is run as slurmd runs it, on an idle worker with an agent that answers, and beside
it, turn by turn, the two programs that it calls.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the clouds of the tests are those of this bench

from neocloud.services.slurm.worker_agents import ASK, FOLDER  # noqa: E402
from neocloud.testing.waiting import wait_until  # noqa: E402
from tests.e2e.cloud import Cloud  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402

LIB = "/usr/local/lib/neocloud"
TIMED = f"""
for number in $(seq {{times}}); do
    for program in "{LIB}/bind-jail" "{LIB}/shared-root ask" "{LIB}/agent-verdict"; do
        began=$EPOCHREALTIME
        $program >/dev/null
        ended=$EPOCHREALTIME
        echo $((${{{{ended/./}}}} - ${{{{began/./}}}})) $program
    done
done
"""
"""Microseconds, and the program."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--images", type=Path, default=ROOT / ".cache" / "images")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-") as folder:
        cloud = Cloud.prepare(Path(folder) / "cloud", given.images.absolute())
        try:
            cloud.up()
            cluster = Cluster.create(
                cloud, "bench", "--workers", "1", "--preset", "1vcpu-1gb", "--auto-repair"
            )
            measure(cluster, given.times)
        finally:
            cloud.neo("destroy", "--yes")


def measure(cluster: Cluster, times: int) -> None:
    is_there = f"test -s {FOLDER}/last/failing && echo yes || true"
    wait_until(lambda: cluster.in_pod("worker-0", "sh", "-c", is_there), "the agent checks", seconds=120)
    said = cluster.in_pod("worker-0", "bash", "-c", TIMED.format(times=times))
    found: dict[str, list[float]] = {}
    for line in said.splitlines():
        microseconds, _, program = line.partition(" ")
        found.setdefault(program.replace(f"{LIB}/", ""), []).append(int(microseconds) / 1000)
    for program, values in found.items():
        show(program, values)
    show("agent asked by podman exec", [timed(cluster, *ASK) for _ in range(times)])
    show("nothing run by podman exec", [timed(cluster, "/bin/true") for _ in range(times)])
    pid = cluster.in_pod("worker-0", "cat", f"{FOLDER}/pid").strip()
    before, began = processor_seconds(cluster, pid), time.monotonic()
    time.sleep(60)  # the length of the measurement
    used = (processor_seconds(cluster, pid) - before) / (time.monotonic() - began)
    memory = cluster.in_pod("worker-0", "awk", "/^Pss:/ {print $2}", f"/proc/{pid}/smaps_rollup")
    print(f"agent: {100 * used:.2f}% of a core, {int(memory) / 1024:.1f} MiB; load {os.getloadavg()[0]:.1f}")


def timed(cluster: Cluster, *command: str) -> float:
    began = time.perf_counter()
    cluster.in_pod("worker-0", *command)
    return 1000 * (time.perf_counter() - began)


def processor_seconds(cluster: Cluster, pid: str) -> float:
    """Return the processor time of the agent and of its probes that have ended."""
    fields = cluster.in_pod("worker-0", "cat", f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(int(each) for each in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def show(what: str, values: Sequence[float]) -> None:
    ordered = sorted(values)
    high = ordered[int(0.99 * (len(ordered) - 1))]
    print(f"{what:<28} median {statistics.median(ordered):6.1f} ms, 99% {high:6.1f} ms, n {len(ordered)}")


if __name__ == "__main__":
    main()
