"""Measure how soon a test of a worker is gone when a job starts there, many times; and what checks cost.

    python bench/active_checks.py [--jobs 20]    # a real cloud: root and Podman

A test that would load the worker for minutes runs on it, beside Slurm. A job is submitted; the time from the
job's first process on the worker to the end of the last process of the test counts. The same job is also
submitted to the worker without a test: the difference of both is what tests add to the start of jobs.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the clouds of the tests are those of this bench

from tests.e2e.cloud import Cloud  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402
from tests.long.active_checks import preempt, start_job  # noqa: E402

IMAGES = ROOT / ".cache" / "images"
AIM_SECONDS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--images", type=Path, default=IMAGES)
    given = parser.parse_args()
    began = time.monotonic()
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        cloud = Cloud.prepare(Path(folder) / "cloud", given.images.absolute())
        try:
            cloud.up()
            cluster = Cluster.create(cloud, "bench", "--workers", "1", "--preset", "1vcpu-1gb")
            measure(cluster, given.jobs)
        finally:
            cloud.neo("destroy", "--yes")
    print(f"took {time.monotonic() - began:.0f} s, load at the end {os.getloadavg()[0]:.1f}")


def measure(cluster: Cluster, jobs: int) -> None:
    gone, queued, without = list[float](), list[float](), list[float]()
    for _ in range(jobs):
        without.append(start_job(cluster, "worker-0"))
        found = preempt(cluster, "worker-0")
        assert found.job_state == "COMPLETED", found
        gone.append(found.gone_after_s)
        queued.append(found.queued_s)
    tell("test gone after the job's first process", gone)
    tell("job's first process after its submission, with a test running", queued)
    tell("the same without a test", without)
    print(
        f"aim {AIM_SECONDS:g} s: {'met' if max(gone) <= AIM_SECONDS else 'MISSED'}, all {jobs} jobs completed"
    )


def tell(what: str, seconds: list[float]) -> None:
    middle, most = statistics.median(seconds), max(seconds)
    print(f"{what}: median {middle:.2f} s, most {most:.2f} s, of {len(seconds)}", flush=True)


if __name__ == "__main__":
    main()
