"""Measure how much processor time an idle cloud takes: its processes, Podman's service, and Slurm.

    python bench/idle.py [--seconds 60] [--slices 1] [--workers 1] [--auto-repair] [--deployment]
        [--deletions]

Starts a cloud in a temporary folder, creates one Slurm cluster, waits until nothing changes any more, and
prints the share of one core that each process of the control plane took, and each program in the pods, and
how often they were woken up a second. `--deployment` serves a tiny model beside it. `--deletions` creates and
deletes another cluster and deployment before, and measures at once. With several slices, each is printed:
what gets less was still to do. `--hold` keeps the cloud until Enter: to profile it.
Needs root, Podman and built images (`.cache/images`); removes the cloud at the end.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from neocloud.engines.podman.layout import Layout  # noqa: E402
from tests.e2e.cloud import Cloud  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402
from tests.e2e.tiny_model import tiny_model  # noqa: E402

SETTLE_SECONDS = 30.0
CONTROL_PLANE = "control plane"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--slices", type=int, default=1, help="how often to measure, one after the other")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--auto-repair", action="store_true", help="watch and repair the workers")
    parser.add_argument("--deployment", action="store_true", help="serve a tiny model, too")
    parser.add_argument(
        "--deletions", action="store_true", help="delete another cluster and deployment before"
    )
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--images", type=Path, default=ROOT / ".cache" / "images")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="neocloud-idle-"))
    cloud = Cloud.prepare(folder, options.images.absolute())
    try:
        cloud.up()
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        watched = ("--auto-repair",) if options.auto_repair else ()
        names = ("gone", "idle") if options.deletions else ("idle",)
        for name in names:
            Cluster.create(cloud, name, "--workers", str(options.workers), "--preset", "1vcpu-1gb", *watched)
        if options.deployment:
            serve(cloud, *names)
        if options.deletions:
            delete(cloud, "gone", has_deployment=options.deployment)
        else:
            time.sleep(SETTLE_SECONDS)
        for number in range(options.slices):
            print(f"slice {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
            report(cloud, options.seconds)
        if options.hold:
            input(f"{cloud.home}: Enter removes it. ")
    finally:
        cloud.neo("destroy", "--yes")
        shutil.rmtree(folder, ignore_errors=True)


def serve(cloud: Cloud, *names: str) -> None:
    for name in names:
        cloud.neo("model", "add", name, str(tiny_model()), "--license", "Apache-2.0")
        cloud.neo("deploy", name, "--platform", "cpu-local", "--preset", "2vcpu-4gb", seconds=400)


def delete(cloud: Cloud, name: str, *, has_deployment: bool) -> None:
    cloud.neo("slurm", "cluster", "delete", name, "--yes", seconds=300)
    if has_deployment:
        cloud.neo("inference", "deployment", "delete", name, "--yes", seconds=300)


def report(cloud: Cloud, seconds: float) -> None:
    layout = Layout.of(cloud.home)
    before = usage(layout)
    began = time.monotonic()
    time.sleep(seconds)
    after = usage(layout)
    passed = time.monotonic() - began
    totals: defaultdict[str, float] = defaultdict(float)
    for (part, name), used in sorted(after.items(), key=lambda item: -item[1].seconds):
        known = before.get((part, name), Usage())
        share, wakeups = (
            (used.seconds - known.seconds) / passed * 100,
            (used.wakeups - known.wakeups) / passed,
        )
        totals[part] += share
        print(f"{part:<14} {name:<18} {share:6.2f} % of a core {wakeups:7.1f} wakeups/s")
    for part, share in totals.items():
        print(f"{part:<14} {'':<18} {share:6.2f} % of a core over {passed:.0f} s")


@dataclass
class Usage:
    seconds: float = 0.0
    """Time of the processor, with those of ended children."""
    wakeups: int = 0


def usage(layout: Layout) -> dict[tuple[str, str], Usage]:
    """Return what was used so far, by part of the cloud and program."""
    found: dict[tuple[str, str], Usage] = {}
    for process in psutil.process_iter():
        try:
            role = role_of(process, layout)
            if role:
                times, used = process.cpu_times(), found.setdefault(role, Usage())
                used.seconds += times.user + times.system + times.children_user + times.children_system
                used.wakeups += sum(map(_wakeups, Path(f"/proc/{process.pid}/task").iterdir()))
        except (psutil.Error, OSError):
            continue
    return found


def _wakeups(task: Path) -> int:
    lines = (task / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def role_of(process: psutil.Process, layout: Layout) -> tuple[str, str] | None:
    """Return which part of the cloud a process is, and its program; None for processes of others."""
    words = process.cmdline()
    line = " ".join(words)
    if f"unix://{layout.socket}" in line:
        return CONTROL_PLANE, "podman service"
    if layout.cgroup.lstrip("/") in Path(f"/proc/{process.pid}/cgroup").read_text():
        return "pods", process.name()
    if words and Path(words[0]).name.startswith("conmon"):
        return ("pods", "conmon") if str(layout.home) in line else None
    if process.environ().get("NEOCLOUD_HOME") == str(layout.home) or str(layout.home) in line:
        module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
        return (CONTROL_PLANE, module.removeprefix("neocloud.")) if module.startswith("neocloud.") else None
    return None


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("Run it as root: the cloud uses Podman.")
    main()
