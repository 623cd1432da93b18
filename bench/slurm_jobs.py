"""Measure what jobs of a Slurm cluster pay for containers, for MPI over pods, and for imports at once.

    python bench/slurm_jobs.py [--rounds 5] [--workers 8] [--only mpi ...]    # a real cloud: root and Podman

Each figure is a ratio to something that runs in the same rounds, in turn:

- a job in a container, with its image imported before and not, to a job without one;
- a step with PMIx, the default, to one without;
- MPI between two workers (TCP), and on one (shared memory), to the same program, of the same OpenMPI, by
  `mpirun` on the host itself: over its loopback device, and by shared memory;
- `import torch` on one worker and on all at once, to as many processes on the host at once.

OpenMPI leaves the sizes of TCP's buffers to the kernel here, on both sides: its own make large messages wait
40 ms each on the loopback device. Ranks that wait give way, or a busy machine would stop them for seconds.
Programs on the host have the files of the shared root's image, in namespaces of processes and mounts.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the clouds and images of the tests are those of this bench

from tests.e2e.cloud import Cloud  # noqa: E402
from tests.e2e.cluster import SHARED, Cluster  # noqa: E402
from tests.fast.container_images import busybox_layer, python_layer, write_layout  # noqa: E402

IMAGES = ROOT / ".cache" / "images"
PROGRAM = Path(__file__).with_name("mpi_times.c")
IMAGE = f"{SHARED}/image"
PARTS = ("containers", "steps", "mpi", "imports")
STEPS = 10
SETTINGS = "export OMPI_MCA_btl_tcp_sndbuf=0 OMPI_MCA_btl_tcp_rcvbuf=0 OMPI_MCA_mpi_yield_when_idle=1"
IMPORT = (
    "import json, time; wall, own = time.perf_counter(), time.process_time(); import torch;"
    " print(json.dumps([time.perf_counter() - wall, time.process_time() - own]))"
)
TIMED = "t=$(date +%s%N); {command} >/dev/null || exit 1; echo $(( ($(date +%s%N) - t) / 1000 ))"
"""Shell: prints the microseconds that a command takes."""
HOST = """
mount --bind {root} {root}
for each in sys dev dev/shm; do mount --bind /$each {root}/$each; done
mount -t proc proc {root}/proc
mount -t tmpfs tmpfs {root}/tmp
cp {folder}/* {root}/tmp/
exec chroot {root} sh -c {command}
"""


@dataclass(frozen=True)
class Host:
    """The host itself, with the programs of the shared root's image."""

    root: Path
    folder: Path
    """What programs find in /tmp."""

    def run(self, command: str) -> str:
        script = HOST.format(root=self.root, folder=self.folder, command=shlex.quote(f"cd /tmp; {command}"))
        alone = [
            "unshare",
            "--mount",
            "--propagation=private",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-ec",
        ]
        return subprocess.run(
            [*alone, script], check=True, stdout=subprocess.PIPE, text=True, timeout=300
        ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--images", type=Path, default=IMAGES)
    given = parser.parse_args()
    images = given.images.absolute()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {load()} at the start", flush=True)
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-") as name:
        folder = Path(name)
        host = Host((images / "jail" / "rootfs").resolve(), folder / "programs")
        with running_cluster(folder / "cloud", images, given.workers) as cluster:
            prepare(cluster, host, folder)
            if "containers" in given.only:
                report_containers(cluster, given.rounds)
            if "steps" in given.only:
                report_steps(cluster, given.rounds)
            if "mpi" in given.only:
                report_mpi(cluster, host, given.rounds)
            if "imports" in given.only:
                report_imports(cluster, host, given.rounds, given.workers)
    print(f"load {load()} at the end")


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


@contextmanager
def running_cluster(folder: Path, images: Path, workers: int) -> Iterator[Cluster]:
    cloud = Cloud.prepare(folder, images)
    try:
        cloud.up()
        cluster = Cluster.create(cloud, "bench", "--workers", str(workers), "--preset", "1vcpu-2gb")
        cluster.wait_until_idle(workers)
        yield cluster
    finally:
        cloud.neo("destroy", "--yes")


def prepare(cluster: Cluster, host: Host, folder: Path) -> None:
    """Put the image of the containers and the MPI program into place."""
    layers = [busybox_layer(), python_layer(host.root)]
    write_layout(folder / "image", layers, {"Env": ["PATH=/bin"]})
    print(f"the image of the containers has {sum(map(len, layers)) / (1 << 20):.0f} MiB", flush=True)
    cluster.copy_in(folder / "image", IMAGE)
    cluster.ssh(
        f"cd {SHARED} && cat > mpi_times.c && mpicc -O2 -o mpi_times mpi_times.c", stdin=PROGRAM.read_text()
    )
    host.folder.mkdir()
    cluster.copy_out(f"{SHARED}/mpi_times", host.folder)


def rounds_of(number: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Measure each in turn, so many times; one list of results for each."""
    rounds = [[measure() for measure in measures] for _ in range(number)]
    return [list(results) for results in zip(*rounds, strict=True)]


def say(what: str, results: Sequence[float], peer: Sequence[float], unit: str) -> None:
    """Print medians, and the median of the ratios within a round."""
    ratio = statistics.median(one / other for one, other in zip(results, peer, strict=True))
    ours, theirs = statistics.median(results), statistics.median(peer)
    print(f"{what:62} {ours:9.2f} {unit} to {theirs:9.2f}: {ratio:6.2f}", flush=True)


def milliseconds(cluster: Cluster, command: str, before: str = "true") -> float:
    """Return how long a command takes on the login node."""
    said = cluster.ssh(f"cd {SHARED}; {before}; {TIMED.format(command=command)}")
    return float(said.splitlines()[-1]) / 1000


def report_containers(cluster: Cluster, rounds: int) -> None:
    in_container = f"srun --quiet --container-image={IMAGE} true"
    milliseconds(cluster, in_container)  # what happens only once
    bare, cached, cold = rounds_of(
        rounds,
        lambda: milliseconds(cluster, "srun --quiet true"),
        lambda: milliseconds(cluster, in_container),
        lambda: milliseconds(cluster, in_container, "rm -rf ~/.cache/neocloud"),
    )
    say("job in a container, image imported before, to a bare job", cached, bare, "ms")
    say("the same, image imported by it", cold, bare, "ms")


def report_steps(cluster: Cluster, rounds: int) -> None:
    def seconds(options: str) -> float:
        step = f"srun --quiet {options} true"
        many = f"for i in $(seq {STEPS}); do {step} || exit 1; done"
        said = cluster.run_job(f"{step}; {TIMED.format(command=f'({many})')}", "--nodelist=worker-0")
        return float(said.splitlines()[-1]) / 1000 / STEPS

    container = f"--container-image={IMAGE} --mpi=none"
    with_pmix, without, contained = rounds_of(
        rounds, lambda: seconds("--mpi=pmix"), lambda: seconds("--mpi=none"), lambda: seconds(container)
    )
    say("step of a job with PMIx, to one without", with_pmix, without, "ms")
    say("step in a container, both without PMIx", contained, without, "ms")


def report_mpi(cluster: Cluster, host: Host, rounds: int) -> None:
    names = ("message of 8 bytes", "all-reduce of 8 bytes", "all-reduce of 1 MiB")
    on_host = SETTINGS + "; mpirun --allow-run-as-root --bind-to none --mca btl {way} -n 2 ./mpi_times"
    ways = {
        "two workers (TCP) to loopback": ("--nodes=2 --ntasks=2", "tcp,self"),
        "one worker to the host (shared memory)": ("--nodes=1 --ntasks=2 --overcommit", "vader,self"),
    }
    for way, (options, transport) in ways.items():
        found: list[tuple[list[float], list[float]]] = []
        for _ in range(rounds):
            ours = cluster.ssh(f"cd {SHARED}; {SETTINGS}; srun --quiet {options} ./mpi_times")
            theirs = host.run(on_host.format(way=transport))
            found.append(([*map(float, ours.split())], [*map(float, theirs.split())]))
        for number, name in enumerate(names):
            say(f"{name}, {way}", [ours[number] for ours, _ in found], [it[number] for _, it in found], "us")


def report_imports(cluster: Cluster, host: Host, rounds: int, workers: int) -> None:
    (host.folder / "imports.py").write_text(IMPORT)
    cluster.ssh(f"cat > {SHARED}/imports.py", stdin=IMPORT)

    def in_cluster(number: int) -> tuple[float, float]:
        return slowest(cluster.ssh(f"srun --quiet --nodes={number} python3 {SHARED}/imports.py", seconds=300))

    def on_host(number: int) -> tuple[float, float]:
        return slowest(host.run(f"for i in $(seq {number}); do python3 imports.py & done; wait"))

    in_cluster(workers)
    on_host(1)  # now the files have been read from the disk
    found = [(in_cluster(1), in_cluster(workers), on_host(1), on_host(workers)) for _ in range(rounds)]
    one, all_at_once, host_one, host_all = ([*column] for column in zip(*found, strict=True))
    for kind, name in enumerate(("slowest", "processor time of one")):
        columns = [[each[kind] for each in column] for column in (one, all_at_once, host_one, host_all)]
        say(f"import torch, {name}: {workers} workers at once to 1", columns[1], columns[0], "s ")
        say(f"import torch, {name}: {workers} processes of the host to 1", columns[3], columns[2], "s ")
        say(f"import torch, {name}: 1 worker to the host", columns[0], columns[2], "s ")
        say(f"import torch, {name}: {workers} workers to the host", columns[1], columns[3], "s ")


def slowest(said: str) -> tuple[float, float]:
    """Return the longest time, and the median of the processor times."""
    times = [json.loads(line) for line in said.splitlines()]
    return max(wall for wall, _ in times), statistics.median(own for _, own in times)


if __name__ == "__main__":
    main()
